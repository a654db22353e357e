//! The settings of belay-controller, from flags or environment variables. This module opens no
//! file, and resolves only two paths.

mod environment;
mod nfs;

use crate::backend::digitalocean::{self, TokenSource};
use crate::backend::local::{self, Overcommit};
use crate::backend::registry::Choice;
use crate::backend::{civo, nodes, openstack};
use crate::kubernetes::{ACCOUNT_DIR, Access};
use crate::mark_keys::MarkKeys;
use crate::operation::Rules;
use belay_contract::drivers::Kind;
use belay_contract::flags::CommonArgs;
use belay_server::config::ended;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::error::ErrorKind;
use clap::{Arg, CommandFactory as _, ValueEnum as _};
use nfs::NfsArgs;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The controller of a Belay CSI driver: creates, attaches, expands and deletes volumes.
///
/// --backend selects the storage. `local` keeps volumes as files in --state-dir, and runs on the
/// node of that directory; with --nodes, it serves all nodes of a cluster, and runs anywhere. `nfs`
/// creates directories on the NFS servers that the StorageClasses name; it needs CAP_SYS_ADMIN to
/// mount them, and no other process sees the mounts. The clouds run anywhere, in any number of
/// replicas. `openstack` creates volumes in Cinder and attaches them by Nova, with the credentials
/// in --cloud-config. `digitalocean` needs --region, and a token in --token-file or in
/// DIGITALOCEAN_ACCESS_TOKEN. `civo` needs an API key in --civo-access or in CIVO_API_KEY.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "belay-controller", version, mut_arg("kind", backend))]
pub struct Config {
    /// The flags of both programs.
    #[command(flatten)]
    pub common: CommonArgs,

    /// GID of a group that may connect to the socket
    #[arg(long, env = "BELAY_ENDPOINT_GROUP", value_name = "GID")]
    pub endpoint_group: Option<u32>,

    /// Backend local, required: directory of state and volumes (volumes in <DIR>/volumes)
    #[arg(long, env = "BELAY_STATE_DIR", value_name = "DIR")]
    pub state_dir: Option<PathBuf>,

    /// Backend local: exit if --state-dir has no state, instead of creating it
    #[arg(long, env = "BELAY_REQUIRE_STATE")]
    pub require_state: bool,

    /// Backend local: maximum ratio of provisioned to actual space in the state directory
    #[arg(
        long,
        env = "BELAY_OVERCOMMIT",
        value_name = "FACTOR",
        default_value = "1"
    )]
    pub overcommit: Overcommit,

    /// Backend local: serve the volumes of all nodes of the cluster, whose stores take their orders
    /// from the API server; without --state-dir
    #[arg(long, env = "BELAY_NODES")]
    pub nodes: bool,

    /// Backend local with --nodes: directory with `token` and `ca.crt` of the service account
    /// [default: /var/run/secrets/kubernetes.io/serviceaccount]
    #[arg(long, env = "BELAY_ACCOUNT_DIR", value_name = "DIR")]
    pub account_dir: Option<PathBuf>,

    /// Backend openstack, required: cloud.conf, with the credentials of the cloud; if given several
    /// times, or with commas, a key of a later file counts
    #[arg(
        long,
        env = "BELAY_CLOUD_CONFIG",
        value_name = "FILE",
        value_delimiter = ','
    )]
    pub cloud_config: Vec<PathBuf>,

    /// Backend openstack: name of a section `[Global "NAME"]` of cloud.conf, instead of [Global];
    /// several times, or with commas, for several clouds
    ///
    /// The key `cloud` in the secrets of a call names the section. Calls without it are for
    /// [Global], which an empty name between commas adds: --cloud-name=,region-two.
    #[arg(long, env = "BELAY_CLOUD_NAME", value_name = "NAME")]
    pub cloud_name: Vec<String>,

    /// Backends of clouds: keys of the format marks on disks, one a line; the first is used
    ///
    /// Each has at least 32 characters. With them, a mkfs that was interrupted is run again;
    /// without them, an operator must decide. Keep keys that were used as further lines. Read again
    /// at each attachment.
    #[arg(long, env = "BELAY_MARK_KEY_FILE", value_name = "FILE")]
    pub mark_key_file: Option<PathBuf>,

    /// Backends of clouds: name of the cluster, recorded in the metadata or a tag of each volume
    #[arg(
        long,
        env = "BELAY_CLUSTER",
        value_name = "NAME",
        default_value = "kubernetes"
    )]
    pub cluster: String,

    /// Backend digitalocean: file with the token of the API [default: the token in the variable
    /// DIGITALOCEAN_ACCESS_TOKEN]
    ///
    /// It is read again when the API refuses the token.
    #[arg(long, env = "BELAY_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Backend digitalocean: URL of the API [default: https://api.digitalocean.com]
    #[arg(long, env = "BELAY_API_URL", value_name = "URL")]
    pub api_url: Option<String>,

    /// Backend digitalocean, required: region of the volumes
    #[arg(long, env = "BELAY_REGION", value_name = "SLUG")]
    pub region: Option<String>,

    /// Backend digitalocean: a further tag of new volumes and snapshots, and of attached volumes
    #[arg(long, env = "BELAY_TAG", value_name = "TAG")]
    pub tag: Option<String>,

    /// Backend civo: directory with the Secret civo-api-access: api-key, api-url, region,
    /// cluster-id, namespace
    ///
    /// A file there takes precedence over the flag or variable of the same value. A new key is read
    /// when Civo refuses the old one. The key is never a flag: without this directory, it is the
    /// variable CIVO_API_KEY.
    #[arg(long, env = "BELAY_CIVO_ACCESS", value_name = "DIR")]
    pub civo_access: Option<PathBuf>,

    /// Backend civo: URL of the API [default: https://api.civo.com]
    #[arg(long, env = "CIVO_API_URL", value_name = "URL")]
    pub civo_api_url: Option<String>,

    /// Backend civo, required: region of the cluster, such as LON1
    #[arg(long, env = "CIVO_REGION", value_name = "REGION")]
    pub civo_region: Option<String>,

    /// Backend civo, required: ID of the cluster at Civo
    #[arg(long, env = "CIVO_CLUSTER_ID", value_name = "ID")]
    pub civo_cluster_id: Option<String>,

    /// Backend civo: namespace that Civo records for each volume
    #[arg(long, env = "CIVO_NAMESPACE", value_name = "NAME")]
    pub civo_namespace: Option<String>,

    /// The flags of the backend nfs.
    #[command(flatten)]
    pub nfs: NfsArgs,
}

/// The environment variable with the API token, as in csi-digitalocean.
const DIGITALOCEAN_TOKEN: &str = "DIGITALOCEAN_ACCESS_TOKEN";
/// The environment variable with the key of Civo's API.
const CIVO_API_KEY: &str = "CIVO_API_KEY";

/// Renames the flag for the kind of driver to `--backend`.
fn backend(kind: Arg) -> Arg {
    let backends = Kind::BACKENDS.iter().filter_map(Kind::to_possible_value);
    let backends = PossibleValuesParser::new(backends);
    kind.long("backend")
        .value_parser(backends.try_map(|name| Kind::from_str(&name, false)))
        .env("BELAY_BACKEND")
        .value_name("NAME")
        .help("Backend of the volumes")
}

/// Returns the value of a flag that this backend requires.
fn required<T: Clone>(flag: &str, value: Option<&T>, kind: Kind) -> Result<T, String> {
    let missing = || format!("{flag} is required for --backend {}", name(kind));
    value.cloned().ok_or_else(missing)
}

/// Returns both values, or all errors together, so that an operator can correct all of them at
/// once.
fn both<A, B>(one: Result<A, String>, other: Result<B, String>) -> Result<(A, B), String> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(one), Err(other)) => Err(format!("{one}; {other}")),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

fn name(kind: Kind) -> String {
    let value = kind.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Config {
    /// Parses the flags of this process; see [`ended`] for the exit code on failure.
    ///
    /// # Errors
    /// Returns the exit code of the process.
    pub fn parse() -> Result<Self, ExitCode> {
        Self::from_arguments(std::env::args_os()).map_err(|error| ended(&error))
    }

    fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut arguments: Vec<_> = arguments.into_iter().collect();
        let (config, endpoint): (Self, _) = match environment::parse(arguments.clone()) {
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
                // Parse the remaining flags, so that the error also names the backend's missing
                // flags.
                arguments.push("--endpoint=/absent".into());
                let rest = environment::parse(arguments).map_err(|_| error)?;
                (rest, Err("--endpoint <SOCKET> is required".to_owned()))
            }
            parsed => (parsed?, Ok(())),
        };
        let bad_usage = |why| {
            let error = clap::Error::raw(ErrorKind::ValueValidation, why);
            error.format(&mut Self::command())
        };
        both(endpoint, config.choice()).map_err(bad_usage)?;
        Ok(config)
    }

    /// Returns the backend to open, with its settings.
    ///
    /// # Errors
    /// Returns a message if a required flag is missing, or if a flag of a different backend is set;
    /// the message names the flag.
    pub fn choice(&self) -> Result<Choice, String> {
        let driver = &self.common.driver;
        let kind = driver.kind;
        for (flag, is_set, kinds) in self.flags_of_backends() {
            if is_set && !kinds.contains(&kind) {
                return Err(format!(
                    "{flag} has no effect for --backend {}; remove it",
                    name(kind)
                ));
            }
        }
        match kind {
            Kind::Local if self.nodes => self.all_nodes().map(Choice::Nodes),
            Kind::Local => Ok(Choice::Local(local::Config {
                state_dir: required("--state-dir <DIR>", self.state_dir.as_ref(), kind)?,
                place: driver.node.topology.clone(),
                overcommit: self.overcommit,
                keeps_intents: false,
                require_state: self.require_state,
            })),
            Kind::Openstack => {
                let files = Some(&self.cloud_config).filter(|files| !files.is_empty());
                Ok(Choice::Openstack(openstack::Config {
                    files: required("--cloud-config <FILE>", files, kind)?,
                    clouds: self.clouds(),
                    cluster: self.cluster.clone(),
                    topology_key: driver.with_topology.then_some(kind.profile().topology_key),
                    volumes_max: driver.max_volumes,
                }))
            }
            Kind::Digitalocean => self.digitalocean(kind).map(Choice::DigitalOcean),
            Kind::Nfs => Ok(Choice::Nfs(self.nfs.config())),
            Kind::Civo => Ok(Choice::Civo(self.civo())),
        }
    }

    /// Returns the flags that affect only some backends. Each entry has the flag, whether it is
    /// set, and the backends that it affects.
    fn flags_of_backends(&self) -> impl Iterator<Item = (&'static str, bool, &'static [Kind])> {
        const LOCAL: &[Kind] = &[Kind::Local];
        const OPENSTACK: &[Kind] = &[Kind::Openstack];
        const DIGITALOCEAN: &[Kind] = &[Kind::Digitalocean];
        const CIVO: &[Kind] = &[Kind::Civo];
        const CLOUDS: &[Kind] = &[Kind::Openstack, Kind::Digitalocean, Kind::Civo];
        const NFS: &[Kind] = &[Kind::Nfs];
        let flags = [
            ("--state-dir", self.state_dir.is_some(), LOCAL),
            ("--require-state", self.require_state, LOCAL),
            ("--nodes", self.nodes, LOCAL),
            ("--account-dir", self.account_dir.is_some(), LOCAL),
            ("--cloud-config", !self.cloud_config.is_empty(), OPENSTACK),
            ("--cloud-name", !self.cloud_name.is_empty(), OPENSTACK),
            ("--mark-key-file", self.mark_key_file.is_some(), CLOUDS),
            ("--token-file", self.token_file.is_some(), DIGITALOCEAN),
            ("--api-url", self.api_url.is_some(), DIGITALOCEAN),
            ("--region", self.region.is_some(), DIGITALOCEAN),
            ("--tag", self.tag.is_some(), DIGITALOCEAN),
            ("--civo-access", self.civo_access.is_some(), CIVO),
        ];
        let of_nfs = self.nfs.set().map(|(flag, is_set)| (flag, is_set, NFS));
        flags.into_iter().chain(of_nfs)
    }

    /// Returns the access to the API server, and the name of the driver.
    fn all_nodes(&self) -> Result<nodes::Config, String> {
        if self.state_dir.is_some() || self.require_state {
            let why = "--state-dir and --require-state have no effect with --nodes; remove them";
            return Err(why.to_owned());
        }
        let account = self.account_dir.as_deref();
        let account = account.unwrap_or_else(|| Path::new(ACCOUNT_DIR));
        let access = Access::of_pod(account, |name| std::env::var(name).ok());
        Ok(nodes::Config {
            access: access.map_err(|failure| failure.message)?,
            driver: self.common.driver.driver_name.as_str().to_owned(),
        })
    }

    /// Returns the names of clouds. An empty name between commas means [Global].
    fn clouds(&self) -> Vec<String> {
        let names = self.cloud_name.iter().flat_map(|names| names.split(','));
        names.map(str::to_owned).collect()
    }

    fn civo(&self) -> civo::Config {
        let driver = &self.common.driver;
        let key = driver.kind.profile().topology_key;
        let value = std::env::var(CIVO_API_KEY).ok();
        civo::Config {
            sources: civo::Sources {
                dir: self.civo_access.clone(),
                key: value.as_deref().map(civo::ApiKey::new),
                url: self.civo_api_url.clone(),
                region: self.civo_region.clone(),
                cluster: self.civo_cluster_id.clone(),
                namespace: self.civo_namespace.clone(),
            },
            topology_key: driver.with_topology.then_some(key),
        }
    }

    fn digitalocean(&self, kind: Kind) -> Result<digitalocean::Config, String> {
        let token = match &self.token_file {
            Some(file) => Ok(TokenSource::File(file.clone())),
            None => std::env::var(DIGITALOCEAN_TOKEN)
                .map(TokenSource::Given)
                .map_err(|_| {
                    format!(
                        "--token-file <FILE> or {DIGITALOCEAN_TOKEN} is required for --backend {}",
                        name(kind)
                    )
                }),
        };
        let region = required("--region <SLUG>", self.region.as_ref(), kind);
        let (token, region) = both(token, region)?;
        let url = self.api_url.clone();
        Ok(digitalocean::Config {
            url: url.unwrap_or_else(|| digitalocean::URL.to_owned()),
            token,
            region,
            cluster: self.cluster.clone(),
            tag: self.tag.clone(),
            topology_key: kind.profile().topology_key,
        })
    }

    /// Refuses a socket directly in the state directory: the lock on the directory, which excludes
    /// a second controller, would also prevent the creation of the socket.
    ///
    /// # Errors
    /// Returns a message with both flags and the remedy.
    pub fn refuse_socket_in_state_dir(&self) -> Result<(), String> {
        let socket = &self.common.driver.endpoint.path;
        let real = |path: &Path| path.canonicalize().ok();
        let folder = socket.parent().and_then(real);
        if folder.is_none() || folder != self.state_dir.as_deref().and_then(real) {
            return Ok(());
        }
        Err(format!(
            "--endpoint {}: is in --state-dir, which the controller keeps locked; give the \
             socket its own directory",
            socket.display()
        ))
    }

    /// Returns the rules for the operations.
    ///
    /// # Errors
    /// Returns a message if the file of [`Config::mark_key_file`] has no valid keys.
    pub fn rules(&self) -> Result<Rules, String> {
        let mark_keys = self.mark_key_file.as_deref().map(MarkKeys::read);
        let profile = self.common.driver.kind.profile();
        let driver = self.common.driver.driver_name.as_str();
        Ok(Rules {
            profile: *profile,
            disk_name_key: profile.disk_name_key.map(|key| format!("{driver}/{key}")),
            mark_keys: mark_keys.transpose()?.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: [&str; 4] = ["--node-id", "node-1", "--state-dir", "/d"];
    const CLOUD: [&str; 3] = ["--backend=openstack", "--cloud-config", "/c/cloud.conf"];

    fn with(flags: &[&str]) -> Result<Config, String> {
        let program = ["belay-controller", "--endpoint", "/run/csi.sock"];
        let words = program.iter().chain(flags).map(OsString::from);
        Config::from_arguments(words).map_err(|error| error.to_string())
    }

    fn parsed(more: &[&str]) -> Result<Config, String> {
        with(&[&LOCAL, more].concat())
    }

    fn local(config: &Config) -> local::Config {
        let Ok(Choice::Local(local)) = config.choice() else {
            panic!("{config:?}");
        };
        local
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = parsed(&[]).unwrap();
        assert_eq!(config.common.driver.kind, Kind::Local);
        assert_eq!(config.overcommit, Overcommit::default());
        assert_eq!(local(&config).place, None);
    }

    #[test]
    fn a_cloud_needs_its_credentials_and_no_node_and_no_directory() {
        let config = with(&CLOUD).unwrap();
        let Ok(Choice::Openstack(cloud)) = config.choice() else {
            panic!("{config:?}");
        };
        assert_eq!(cloud.files, [Path::new("/c/cloud.conf")]);
        assert!(cloud.clouds.is_empty());
        let names = ["--cloud-name=a,,b", "--cloud-config=/c/more"];
        let several = with(&[&CLOUD[..], &names].concat()).unwrap();
        let Ok(Choice::Openstack(several)) = several.choice() else {
            panic!("{several:?}");
        };
        assert_eq!(several.clouds, ["a", "", "b"]);
        assert_eq!(several.files.last().unwrap(), Path::new("/c/more"));
        assert_eq!(cloud.cluster, "kubernetes");
        assert_eq!(cloud.topology_key, None);
        let zoned = with(&[&CLOUD[..], &["--with-topology"]].concat()).unwrap();
        let Ok(Choice::Openstack(zoned)) = zoned.choice() else {
            panic!("{zoned:?}");
        };
        let key = "topology.cinder.csi.openstack.org/zone";
        assert_eq!(zoned.topology_key, Some(key));
        for (flags, why) in [
            (
                &CLOUD[..1],
                "--cloud-config <FILE> is required for --backend openstack",
            ),
            (&[&CLOUD[..], &LOCAL].concat(), "--state-dir has no effect"),
            (
                &[&CLOUD[..], &["--require-state"]].concat(),
                "--require-state has no effect",
            ),
            (
                &[&LOCAL[..], &CLOUD[1..]].concat(),
                "--cloud-config has no effect",
            ),
            (
                &[&LOCAL[..], &["--mark-key-file", "/c/keys"]].concat(),
                "--mark-key-file has no effect",
            ),
            (
                &LOCAL[..2],
                "--state-dir <DIR> is required for --backend local",
            ),
            (
                &[&LOCAL[2..], &["--with-topology"]].concat(),
                "--node-id <ID> is required",
            ),
        ] {
            let error = with(flags).unwrap_err();
            assert!(error.contains(why), "{flags:?}: {error}");
            assert!(!error.contains("--node-name"), "{flags:?}: {error}");
        }
    }

    #[test]
    fn digitalocean_needs_a_token_and_a_region_and_no_droplet() {
        let flags = ["--backend=digitalocean", "--token-file=/t", "--region=fra1"];
        let config = with(&flags).unwrap();
        let Ok(Choice::DigitalOcean(cloud)) = config.choice() else {
            panic!("{config:?}");
        };
        assert_eq!(cloud.url, "https://api.digitalocean.com");
        assert_eq!(
            (cloud.region.as_str(), cloud.topology_key),
            ("fra1", "region")
        );
        let key = config.rules().unwrap().disk_name_key.unwrap();
        assert_eq!(key, "dobs.csi.digitalocean.com/volume-name");
        let topology = belay_server::identity::PluginCapability::Topology;
        assert!(
            config
                .common
                .driver
                .plugin_capabilities()
                .contains(&topology)
        );
        let old = with(&[&flags[..], &["--driver-name=com.digitalocean.csi.dobs"]].concat());
        let key = old.unwrap().rules().unwrap().disk_name_key.unwrap();
        assert_eq!(key, "com.digitalocean.csi.dobs/volume-name");
        for (flags, why) in [
            (&flags[..2], "--region <SLUG> is required"),
            (
                &flags[..1],
                "is required for --backend digitalocean; --region <SLUG> is required",
            ),
            (
                &[flags[0], flags[2]][..],
                "DIGITALOCEAN_ACCESS_TOKEN is required",
            ),
            (&[&flags[..], &LOCAL].concat(), "--state-dir has no effect"),
            (
                &[&CLOUD[..], &flags[2..]].concat(),
                "--region has no effect",
            ),
        ] {
            let error = with(flags).unwrap_err();
            assert!(error.contains(why), "{flags:?}: {error}");
        }
    }

    #[test]
    fn all_missing_flags_of_a_backend_are_named_at_once() {
        for (flags, missing) in [
            (&[][..], &["--state-dir <DIR>"][..]),
            (&["--backend=openstack"], &["--cloud-config <FILE>"]),
            (
                &["--backend=digitalocean"],
                &["--token-file <FILE>", "--region <SLUG>"],
            ),
            (&["--backend=nfs"], &[]),
        ] {
            let words = ["belay-controller"].iter().chain(flags);
            let error = Config::from_arguments(words.map(OsString::from));
            let error = error.unwrap_err().to_string();
            for flag in ["--endpoint <SOCKET> is required"].iter().chain(missing) {
                assert!(error.contains(flag), "{flags:?}: {error}");
            }
        }
    }

    #[test]
    fn nfs_has_its_flags_and_no_other_backend_has_them() {
        let flags = [
            "--backend=nfs",
            "--nfs-mount-permissions=0770",
            "--nfs-default-on-delete=Archive",
            "--nfs-adopt",
            "--nfs-mount-options=nfsvers=3,nolock",
        ];
        let Ok(Choice::Nfs(config)) = with(&flags).unwrap().choice() else {
            panic!("{flags:?}");
        };
        assert_eq!(config.permissions.bits(), Some(0o770));
        assert_eq!(config.on_delete.to_string(), "archive");
        assert!(config.adopts);
        assert_eq!(config.mount_options, "nfsvers=3,nolock".parse().unwrap());
        for flag in &flags[1..] {
            let error = parsed(&[flag]).unwrap_err();
            assert!(
                error.contains("has no effect for --backend local"),
                "{error}"
            );
        }
        for (flag, why) in [
            ("--nfs-mount-permissions=9", "is not an octal mode"),
            ("--nfs-mount-options=remount", "\"remount\" is not accepted"),
            ("--nfs-mount-permissions=10000", "is not an octal mode"),
            (
                "--nfs-default-on-delete=keep",
                "not one of delete, retain, archive",
            ),
            ("--cloud-config=/c", "--cloud-config has no effect"),
        ] {
            let error = with(&[flags[0], flag]).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_socket_in_the_state_directory_itself_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("run");
        std::fs::create_dir(&below).unwrap();
        let mut config = parsed(&[]).unwrap();
        config.state_dir = Some(below.join(".."));
        config.common.driver.endpoint.path = below.join("csi.sock");
        assert_eq!(config.refuse_socket_in_state_dir(), Ok(()));
        config.common.driver.endpoint.path = dir.path().join("csi.sock");
        let refused = config.refuse_socket_in_state_dir().unwrap_err();
        for named in ["--endpoint", "--state-dir", "csi.sock"] {
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn a_controller_of_all_nodes_has_no_node_and_no_directory() {
        let config = with(&["--nodes", "--with-topology"]);
        match std::env::var_os("KUBERNETES_SERVICE_HOST") {
            Some(_) => assert!(matches!(config.unwrap().choice(), Ok(Choice::Nodes(_)))),
            None => assert!(
                config
                    .unwrap_err()
                    .contains("KUBERNETES_SERVICE_HOST: not set")
            ),
        }
        for more in [&LOCAL[2..], &["--require-state"]] {
            let error = with(&[&["--nodes"], more].concat()).unwrap_err();
            assert!(error.contains("no effect with --nodes"), "{error}");
        }
        let cloud = with(&[&CLOUD[..], &["--nodes"]].concat()).unwrap_err();
        assert!(cloud.contains("--nodes has no effect for"), "{cloud}");
    }

    #[test]
    fn the_operators_settings_reach_the_backend() {
        let config = parsed(&["--with-topology"]).unwrap();
        let local = local(&config);
        assert_eq!(local.place, config.common.driver.node.topology);
        assert!(local.place.is_some());
    }

    #[test]
    fn a_bad_value_is_named_with_its_flag_and_the_reason() {
        for (flags, why) in [
            (["--overcommit", "0"], "not a number from 0.1 to 1000000"),
            (
                ["--backend", "floppy"],
                "possible values: local, openstack, digitalocean, nfs, civo",
            ),
        ] {
            let error = parsed(&flags).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn every_flag_and_its_variable_are_in_the_documentation() {
        let documentation = include_str!("../../docs/configuration.md");
        let command = Config::command();
        let flags: Vec<_> = command
            .get_arguments()
            .filter(|flag| flag.get_env().is_some())
            .collect();
        assert_eq!(flags.len(), 34, "one without a variable, or a new one");
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
}
