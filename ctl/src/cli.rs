//! The command line. The commands are in `command/`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::command::controller::ControllerCommand;
use crate::command::identity::IdentityCommand;
use crate::command::node::NodeCommand;
use crate::command::registration::RegistrationCommand;
use crate::failure::Failure;
use crate::target::Target;

const EXAMPLES: &str = "\
Examples:
  export CSI_ENDPOINT=unix:///run/belay/controller.sock
  belayctl identity probe
  belayctl controller create data --size 10GiB --fs-type ext4
  belayctl controller list --output json
  belayctl --endpoint /run/belay/node.sock node info
  belayctl --endpoint /run/belay/node.sock node health VOLUME_ID || echo unhealthy

Exit codes: 0 success, and for a health command: healthy; 1 the call failed (code and message on
stderr); 2 a health command reports a problem; 64 bad usage.";

/// Call any CSI socket by hand: Belay's or another driver's.
#[derive(Parser)]
#[command(name = "belayctl", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    group: Group,
}

#[derive(Subcommand)]
enum Group {
    /// Identity service: name, capabilities and readiness of the driver
    #[command(subcommand)]
    Identity(IdentityCommand),
    /// Controller service: create, attach, expand, list, delete, ... (controller socket)
    #[command(subcommand)]
    Controller(ControllerCommand),
    /// Node service: stage, publish, stats, expand, ... (node socket)
    #[command(subcommand)]
    Node(NodeCommand),
    /// Registration with the kubelet (registration socket)
    #[command(subcommand)]
    Registration(RegistrationCommand),
}

impl Cli {
    /// Runs the command and prints its answer.
    ///
    /// # Errors
    /// Bad usage, a socket that does not answer, or the driver's error.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let answer = match self.group {
            Group::Identity(command) => command.run(&self.target).await?,
            Group::Controller(command) => command.run(&self.target).await?,
            Group::Node(command) => command.run(&self.target).await?,
            Group::Registration(command) => command.run(&self.target).await?,
        };
        self.target.print(&answer)?;
        Ok(answer.exit_code())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::render::Output;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_are_taken_before_and_after_the_command() {
        for line in [
            "belayctl --endpoint /a.sock -o json node info",
            "belayctl node info --endpoint unix:///a.sock --output json",
            // The usual form of CSI_ENDPOINT, which the servers accept.
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
