//! The flags that the node agent and the controller of a driver share.

use crate::drivers::Kind;
use crate::topology::Topology;
use belay_server::call::Failure;
use belay_server::config::ProcessArgs;
use belay_server::endpoint::Endpoint;
use belay_server::identity::{DriverName, PluginCapability};
use belay_server::request::NodeId;
use clap::builder::BoolishValueParser;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches};
use std::fmt::Display;

/// The clap ID of the flag for the node's name, whose value is a [`NodeId`].
pub const NODE_NAME: &str = "node_name";

/// The clap ID of the controller's flag for the volumes of all nodes, whose value is a `bool`. The
/// volumes of this controller report the topology of their nodes, and the controller has no node.
pub const ALL_NODES: &str = "nodes";

/// Flags of the controller of one driver. Each flag has an environment variable, which has lower
/// precedence.
#[derive(Clone, Debug, clap::Args)]
pub struct CommonArgs {
    /// The driver.
    #[command(flatten)]
    pub driver: DriverArgs<false>,

    /// The server.
    #[command(flatten)]
    pub process: ProcessArgs,
}

/// The settings of a driver that its node agent and its controller have in common.
#[derive(Clone, Debug)]
pub struct DriverArgs<const AGENT: bool> {
    /// The kind of the driver.
    pub kind: Kind,
    /// The CSI socket.
    pub endpoint: Endpoint,
    /// The ID and topology of this node.
    pub node: NodeArgs,
    /// Whether topology is reported: `--with-topology`.
    pub with_topology: bool,
    /// The driver's name.
    pub driver_name: DriverName,
    /// Maximum number of volumes on this node; 0: unlimited.
    pub max_volumes: u32,
}

impl<const AGENT: bool> DriverArgs<AGENT> {
    /// Returns the plugin capabilities. The controller and the node agent of a driver must report
    /// the same capabilities.
    #[must_use]
    pub fn plugin_capabilities(&self) -> Vec<PluginCapability> {
        let profile = self.kind.profile();
        let topology = self.with_topology.then_some(PluginCapability::Topology);
        let of_snapshots = topology.filter(|_| profile.place_is_node);
        let of_snapshots = of_snapshots.map(|_| PluginCapability::SnapshotTopology);
        let always = profile.capabilities.iter().copied();
        always.chain(topology).chain(of_snapshots).collect()
    }
}

/// A node's ID and matching topology: `--node-id` and `--with-topology`.
#[derive(Clone, Debug)]
pub struct NodeArgs {
    /// The ID; `None` if the node agent reads it from the cloud's metadata.
    pub id: Option<NodeId>,
    /// The name of the node in Kubernetes, if the node agent has it.
    pub name: Option<NodeId>,
    /// The topology of all volumes of this node; `None` if topology is not reported, or if the node
    /// agent reads it from the cloud's metadata as a zone.
    pub topology: Option<Topology>,
}

/// The flags from which [`DriverArgs`] is created, each parsed separately.
#[derive(clap::Args)]
struct DriverFlags {
    /// Kind of driver
    #[arg(
        long = "driver-kind",
        env = "BELAY_DRIVER_KIND",
        value_name = "KIND",
        value_enum,
        default_value = "local"
    )]
    kind: Kind,

    /// CSI socket: unix:///path/csi.sock or an absolute path
    #[arg(long, env = "CSI_ENDPOINT", value_name = "SOCKET")]
    endpoint: Endpoint,

    // Each program sets its own help text: NODE_ID_OF_AGENT or NODE_ID_OF_CONTROLLER.
    #[arg(long, env = "BELAY_NODE_ID", value_name = "ID", value_parser = node_id)]
    node_id: Option<NodeId>,

    /// Report topology, so that pods are scheduled to nodes that reach their volumes
    #[arg(long, env = "BELAY_WITH_TOPOLOGY", value_parser = BoolishValueParser::new())]
    with_topology: bool,

    /// Name of the driver [default: local.csi.belay.dev; openstack: cinder.csi.openstack.org;
    /// digitalocean: dobs.csi.digitalocean.com; nfs: nfs.csi.k8s.io; civo: csi.civo.com]
    #[arg(long, env = "BELAY_DRIVER_NAME", value_name = "NAME")]
    driver_name: Option<DriverName>,

    /// Maximum number of volumes on a node (0: unlimited) [default: 256 for openstack, 15 for
    /// digitalocean, 1024 for civo, else 0]
    #[arg(
        long,
        env = "BELAY_MAX_VOLUMES",
        value_name = "NUMBER",
        value_parser = max_volumes,
        allow_negative_numbers = true
    )]
    max_volumes: Option<u32>,
}

/// Parses the value of `--max-volumes`.
fn max_volumes(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| format!("must be a whole number from 0 (unlimited) to {}", u32::MAX))
}

/// Parses a node's ID or name from a flag.
///
/// # Errors
/// Returns the errors of [`NodeId::new`].
pub fn node_id(text: &str) -> Result<NodeId, Failure> {
    NodeId::new(text)
}

/// The help of `--node-id` of the node agent.
const NODE_ID_OF_AGENT: &str = "\
Id of this node: 1 to 256 bytes; for kind local with --with-topology a valid label value of at \
most 63. Kinds local and nfs: required unless --node-name is set, which is its default. Kinds \
openstack and digitalocean: read from the cloud's metadata by default. Kind civo: read from \
--instance-file by default, else --node-name";
/// The help of `--node-id` of the controller.
const NODE_ID_OF_CONTROLLER: &str = "\
Backend local with --with-topology, required without --nodes: id of the node with --state-dir, as \
its node agent has it: a valid label value of at most 63 bytes. Not needed otherwise";

/// Returns the default of `--node-id`: the name of the node, which a flag of the node agent sets.
fn node_name(matches: &ArgMatches, is_agent: bool) -> Result<NodeId, clap::Error> {
    let why = if is_agent {
        if let Some(name) = matches.get_one::<NodeId>(NODE_NAME) {
            return Ok(name.clone());
        }
        "--node-name <NAME> or --node-id <ID> is required"
    } else {
        "--node-id <ID> is required with --with-topology"
    };
    Err(clap::Error::raw(ErrorKind::MissingRequiredArgument, why))
}

impl<const AGENT: bool> FromArgMatches for DriverArgs<AGENT> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = DriverFlags::from_arg_matches(matches)?;
        let bad = |flag: &str, error: &dyn Display| {
            clap::Error::raw(ErrorKind::ValueValidation, format!("{flag}: {error}"))
        };
        let profile = flags.kind.profile();
        let has_metadata = AGENT && profile.metadata.is_some();
        // The controller of a cloud may run anywhere.
        let has_file = AGENT && profile.instance_file.is_some();
        let all_nodes = matches.try_get_one::<bool>(ALL_NODES).ok().flatten();
        let is_of_all_nodes = !AGENT && all_nodes.is_some_and(|is_set| *is_set);
        let with_topology = flags.with_topology || profile.always_topology || is_of_all_nodes;
        let has_place = profile.place_is_node && with_topology && !is_of_all_nodes;
        let needs_none = has_metadata || has_file || !AGENT && !has_place;
        let id = match flags.node_id {
            None if needs_none => None,
            None => Some(node_name(matches, AGENT)?),
            given => given,
        };
        if with_topology && !profile.may_report_topology() {
            let why = "its volumes are not bound to a node or a zone";
            return Err(bad("--with-topology", &why));
        }
        let place = id.as_ref().filter(|_| has_place);
        let topology = place.map(|id| Topology::new(profile.topology_key, id.as_str()));
        let topology = topology.transpose();
        let topology = topology.map_err(|error| bad("--node-id with --with-topology", &error))?;
        let name = match AGENT {
            true => matches.get_one::<NodeId>(NODE_NAME).cloned(),
            false => None,
        };
        let driver_name = match flags.driver_name {
            Some(name) => name,
            None => profile
                .name
                .parse()
                .map_err(|error| bad("the default driver name", &error))?,
        };
        Ok(Self {
            kind: flags.kind,
            endpoint: flags.endpoint,
            node: NodeArgs { id, name, topology },
            with_topology,
            driver_name,
            max_volumes: flags.max_volumes.unwrap_or(profile.volumes_max),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<const AGENT: bool> clap::Args for DriverArgs<AGENT> {
    fn augment_args(command: Command) -> Command {
        let help = match AGENT {
            true => NODE_ID_OF_AGENT,
            false => NODE_ID_OF_CONTROLLER,
        };
        DriverFlags::augment_args(command).mut_arg("node_id", |flag| flag.help(help))
    }

    fn augment_args_for_update(command: Command) -> Command {
        DriverFlags::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::LOCAL;
    use belay_server::config::parse_from;
    use belay_server::log::LogLevel;
    use clap::{CommandFactory as _, Parser};
    use std::ffi::OsString;

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
        assert_eq!(args.driver.kind, Kind::Local);
        assert_eq!(args.driver.driver_name.as_str(), "local.csi.belay.dev");
        assert_eq!(args.driver.max_volumes, 0);
        assert_eq!(args.driver.node.topology, None);
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
            ("driver-kind", "BELAY_DRIVER_KIND"),
            ("driver-name", "BELAY_DRIVER_NAME"),
            ("endpoint", "CSI_ENDPOINT"),
            ("grpc-health", "BELAY_GRPC_HEALTH"),
            ("grpc-reflection", "BELAY_GRPC_REFLECTION"),
            ("http-endpoint", "BELAY_HTTP_ENDPOINT"),
            ("log-format", "BELAY_LOG_FORMAT"),
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
            (
                ["--endpoint", "tcp://1.2.3.4:5"],
                "not the absolute path of a Unix socket",
            ),
            (["--node-id", ""], "--node-id"),
            (
                ["--driver-kind", "floppy"],
                "[possible values: local, openstack, digitalocean, nfs, civo]",
            ),
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
    fn with_topology_the_node_id_is_the_topology_of_its_volumes() {
        let args = parsed(&["--with-topology"]).unwrap();
        let segments = args.driver.node.topology.as_ref().unwrap().segments();
        assert_eq!(
            segments.get(LOCAL.topology_key).map(String::as_str),
            Some("n1")
        );
        let capabilities = args.driver.plugin_capabilities();
        assert!(capabilities.contains(&PluginCapability::Topology));
        assert!(capabilities.contains(&PluginCapability::SnapshotTopology));
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
    fn the_zone_of_a_cloud_is_not_the_nodes_id() {
        let openstack = ["--driver-kind=openstack"];
        let args = parsed(&openstack).unwrap();
        let id = args.driver.node.id.as_ref().map(NodeId::as_str);
        assert_eq!(id, Some("n1"));
        let alone = [
            "belay",
            "--endpoint",
            "/run/csi.sock",
            "--driver-kind=openstack",
        ];
        let alone = parse_from::<Args>(alone.map(OsString::from)).unwrap();
        assert_eq!(alone.common.driver.node.id, None, "a controller of a cloud");
        assert_eq!(args.driver.driver_name.as_str(), "cinder.csi.openstack.org");
        assert_eq!(args.driver.max_volumes, 256);
        let zoned = parsed(&["--driver-kind=openstack", "--with-topology"]).unwrap();
        assert_eq!(zoned.driver.node.topology, None, "the cloud has the zones");
        let capabilities = zoned.driver.plugin_capabilities();
        assert!(capabilities.contains(&PluginCapability::Topology));
        assert!(!capabilities.contains(&PluginCapability::SnapshotTopology));
    }

    #[test]
    fn a_needed_flag_without_a_value_is_asked_for() {
        let args = [
            "belay",
            "--endpoint",
            "/s",
            "--with-topology",
            "--node-id",
            "",
        ];
        let error = parse_from::<Args>(args.map(OsString::from)).unwrap_err();
        assert!(error.to_string().contains("--node-id <ID>"), "{error}");
    }
}
