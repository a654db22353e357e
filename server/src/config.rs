//! The settings that every server of ours has, and how bad ones end a process.

use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::identity::DriverName;
use crate::log::LogLevel;
use crate::request::NodeId;
use clap::Parser;
use clap::builder::BoolishValueParser;
use std::net::SocketAddr;
use std::process::ExitCode;

/// The exit code for bad usage (EX_USAGE of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// Flags of both binaries. Each has an environment variable; the flag wins.
#[derive(Clone, Debug, clap::Args)]
pub struct CommonArgs {
    /// Where to serve CSI: unix:///path/csi.sock or an absolute path
    #[arg(long, env = "CSI_ENDPOINT", value_name = "SOCKET")]
    pub endpoint: Endpoint,

    /// The id of this node: 1 to 256 bytes
    #[arg(long, env = "BELAY_NODE_ID", value_name = "ID", value_parser = node_id)]
    pub node_id: NodeId,

    /// The name of the driver
    #[arg(
        long,
        env = "BELAY_DRIVER_NAME",
        value_name = "NAME",
        default_value = "local.csi.belay.dev"
    )]
    pub driver_name: DriverName,

    /// Tell that not every node reaches every volume
    #[arg(long, env = "BELAY_WITH_TOPOLOGY", value_parser = BoolishValueParser::new())]
    pub with_topology: bool,

    /// Most volumes on this node; 0 = no limit is told
    #[arg(
        long,
        env = "BELAY_MAX_VOLUMES",
        value_name = "NUMBER",
        default_value_t = 0
    )]
    pub max_volumes: u32,

    /// Where to show /metrics and /healthz, e.g. 127.0.0.1:9808; nowhere if absent
    #[arg(long, env = "BELAY_HTTP_ENDPOINT", value_name = "IP:PORT")]
    pub http_endpoint: Option<SocketAddr>,

    /// How much to log, to stderr
    #[arg(
        long,
        env = "BELAY_LOG_LEVEL",
        value_name = "LEVEL",
        value_enum,
        default_value = "info"
    )]
    pub log_level: LogLevel,
}

fn node_id(text: &str) -> Result<NodeId, Failure> {
    NodeId::new(text)
}

/// The settings of this process, or the code with which it shall end: 0 after `--help`,
/// [`EXIT_USAGE`] after one message about what is wrong.
///
/// # Errors
/// The exit code.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    A::try_parse().map_err(|error| {
        // Nobody is left to tell if even this cannot be written.
        drop(error.print());
        ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[derive(Debug, Parser)]
    struct Args {
        #[command(flatten)]
        common: CommonArgs,
    }

    const NEEDED: [&str; 5] = ["belay", "--endpoint", "/run/csi.sock", "--node-id", "n1"];

    fn parsed(more: &[&str]) -> Result<CommonArgs, String> {
        let args = Args::try_parse_from(NEEDED.iter().chain(more));
        args.map(|args| args.common)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let args = parsed(&[]).unwrap();
        assert_eq!(args.driver_name.as_str(), "local.csi.belay.dev");
        assert_eq!(args.max_volumes, 0);
        assert!(!args.with_topology);
        assert_eq!(args.http_endpoint, None);
        assert_eq!(args.log_level, LogLevel::Info);
    }

    #[test]
    fn every_setting_has_its_environment_variable() {
        let mut flags: Vec<_> = Args::command()
            .get_arguments()
            .filter_map(|flag| Some((flag.get_long()?.to_owned(), flag.get_env()?.to_owned())))
            .collect();
        flags.sort();
        let expected = [
            ("driver-name", "BELAY_DRIVER_NAME"),
            ("endpoint", "CSI_ENDPOINT"),
            ("http-endpoint", "BELAY_HTTP_ENDPOINT"),
            ("log-level", "BELAY_LOG_LEVEL"),
            ("max-volumes", "BELAY_MAX_VOLUMES"),
            ("node-id", "BELAY_NODE_ID"),
            ("with-topology", "BELAY_WITH_TOPOLOGY"),
        ];
        assert_eq!(
            flags,
            expected.map(|(flag, env)| (flag.to_owned(), env.into()))
        );
    }

    #[test]
    fn a_bad_value_is_named_with_its_flag_and_the_reason() {
        let cases = [
            (["--endpoint", "tcp://1.2.3.4:5"], "only unix sockets"),
            (["--node-id", ""], "--node-id"),
            (["--driver-name", "a_b"], "not '_'"),
            (["--max-volumes", "many"], "--max-volumes"),
            (["--http-endpoint", "9808"], "--http-endpoint"),
            (["--log-level", "loud"], "--log-level"),
        ];
        for (flags, why) in cases {
            let args = Args::try_parse_from(NEEDED[..1].iter().chain(&flags));
            let error = args.unwrap_err().to_string();
            assert!(error.contains(why), "{flags:?}: {error}");
        }
    }
}
