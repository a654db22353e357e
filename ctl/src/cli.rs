//! The command line as a whole: global flags and groups. What a command does is in `command/`.

use std::process::ExitCode;
use std::time::Duration;

use belay_proto::endpoint::Endpoint;
use clap::{Args, Parser, Subcommand};

use crate::command::controller::ControllerCommand;
use crate::command::identity::IdentityCommand;
use crate::command::node::NodeCommand;
use crate::command::registration::RegistrationCommand;
use crate::connect::dial;
use crate::demo::{self, DemoArgs};
use crate::failure::Failure;
use crate::render::{self, Answer, Output};

const EXAMPLES: &str = "\
Examples:
  export CSI_ENDPOINT=unix:///run/belay/controller.sock
  belayctl identity probe
  belayctl controller create data --size 10GiB --fs-type ext4
  belayctl controller list --output json
  belayctl --endpoint /run/belay/node.sock node info
  belayctl --endpoint /run/belay/node.sock node health VOLUME_ID || echo look at it
  sudo belayctl demo

Exit codes: 0 done, and what a health command asked about is healthy; 1 the call failed (code and
message on stderr); 2 a health command's answer is that something is wrong; 64 bad usage.";

/// Call any CSI socket by hand: Belay's or another driver's.
#[derive(Parser)]
#[command(name = "belayctl", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    group: Group,
}

/// Which socket to call, how long to wait, how to print.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Target {
    /// Socket of the driver: unix:///path, unix:/path or an absolute path
    #[arg(long, global = true, env = "CSI_ENDPOINT", value_name = "SOCKET")]
    endpoint: Option<Endpoint>,
    /// Seconds to wait for the answer
    #[arg(long, global = true, default_value_t = 120, value_name = "SECONDS",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// How to print the answer
    #[arg(long, short, global = true, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Subcommand)]
enum Group {
    /// Who the driver is and whether it is ready
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Volumes as such: make, attach, grow, list, delete (controller socket)
    #[command(subcommand)]
    Controller(ControllerCommand),
    /// Volumes on this node: stage, publish, measure, grow (node socket)
    #[command(subcommand)]
    Node(NodeCommand),
    /// What the driver tells the kubelet, and the kubelet the driver (registration socket)
    #[command(subcommand)]
    Registration(RegistrationCommand),
    /// Watch volumes live their life through the two real binaries (needs root)
    Demo(DemoArgs),
}

impl Cli {
    /// Runs the command and prints its answer.
    ///
    /// # Errors
    /// Bad usage, a socket that does not answer, or the code the driver answered with.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let answer = match self.group {
            Group::Demo(args) => return demo::run(args, self.target.output).await,
            Group::Identity(command) => command.run(&self.target).await?,
            Group::Controller(command) => command.run(&self.target).await?,
            Group::Node(command) => command.run(&self.target).await?,
            Group::Registration(command) => command.run(&self.target).await?,
        };
        self.target.print(&answer)?;
        Ok(answer.exit_code())
    }
}

impl Target {
    /// A connection to the socket that was named.
    ///
    /// # Errors
    /// No socket named (bad usage), or nobody answers on it.
    pub(crate) async fn connect(&self) -> Result<tonic::transport::Channel, Failure> {
        let endpoint = self.endpoint.as_ref().ok_or_else(|| {
            Failure::Usage(
                "no socket named: give --endpoint unix:///run/belay/node.sock or set CSI_ENDPOINT"
                    .to_owned(),
            )
        })?;
        dial(&endpoint.path).await
    }

    /// Waits for one call, and no longer than the user allowed.
    ///
    /// # Errors
    /// What the driver answered, or that it did not answer in time.
    pub(crate) async fn wait_for<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    ) -> Result<T, Failure> {
        let limit = Duration::from_secs(self.timeout);
        match tokio::time::timeout(limit, call).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_elapsed) => Err(Failure::NoAnswer {
                seconds: self.timeout,
            }),
        }
    }

    fn print(&self, answer: &Answer) -> Result<(), Failure> {
        Ok(render::print(answer, self.output)?)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_are_taken_before_and_after_the_command() {
        for line in [
            "belayctl --endpoint /a.sock -o json node info",
            "belayctl node info --endpoint unix:///a.sock --output json",
            // As CSI_ENDPOINT is often written, and the servers take it.
            "belayctl node info --endpoint unix://a.sock --output json",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            assert_eq!(
                cli.target.endpoint,
                Some("/a.sock".parse().unwrap()),
                "{line}"
            );
            assert!(matches!(cli.target.output, Output::Json), "{line}");
        }
    }

    #[test]
    fn a_contradicting_or_incomplete_line_is_refused() {
        for line in [
            "belayctl",
            "belayctl node",
            "belayctl --endpoint relative.sock node info",
            "belayctl node stage v --staging /s --block --fs-type xfs",
            "belayctl node stage v --staging /s --mode ANYHOW",
            "belayctl controller create --size 1GiB",
            "belayctl controller create a --size 1Quux",
            "belayctl controller create a --parameter novalue",
            "belayctl --timeout 0 node info",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
