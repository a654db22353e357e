//! The settings of belay-controller: flags, or environment variables. Opens nothing; only resolves
//! two paths.

use crate::backend::local::{self, Overcommit};
use crate::backend::registry::Choice;
use crate::operation::Rules;
use belay_contract::drivers::Kind;
use belay_contract::flags::CommonArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Arg, ValueEnum as _};
use std::path::PathBuf;

/// The controller of a Belay CSI driver: creates, attaches, expands and deletes volumes.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "belay-controller", version, mut_arg("kind", backend))]
pub struct Config {
    /// The flags of both programs.
    #[command(flatten)]
    pub common: CommonArgs,

    /// GID of a group that may connect to the socket
    #[arg(long, env = "BELAY_ENDPOINT_GROUP", value_name = "GID")]
    pub endpoint_group: Option<u32>,

    /// Backend local: directory of state and volumes (volumes in <DIR>/volumes)
    #[arg(long, env = "BELAY_STATE_DIR", value_name = "DIR")]
    pub state_dir: PathBuf,

    /// Backend local: exit if --state-dir has no state, instead of creating it
    #[arg(long, env = "BELAY_REQUIRE_STATE")]
    pub require_state: bool,

    /// Backend local: maximum ratio of promised to actual space in the state directory
    #[arg(
        long,
        env = "BELAY_OVERCOMMIT",
        value_name = "FACTOR",
        default_value = "1"
    )]
    pub overcommit: Overcommit,
}

/// The kind of driver is called its backend here.
fn backend(kind: Arg) -> Arg {
    let backends = Kind::BACKENDS.iter().filter_map(Kind::to_possible_value);
    let backends = PossibleValuesParser::new(backends);
    kind.long("backend")
        .value_parser(backends.try_map(|name| Kind::from_str(&name, false)))
        .env("BELAY_BACKEND")
        .value_name("NAME")
        .help("Backend of the volumes")
}

impl Config {
    /// The backend to open.
    ///
    /// # Errors
    /// The flag, for a kind that is none of [`Kind::BACKENDS`].
    pub fn choice(&self) -> Result<Choice, String> {
        match self.common.driver.kind {
            Kind::Local => Ok(Choice::Local(local::Config {
                state_dir: self.state_dir.clone(),
                node: self.common.driver.node.id.clone(),
                place: self.common.driver.node.topology.clone(),
                overcommit: self.overcommit,
                require_state: self.require_state,
            })),
            Kind::Openstack => Err("--backend: openstack has no controller here yet".to_owned()),
        }
    }

    /// Refuses a socket in the state directory itself: the lock on the directory, which keeps a
    /// second controller out, would also prevent creating the socket.
    ///
    /// # Errors
    /// Both flags, and what to do.
    pub fn refuse_socket_in_state_dir(&self) -> Result<(), String> {
        let socket = &self.common.driver.endpoint.path;
        let folder = socket
            .parent()
            .and_then(|folder| folder.canonicalize().ok());
        if folder.is_none() || folder != self.state_dir.canonicalize().ok() {
            return Ok(());
        }
        Err(format!(
            "--endpoint {}: is in --state-dir, which the controller keeps locked; give the \
             socket its own directory",
            socket.display()
        ))
    }

    /// The rules for the operations.
    #[must_use]
    pub fn rules(&self) -> Rules {
        let node_limit = usize::try_from(self.common.driver.max_volumes).unwrap_or(usize::MAX);
        Rules {
            profile: *self.common.driver.kind.profile(),
            node_limit: (node_limit != 0).then_some(node_limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory as _, Parser as _};

    fn parsed(more: &[&str]) -> Result<Config, String> {
        let needed = [
            "belay-controller",
            "--endpoint",
            "/run/csi.sock",
            "--node-id",
            "node-1",
            "--state-dir",
            "/d",
        ];
        Config::try_parse_from(needed.iter().chain(more)).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_the_documentation() {
        let config = parsed(&[]).unwrap();
        assert_eq!(config.common.driver.kind, Kind::Local);
        assert_eq!(config.overcommit, Overcommit::default());
        let rules = config.rules();
        assert_eq!(rules.node_limit, None);
        let Choice::Local(local) = config.choice().unwrap();
        assert_eq!(local.place, None);
    }

    #[test]
    fn a_kind_that_only_the_node_agent_has_is_no_backend() {
        let error = parsed(&["--backend", "openstack"]).unwrap_err();
        assert!(error.contains("[possible values: local]"), "{error}");
    }

    #[test]
    fn a_socket_in_the_state_directory_itself_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("run");
        std::fs::create_dir(&below).unwrap();
        let mut config = parsed(&[]).unwrap();
        config.state_dir = below.join("..");
        config.common.driver.endpoint.path = below.join("csi.sock");
        assert_eq!(config.refuse_socket_in_state_dir(), Ok(()));
        config.common.driver.endpoint.path = dir.path().join("csi.sock");
        let refused = config.refuse_socket_in_state_dir().unwrap_err();
        for named in ["--endpoint", "--state-dir", "csi.sock"] {
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn the_operators_settings_reach_the_operations_and_the_backend() {
        let config = parsed(&["--with-topology", "--max-volumes", "3"]).unwrap();
        let rules = config.rules();
        assert_eq!(rules.node_limit, Some(3));
        let Choice::Local(local) = config.choice().unwrap();
        assert_eq!(local.place, config.common.driver.node.topology);
        assert!(local.place.is_some());
    }

    #[test]
    fn a_bad_value_is_named_with_its_flag_and_the_reason() {
        for (flags, why) in [
            (["--overcommit", "0"], "overcommit \"0\""),
            (["--backend", "floppy"], "possible values: local"),
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
        assert_eq!(flags.len(), 14, "one without a variable, or a new one");
        for flag in flags {
            let name = flag.get_long().unwrap();
            let variable = flag.get_env().unwrap().to_str().unwrap();
            let row = format!("| `--{name}` | `{variable}` |");
            assert!(documentation.contains(&row), "{row}");
        }
    }
}
