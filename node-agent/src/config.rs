//! The command-line flags of the agent, for the process and for each driver.

mod check;
mod choices;
mod environment;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use belay_contract::drivers::{
    Metadata, MetadataSource, TRANSPORT_DISK, TRANSPORT_LOOP, TRANSPORT_NFS,
};
use belay_contract::flags::{DriverArgs, node_id};
use belay_server::config::{ProcessArgs, ended};
use belay_server::endpoint::Endpoint;
use belay_server::request::{AbsPath, NodeId};
use clap::builder::{Resettable, Str};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser};

use crate::device::DiskRules;
pub(crate) use choices::{DiskDir, Sandbox};
use choices::{Segment, Uncleared, UnknownContent, kubelet_dir};

/// The command-line argument that separates the flags of two drivers.
const NEXT_DRIVER: &str = "--next-driver";

const NODE_NAME_FLAG: &str = "--node-name";

/// Serves the CSI Node service of one node: stages and publishes volumes by system calls.
///
/// A volume is a file below --loop-dir, created by the controller (belay-controller), a disk that a
/// cloud attaches, or a directory of an NFS server: --driver-kind says which. Run it as root in the
/// mount namespace of the kubelet, or with mounts that propagate there. To serve several drivers,
/// separate their options with --next-driver.
#[derive(Clone, Debug, Parser)]
#[command(name = "belay-node", version)]
pub struct Config {
    /// The kubelet's root directory: paths outside it are rejected, and mounts in it must propagate
    /// to the kubelet
    #[arg(long, value_name = "DIR", env = "BELAY_KUBELET_DIR", value_parser = kubelet_dir)]
    pub kubelet_dir: Option<AbsPath>,

    /// Register with the kubelet in this plugins_registry, as seen by this program
    #[arg(long, value_name = "DIR", env = "BELAY_REGISTRATION_DIR")]
    pub registration_dir: Option<PathBuf>,

    /// Restrict the system calls of the agent, mkfs and e2fsck (seccomp)
    #[arg(
        long,
        value_name = "STATE",
        env = "BELAY_SANDBOX",
        value_enum,
        default_value = "on"
    )]
    pub sandbox: Sandbox,

    /// IDs of users that may call in addition to root, separated by commas; the mode of the socket
    /// must admit them, too
    #[arg(
        long,
        value_name = "UIDS",
        env = "BELAY_ALLOW_UID",
        value_delimiter = ',',
        value_parser = check::uid
    )]
    pub allow_uid: Vec<u32>,

    /// The flags of every process.
    #[command(flatten)]
    pub process: ProcessArgs,

    /// Start the options of another driver
    // This flag is here only for `--help`: the arguments are split at it before they are parsed.
    #[arg(long = "next-driver")]
    _next_driver: bool,

    /// The first driver, usually the only one.
    #[command(flatten)]
    first: Driver,

    /// Name of the node in Kubernetes: the default of --node-id, except for clouds; for kind civo
    /// after --instance-file
    // Declared after the drivers' flags, whose defaults depend on it: clap removes a value when it
    // reads it.
    #[arg(
        long,
        value_name = "NAME",
        env = "BELAY_NODE_NAME",
        value_parser = node_id,
        help_heading = Resettable::<Str>::Reset
    )]
    node_name: Option<NodeId>,

    /// The other drivers.
    #[arg(skip)]
    more: Vec<Driver>,
}

/// One driver of the agent.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Options of a driver")]
pub struct Driver {
    /// The flags that the driver's controller has, too.
    #[command(flatten)]
    pub common: DriverArgs<true>,

    /// Kind local, required: directory of the volumes' files, <state-dir>/volumes of the
    /// controller; several times, or with commas, for several disks of the node. NAME is the disk
    /// in the volume context [default: default]
    #[arg(
        long = "loop-dir",
        value_name = "[NAME=]DIR",
        env = "BELAY_LOOP_DIR",
        value_delimiter = ',',
        required_unless_present("kind"),
        required_if_eq("kind", "local")
    )]
    pub disk_dirs: Vec<DiskDir>,

    /// Path of --endpoint as the kubelet sees it; with --registration-dir
    #[arg(long, value_name = "SOCKET", env = "BELAY_KUBELET_REGISTRATION_PATH")]
    pub kubelet_registration_path: Option<Endpoint>,

    /// Kinds openstack and digitalocean: sources of the node's id and zone, tried in this order
    /// [default: configDrive,metadataService; digitalocean: metadataService]
    #[arg(
        long,
        value_name = "SOURCES",
        env = "BELAY_METADATA_SEARCH_ORDER",
        value_enum,
        value_delimiter = ','
    )]
    metadata_search_order: Vec<MetadataSource>,

    /// Kinds openstack and digitalocean: address of the metadata service [default:
    /// 169.254.169.254:80]
    #[arg(long, value_name = "IP:PORT", env = "BELAY_METADATA_ADDRESS")]
    pub(crate) metadata_address: Option<SocketAddr>,

    /// Kind openstack: topology that --with-topology reports for this node in addition to its zone,
    /// such as topology.kubernetes.io/region=one
    #[arg(
        long,
        value_name = "KEY=VALUE",
        env = "BELAY_ADDITIONAL_TOPOLOGY",
        value_delimiter = ','
    )]
    pub(crate) additional_topology: Vec<Segment>,

    /// Kind civo: file with the id and the region of this node [default: /etc/civostatsd]
    #[arg(long, value_name = "FILE", env = "BELAY_INSTANCE_FILE")]
    pub(crate) instance_file: Option<PathBuf>,

    /// Kinds of clouds, with --with-topology: zone of this node (its region for digitalocean and
    /// civo) if the metadata or --instance-file has none; with --node-id, no metadata are read
    #[arg(long, value_name = "ZONE", env = "BELAY_NODE_ZONE")]
    pub(crate) node_zone: Option<String>,

    /// Kinds of clouds: what to do with a blank disk if it is not known whether it contained data
    /// [default: prove]
    #[arg(long, value_name = "RULE", env = "BELAY_UNKNOWN_CONTENT", value_enum)]
    unknown_content: Option<UnknownContent>,

    /// Kinds of clouds: what to do with a new disk that the cloud has not cleared [default: refuse]
    #[arg(long, value_name = "RULE", env = "BELAY_UNCLEARED", value_enum)]
    uncleared: Option<Uncleared>,
}

/// A driver after the first one.
#[derive(Parser)]
struct NextDriver {
    #[command(flatten)]
    driver: Driver,

    /// The node id of the first section.
    #[arg(long, hide = true, value_parser = node_id)]
    node_name: Option<NodeId>,
}

impl Config {
    /// Parses the command-line arguments of this process.
    ///
    /// # Errors
    /// Returns the exit code of the process if the arguments are invalid, or after `--help`.
    pub fn parse() -> Result<Self, ExitCode> {
        Self::from_arguments(std::env::args_os()).map_err(|error| ended(&error))
    }

    /// Returns the drivers to serve, which is at least one driver.
    pub fn drivers(&self) -> impl Iterator<Item = &Driver> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Returns the environment variables that are set, but that no driver reads.
    pub(crate) fn ignored_variables(&self) -> Vec<&'static str> {
        environment::ignored(&self.drivers().collect::<Vec<_>>())
    }

    /// Returns `--node-name`, for messages; if it is not set, returns the driver's node ID. `None`
    /// if the ID is read from the cloud.
    pub(crate) fn node_name<'a>(&'a self, driver: &'a Driver) -> Option<&'a NodeId> {
        self.node_name.as_ref().or(driver.common.node.id.as_ref())
    }

    /// Returns the configuration of a process with these command-line arguments.
    #[cfg(test)]
    pub(crate) fn of_words(words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Self::from_arguments(words.into_iter().map(Into::into)).unwrap()
    }

    fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        let mut sections = arguments.split(|argument| argument == NEXT_DRIVER);
        let drivers = sections.clone().count();
        let first = sections.next().unwrap_or_default();
        let first = environment::parse(first.iter().cloned(), true, |it: &Self| &it.first);
        let mut config = first.map_err(|error| in_section(error, 1, drivers))?;
        for (section, at) in sections.zip(2..) {
            // The first argument is the program's name in the usage message.
            let begin = OsString::from(format!("belay-node ... {NEXT_DRIVER}"));
            let name = config.node_name.iter();
            let name = name.map(|name| OsString::from(format!("{NODE_NAME_FLAG}={name}")));
            let section = std::iter::once(begin)
                .chain(name)
                .chain(section.iter().cloned());
            let next = environment::parse(section, false, |it: &NextDriver| &it.driver);
            let next = next.map_err(|error| in_section(error, at, drivers))?;
            if next.node_name != config.node_name {
                let why = format!(
                    "{NODE_NAME_FLAG}: goes before the first {NEXT_DRIVER}, for all drivers"
                );
                return Err(bad_usage(why));
            }
            config.more.push(next.driver);
        }
        config.check().map_err(bad_usage)?;
        Ok(config)
    }

    /// Checks flags whose valid values depend on other flags.
    fn check(&self) -> Result<(), String> {
        let drivers: Vec<_> = self.drivers().collect();
        for (at, driver) in drivers.iter().enumerate() {
            self.check_registration(driver)?;
            let (profile, name) = (driver.common.kind.profile(), &driver.common.driver_name);
            driver
                .check_disk_dirs(profile)
                .and_then(|()| driver.check_disk_rules())
                .and_then(|()| driver.check_metadata(profile))
                .and_then(|()| driver.check_instance_file(profile))
                .and_then(|()| driver.check_zone(profile))
                .and_then(|()| driver.check_topology(profile))
                .map_err(|why| format!("{name}: {why}"))?;
            for earlier in &drivers[..at] {
                driver.check_beside(earlier)?;
            }
        }
        Ok(())
    }

    fn check_registration(&self, driver: &Driver) -> Result<(), String> {
        if self.registration_dir.is_some() == driver.kubelet_registration_path.is_some() {
            return Ok(());
        }
        let name = &driver.common.driver_name;
        Err(format!(
            "{name}: --registration-dir requires the driver's --kubelet-registration-path, and \
             vice versa"
        ))
    }
}

impl Driver {
    /// Whether the driver's volumes are disks.
    pub(crate) fn has_disks(&self) -> bool {
        self.common.kind.profile().transport == TRANSPORT_DISK
    }

    /// Whether the driver's volumes are files.
    fn has_files(&self) -> bool {
        self.common.kind.profile().transport == TRANSPORT_LOOP
    }

    /// Whether the driver's volumes are directories of a server.
    pub(crate) fn is_remote(&self) -> bool {
        self.common.kind.profile().transport == TRANSPORT_NFS
    }

    /// Returns the metadata sources in the order in which these are queried.
    pub(crate) fn search_order(&self, metadata: &Metadata) -> Vec<MetadataSource> {
        match &self.metadata_search_order[..] {
            [] => metadata.sources.to_owned(),
            order => order.to_owned(),
        }
    }

    /// Returns the rules for formatting disks.
    pub(crate) fn disk_rules(&self) -> DiskRules {
        DiskRules {
            proves_unknown: self.unknown_content != Some(UnknownContent::Refuse),
            accepts_uncleared: self.uncleared == Some(Uncleared::Accept),
        }
    }

    /// Checks that one process can serve both drivers.
    fn check_beside(&self, earlier: &Driver) -> Result<(), String> {
        let (name, earlier_name) = (&self.common.driver_name, &earlier.common.driver_name);
        if name == earlier_name {
            return Err(format!(
                "--driver-name: two drivers are {name}; give each its own name"
            ));
        }
        let endpoint = &self.common.endpoint;
        if *endpoint == earlier.common.endpoint {
            return Err(format!(
                "--endpoint: {earlier_name} and {name} both have {endpoint}; give each its own"
            ));
        }
        // Two different paths of the same directory are detected when the drivers start.
        let is_of_earlier = |it: &&DiskDir| earlier.disk_dirs.iter().any(|of| of.dir == it.dir);
        if let Some(both) = self.disk_dirs.iter().find(is_of_earlier) {
            let folder = both.dir.display();
            return Err(format!(
                "--loop-dir: {earlier_name} and {name} both have {folder}; give each its own"
            ));
        }
        Ok(())
    }
}

/// Adds the position of the driver on the command line to the error.
fn in_section(error: clap::Error, at: usize, drivers: usize) -> clap::Error {
    if drivers == 1 || !error.use_stderr() {
        return error;
    }
    let text = error.render().to_string();
    let what = text.strip_prefix("error: ").unwrap_or(&text);
    let what = format!("options of driver {at} of {drivers}: {what}");
    clap::Error::raw(error.kind(), what)
}

fn bad_usage(why: String) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, why).format(&mut Config::command())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_and_its_variable_are_in_the_documentation() {
        let documentation = include_str!("../../docs/configuration.md");
        let command = Config::command();
        let flags: Vec<_> = command
            .get_arguments()
            .filter(|a| a.get_env().is_some())
            .collect();
        assert_eq!(
            flags.len(),
            25,
            "a flag without an environment variable, or a new one"
        );
        for flag in flags {
            let name = flag.get_long().unwrap();
            let variable = flag.get_env().unwrap().to_str().unwrap();
            let mut rows = documentation.lines();
            let row = rows.find(|row| row.starts_with(&format!("| `--{name}` | ")));
            let row = row.unwrap_or_else(|| panic!("--{name}"));
            let is_named_like_the_flag =
                variable.replace('_', "-").to_lowercase() == format!("belay-{name}");
            assert!(
                is_named_like_the_flag || row.contains(&format!("`{variable}`")),
                "{row}"
            );
        }
    }

    const ONE: [&str; 9] = [
        "belay-node",
        "--registration-dir=/registry",
        "--driver-name=one.belay.dev",
        "--endpoint=/csi/one.sock",
        "--kubelet-registration-path=/plugins/one.sock",
        "--node-id=n1",
        "--loop-dir=/one",
        "--max-volumes=3",
        "--with-topology",
    ];

    const TWO: [&str; 6] = [
        NEXT_DRIVER,
        "--driver-name=two.belay.dev",
        "--endpoint=/csi/two.sock",
        "--kubelet-registration-path=/plugins/two.sock",
        "--node-id=n1",
        "--loop-dir=/two",
    ];

    fn parsed(arguments: impl IntoIterator<Item = &'static str>) -> Result<Config, String> {
        Config::from_arguments(arguments.into_iter().map(OsString::from))
            .map_err(|error| error.to_string())
    }

    /// Returns the error for two drivers after one argument of the second driver was replaced.
    fn refused(without: &str, more: &'static str) -> String {
        let two = TWO
            .into_iter()
            .filter(|argument| !argument.starts_with(without));
        parsed(ONE.into_iter().chain(two).chain([more])).unwrap_err()
    }

    #[test]
    fn an_error_names_the_driver_if_there_are_several() {
        let bad = |arguments: &[&'static str], flag: &str, to: &'static str| {
            let at = arguments.iter().position(|it| it.starts_with(flag));
            let mut arguments = arguments.to_vec();
            arguments[at.unwrap()] = to;
            arguments
        };
        for to in ["--node-id=", "--max-volumes=x", "--unknown"] {
            let first = bad(&ONE, "--node-id", to);
            let second = bad(&TWO, "--node-id", to);
            let only = parsed(first.clone()).unwrap_err();
            assert!(!only.contains("driver 1"), "{only}");
            for (arguments, at) in [
                ([&first[..], &TWO[..]].concat(), 1),
                ([&ONE[..], &second[..]].concat(), 2),
            ] {
                let error = parsed(arguments).unwrap_err();
                let begin = format!("error: options of driver {at} of 2: ");
                assert!(error.starts_with(&begin), "{error}");
                assert!(!error.contains("belay-node-agent"), "{error}");
            }
        }
    }

    fn names(config: &Config) -> Vec<&str> {
        let drivers = config.drivers();
        drivers
            .map(|driver| driver.common.driver_name.as_str())
            .collect()
    }

    #[test]
    fn each_driver_has_the_options_that_follow_its_beginning() {
        let config = parsed(ONE.into_iter().chain(TWO)).unwrap();
        assert_eq!(names(&config), ["one.belay.dev", "two.belay.dev"]);
        let [one, two] = config.drivers().collect::<Vec<_>>()[..] else {
            panic!("{config:?}")
        };
        assert_eq!((one.common.max_volumes, two.common.max_volumes), (3, 0));
        assert!(one.common.node.topology.is_some() && two.common.node.topology.is_none());
        assert_eq!(two.disk_dirs, [folder("default", "/two")]);
        assert_eq!(names(&parsed(ONE).unwrap()), ["one.belay.dev"]);
    }

    fn folder(disk: &str, dir: &str) -> DiskDir {
        let (disk, dir) = (disk.to_owned(), PathBuf::from(dir));
        DiskDir { disk, dir }
    }

    #[test]
    fn a_driver_of_files_has_a_directory_for_each_disk() {
        let more = ["--loop-dir=fast=/fast,slow=slow", "--loop-dir=/a=b"];
        let driver = parsed(ONE.into_iter().chain([more[0]])).unwrap().first;
        let all = [("default", "/one"), ("fast", "/fast"), ("slow", "slow")];
        assert_eq!(driver.disk_dirs, all.map(|(disk, dir)| folder(disk, dir)));
        for (more, why) in [
            (more[1], "/a=b: this disk or this directory is given twice"),
            ("--loop-dir=fast=/one", "fast=/one: this disk or this"),
            ("--loop-dir=Fast=/fast", "disk name \"Fast\": use lowercase"),
        ] {
            let error = parsed(ONE.into_iter().chain([more])).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let of_cloud = CLOUD.into_iter().chain(["--loop-dir=/one"]);
        let error = parsed(of_cloud).unwrap_err();
        let why = "--loop-dir: does not apply: its volumes are not files on this node";
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_driver_of_disks_stands_beside_one_of_files() {
        let disks = [
            NEXT_DRIVER,
            "--driver-kind=openstack",
            "--endpoint=/csi/cinder.sock",
            "--kubelet-registration-path=/plugins/cinder.sock",
        ];
        let id = "--node-id=7f8b1c2d";
        let config = parsed(ONE.into_iter().chain(disks).chain([id])).unwrap();
        assert_eq!(
            names(&config),
            ["one.belay.dev", "cinder.csi.openstack.org"]
        );
        let dirs: Vec<_> = config.drivers().map(|it| it.disk_dirs.len()).collect();
        assert_eq!(dirs, [1, 0]);
    }

    const CLOUD: [&str; 3] = [
        "belay-node",
        "--driver-kind=openstack",
        "--endpoint=/cinder.sock",
    ];

    #[test]
    fn the_flags_of_a_cloud_may_lack_the_nodes_id() {
        let config = parsed(CLOUD.into_iter().chain(["--with-topology"])).unwrap();
        let common = &config.first.common;
        assert!(common.node.id.is_none() && common.node.topology.is_none());
        assert!(common.with_topology);
        // The name of a node in Kubernetes differs from its ID in the cloud.
        let config = parsed(CLOUD.into_iter().chain(["--node-name=n1"])).unwrap();
        assert!(config.first.common.node.id.is_none());
    }

    #[test]
    fn an_additional_topology_is_for_openstack_with_topology_and_has_other_keys_than_the_zone() {
        for (flags, why) in [
            (
                &["--additional-topology=a=b"][..],
                "requires --with-topology",
            ),
            (
                &[
                    "--with-topology",
                    "--additional-topology=topology.cinder.csi.openstack.org/zone=b",
                ],
                "is the key of the node's zone",
            ),
            (
                &["--with-topology", "--additional-topology=a=b,c=d,a=e"],
                "a is given twice",
            ),
            (
                &[
                    "--with-topology",
                    "--additional-topology=a=b,topology.kubernetes.io/rack=c",
                ],
                "--additional-topology: topology.kubernetes.io/rack: a kubelet may not set",
            ),
            (
                &["--with-topology", "--additional-topology=a"],
                "not KEY=VALUE",
            ),
            (
                &[
                    "--driver-kind=digitalocean",
                    "--with-topology",
                    "--additional-topology=a=b",
                ],
                "it is for kind openstack",
            ),
        ] {
            let base = match flags[0].starts_with("--driver-kind") {
                true => &[CLOUD[0], CLOUD[2]][..],
                false => &CLOUD,
            };
            let error = parsed(base.iter().chain(flags).copied()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_zone_is_for_clouds_with_topology_and_a_value_of_a_label() {
        for (kind, more, why) in [
            ("--driver-kind=nfs", &["--node-id=n"][..], "does not apply"),
            ("--driver-kind=civo", &[], "requires --with-topology"),
            (
                "--driver-kind=openstack",
                &["--with-topology", "--node-zone=-"],
                "--node-zone: \"-\": cannot be a topology value",
            ),
        ] {
            let flags = [CLOUD[0], kind, CLOUD[2], "--node-zone=z1"].into_iter();
            // If a row sets --node-zone, its value replaces this value.
            let flags = flags.filter(|flag| more.len() < 2 || *flag != "--node-zone=z1");
            let error = parsed(flags.chain(more.iter().copied())).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_sources_of_metadata_have_the_order_of_the_flag() {
        let metadata = belay_contract::drivers::OPENSTACK.metadata.unwrap();
        let order = |flags: &[&'static str]| {
            let config = parsed(CLOUD.into_iter().chain(flags.iter().copied()))?;
            Ok::<_, String>(config.first.search_order(metadata))
        };
        let (drive, service) = (MetadataSource::ConfigDrive, MetadataSource::Service);
        assert_eq!(order(&[]), Ok(vec![drive, service]));
        let flag = "--metadata-search-order=metadataService,configDrive";
        assert_eq!(order(&[flag]), Ok(vec![service, drive]));
        assert_eq!(
            order(&["--metadata-search-order=metadataService"]),
            Ok(vec![service])
        );
        for (flag, why) in [
            (
                "--metadata-search-order=floppy",
                "configDrive, metadataService",
            ),
            (
                "--metadata-search-order=configDrive,configDrive",
                "configDrive is given twice",
            ),
            ("--metadata-address=metadata.local", "--metadata-address"),
        ] {
            let error = order(&[flag]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let civo = [
            "belay-node",
            "--driver-kind=civo",
            "--node-id=n",
            "--endpoint=/csi/civo.sock",
        ];
        for other in [ONE.to_vec(), civo.to_vec()] {
            let other = other.into_iter().chain(["--metadata-address=[::1]:80"]);
            assert!(parsed(other).unwrap_err().contains("do not apply"));
        }
    }

    #[test]
    fn each_driver_may_know_the_node_by_an_id_of_its_own() {
        let one = ONE.into_iter().filter(|it| !it.starts_with("--node-id"));
        let one = one.chain(["--node-name=n1"]);
        let two = TWO.map(|it| {
            if it == "--node-id=n1" {
                "--node-id=4711"
            } else {
                it
            }
        });
        let three = [
            "--driver-name=three.belay.dev",
            "--endpoint=/three",
            "--loop-dir=/three",
        ];
        let three = [NEXT_DRIVER].into_iter().chain(three);
        let three = three.chain(["--kubelet-registration-path=/three", "--with-topology"]);
        let config = parsed(one.chain(two).chain(three)).unwrap();
        let ids = config
            .drivers()
            .map(|driver| driver.common.node.id.as_ref().unwrap().as_str());
        assert_eq!(ids.collect::<Vec<_>>(), ["n1", "4711", "n1"]);
        let places = config.drivers().map(|driver| {
            let place = driver.common.node.topology.as_ref();
            place.map(|place| place.segments().into_values().collect::<Vec<_>>())
        });
        let n1 = || Some(vec!["n1".to_owned()]);
        assert_eq!(places.collect::<Vec<_>>(), [n1(), None, n1()]);
        assert!(
            config
                .drivers()
                .all(|driver| config.node_name(driver).unwrap().as_str() == "n1")
        );
    }

    #[test]
    fn the_nodes_name_is_told_once_and_an_id_or_the_name_is_needed() {
        let error = refused("none", "--node-name=n1");
        assert!(
            error.contains("goes before the first --next-driver"),
            "{error}"
        );
        let nameless = ONE.into_iter().filter(|it| !it.starts_with("--node-id"));
        let error = parsed(nameless).unwrap_err();
        let why = "--node-name <NAME> or --node-id <ID> is required";
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn drivers_that_would_be_in_each_others_way_are_refused() {
        for (without, more, why) in [
            (
                "--driver-name",
                "--driver-name=one.belay.dev",
                "two drivers are one.belay.dev",
            ),
            (
                "--endpoint",
                "--endpoint=unix:///csi/one.sock",
                "both have unix:///csi/one.sock",
            ),
            ("--loop-dir", "--loop-dir=/one", "both have /one"),
            (
                "--kubelet-reg",
                "--max-volumes=1",
                "two.belay.dev: --registration-dir requires",
            ),
            (
                "--loop-dir",
                "--max-volumes=1",
                "options of driver 2 of 2: the following required arguments were not provided:",
            ),
            (
                "none",
                "--driver-kind=tape",
                "[possible values: local, openstack, digitalocean, nfs, civo]",
            ),
            (
                "none",
                "--log-level=info",
                "unexpected argument '--log-level'",
            ),
        ] {
            let error = refused(without, more);
            assert!(error.contains(why), "{error}");
        }
        let path_alone = ONE
            .into_iter()
            .filter(|it| !it.starts_with("--registration-dir"));
        let error = parsed(path_alone).unwrap_err();
        assert!(
            error.contains("one.belay.dev: --registration-dir requires"),
            "{error}"
        );
    }
}
