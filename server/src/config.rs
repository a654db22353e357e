//! The settings that every server of ours has, and how bad ones end a process.

use crate::call::Failure;
use crate::endpoint::Endpoint;
use crate::identity::{DriverName, PluginCapability};
use crate::log::{self, LogLevel};
use crate::place::Place;
use crate::request::NodeId;
use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches, Parser};
use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::process::ExitCode;

/// The exit code for bad usage (EX_USAGE of sysexits.h).
pub const EXIT_USAGE: u8 = 64;

/// The topology key of the backend `local`: volumes live on the node that it names. It can never
/// change, since volumes carry it.
pub const TOPOLOGY_KEY: &str = "topology.local.csi.belay.dev/node";

/// Flags of a binary that serves one driver. Each has an environment variable; the flag wins.
#[derive(Clone, Debug, clap::Args)]
pub struct CommonArgs {
    /// What it serves.
    #[command(flatten)]
    pub driver: DriverArgs,

    /// How it does.
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// What both programs of a driver have to be told of it.
#[derive(Clone, Debug, clap::Args)]
pub struct DriverArgs {
    /// Where to serve CSI: unix:///path/csi.sock or an absolute path
    #[arg(long, env = "CSI_ENDPOINT", value_name = "SOCKET")]
    pub endpoint: Endpoint,

    /// Which node this is, and where.
    #[command(flatten)]
    pub node: NodeArgs,

    /// The name of the driver
    #[arg(
        long,
        env = "BELAY_DRIVER_NAME",
        value_name = "NAME",
        default_value = "local.csi.belay.dev"
    )]
    pub driver_name: DriverName,

    /// Most volumes on this node; 0 = no limit is told
    #[arg(
        long,
        env = "BELAY_MAX_VOLUMES",
        value_name = "NUMBER",
        default_value_t = 0
    )]
    pub max_volumes: u32,
}

/// What every process has, however many drivers it serves.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    /// Where to show /metrics, /healthz and /livez, e.g. 127.0.0.1:9808; nowhere if absent
    #[arg(long, env = "BELAY_HTTP_ENDPOINT", value_name = "IP:PORT")]
    pub http_endpoint: Option<SocketAddr>,

    /// What tools of gRPC are offered.
    #[command(flatten)]
    pub grpc: GrpcArgs,

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

impl DriverArgs {
    /// What the driver as a whole can do: both its programs must tell the same.
    #[must_use]
    pub fn plugin_capabilities(&self) -> Vec<PluginCapability> {
        let mut capabilities = vec![
            PluginCapability::Controller,
            PluginCapability::OnlineExpansion,
        ];
        if self.node.place.is_some() {
            capabilities.push(PluginCapability::Topology);
        }
        capabilities
    }
}

/// What the CSI socket offers to tools that know no CSI, such as grpcurl.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct GrpcArgs {
    /// Let tools ask the CSI socket for its services and messages (gRPC reflection)
    #[arg(long, env = "BELAY_GRPC_REFLECTION", value_parser = BoolishValueParser::new())]
    pub grpc_reflection: bool,

    /// Serve gRPC's own health service on the CSI socket
    #[arg(long, env = "BELAY_GRPC_HEALTH", value_parser = BoolishValueParser::new())]
    pub grpc_health: bool,
}

/// A node and its place, which fit each other: `--node-id` and `--with-topology`.
#[derive(Clone, Debug)]
pub struct NodeArgs {
    /// The id.
    pub id: NodeId,
    /// Where volumes of this node can be reached; none = it is not told.
    pub place: Option<Place>,
}

/// The flags behind [`NodeArgs`], each looked at for itself alone.
#[derive(clap::Args)]
struct NodeFlags {
    /// The id of this node: 1 to 256 bytes; with --with-topology 1 to 63, fit for a label
    #[arg(long, env = "BELAY_NODE_ID", value_name = "ID", value_parser = node_id)]
    node_id: NodeId,

    /// Tell that not every node reaches every volume
    #[arg(long, env = "BELAY_WITH_TOPOLOGY", value_parser = BoolishValueParser::new())]
    with_topology: bool,
}

fn node_id(text: &str) -> Result<NodeId, Failure> {
    NodeId::new(text)
}

impl FromArgMatches for NodeArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = NodeFlags::from_arg_matches(matches)?;
        let place = || Place::new(TOPOLOGY_KEY, flags.node_id.as_str());
        let place = flags.with_topology.then(place).transpose();
        let place = place.map_err(|error| {
            let why = format!("--node-id with --with-topology: {error}");
            clap::Error::raw(ErrorKind::ValueValidation, why)
        })?;
        Ok(Self {
            id: flags.node_id,
            place,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for NodeArgs {
    fn augment_args(command: Command) -> Command {
        NodeFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        NodeFlags::augment_args_for_update(command)
    }
}

/// The settings of this process, or the code with which it shall end, see [`ended`].
///
/// # Errors
/// The exit code.
pub fn parse<A: Parser>() -> Result<A, ExitCode> {
    parse_from(std::env::args_os()).map_err(|error| ended(&error))
}

/// Tells what is wrong with the settings. The code with which the process shall end: 0 after
/// `--help`, else [`EXIT_USAGE`].
#[must_use]
pub fn ended(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        log::write(&error.render().to_string());
        return ExitCode::from(EXIT_USAGE);
    }
    // Help was asked for, and whoever asked has gone.
    drop(error.print());
    ExitCode::SUCCESS
}

/// The settings from these arguments, the program's name first, and from the environment. A setting
/// without a value, which is what a template makes of one that nobody filled in, is not set.
///
/// # Errors
/// What is wrong, or that help was asked for.
pub fn parse_from<A: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<A, clap::Error> {
    parse_where(arguments, |_| true)
}

/// The same, where of the environment only the variables count that `speaks` says yes to.
///
/// # Errors
/// What is wrong, or that help was asked for.
pub fn parse_where<A: Parser>(
    arguments: impl IntoIterator<Item = OsString>,
    speaks: impl Fn(&OsStr) -> bool,
) -> Result<A, clap::Error> {
    let command = A::command().mut_args(|setting| {
        let is_empty = |variable| std::env::var_os(variable).is_some_and(|value| value.is_empty());
        let counts = setting
            .get_env()
            .is_some_and(|it| speaks(it) && !is_empty(it));
        if counts { setting } else { setting.env(None) }
    });
    let mut matches = command.try_get_matches_from(without_empty(arguments))?;
    A::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut A::command()))
}

/// Leaves out `--flag=` and `--flag ""`.
fn without_empty(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut kept: Vec<OsString> = Vec::new();
    for argument in arguments {
        let bytes = argument.as_encoded_bytes();
        if bytes.starts_with(b"--") && bytes.ends_with(b"=") {
            continue;
        }
        let waits_for_a_value = |last: &OsString| {
            let last = last.as_encoded_bytes();
            last.starts_with(b"--") && !last.contains(&b'=')
        };
        if bytes.is_empty() && kept.last().is_some_and(waits_for_a_value) {
            kept.pop();
            continue;
        }
        kept.push(argument);
    }
    kept
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
        let args = NEEDED.iter().chain(more).map(OsString::from);
        parse_from(args)
            .map(|args: Args| args.common)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let args = parsed(&[]).unwrap();
        assert_eq!(args.driver.driver_name.as_str(), "local.csi.belay.dev");
        assert_eq!(args.driver.max_volumes, 0);
        assert_eq!(args.driver.node.place, None);
        assert_eq!(
            args.driver.plugin_capabilities(),
            [
                PluginCapability::Controller,
                PluginCapability::OnlineExpansion
            ]
        );
        assert_eq!(args.process.http_endpoint, None);
        assert_eq!(args.process.log_level, LogLevel::Info);
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
            ("grpc-health", "BELAY_GRPC_HEALTH"),
            ("grpc-reflection", "BELAY_GRPC_REFLECTION"),
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

    #[test]
    fn with_topology_the_node_id_is_the_place_of_its_volumes() {
        let args = parsed(&["--with-topology"]).unwrap();
        let segments = args.driver.node.place.as_ref().unwrap().segments();
        assert_eq!(segments.get(TOPOLOGY_KEY).map(String::as_str), Some("n1"));
        assert!(
            args.driver
                .plugin_capabilities()
                .contains(&PluginCapability::Topology)
        );
    }

    #[test]
    fn a_node_id_that_is_no_label_is_bad_usage_with_topology_only() {
        for id in ["a/b", "a-", &"n".repeat(64)] {
            let args = ["belay", "--endpoint", "/run/csi.sock", "--node-id", id];
            let args = args.map(OsString::from);
            assert!(parse_from::<Args>(args.clone()).is_ok(), "{id}");
            let with_topology = args.into_iter().chain(["--with-topology".into()]);
            let error = parse_from::<Args>(with_topology).unwrap_err();
            assert!(error.use_stderr());
            let error = error.to_string();
            assert!(error.contains("--node-id") && error.contains(id), "{error}");
        }
    }

    #[test]
    fn a_flag_without_a_value_is_not_there() {
        let empty = ["--http-endpoint=", "--driver-name", "", "--log-level="];
        let args = parsed(&empty).unwrap();
        assert_eq!(args.process.http_endpoint, None);
        assert_eq!(args.driver.driver_name.as_str(), "local.csi.belay.dev");
        assert_eq!(args.process.log_level, LogLevel::Info);
        // Only a flag that still waits for its value can lose it.
        let error = parsed(&["--log-level=info", ""]).unwrap_err();
        assert!(error.contains("unexpected argument"), "{error}");
        let error = parse_from::<Args>(["belay", "--node-id", ""].map(OsString::from)).unwrap_err();
        assert!(error.to_string().contains("--node-id <ID>"), "{error}");
    }
}
