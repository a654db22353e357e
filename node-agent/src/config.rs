//! The agent's flags.

use std::path::PathBuf;

use belay_server::config::CommonArgs;
use belay_server::endpoint::Endpoint;
use belay_server::failure::Failure;
use belay_server::request::AbsPath;

/// Serves the CSI Node service of one node: stages and publishes volumes by system calls.
///
/// A volume is a file beneath --loop-dir; the controller (belay-controller) makes it. Run it as
/// root in the mount namespace of the kubelet, or with mounts that propagate there.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "belay-node", version)]
pub struct Config {
    /// What both programs of a driver have.
    #[command(flatten)]
    pub common: CommonArgs,

    /// The folder with the volumes' files: <state-dir>/volumes of the controller
    #[arg(long, value_name = "DIR", env = "BELAY_LOOP_DIR")]
    pub loop_dir: PathBuf,

    /// The kubelet's own folder: no other path is touched, and mounts there must reach the kubelet
    #[arg(long, value_name = "DIR", env = "BELAY_KUBELET_DIR", value_parser = kubelet_dir)]
    pub kubelet_dir: Option<AbsPath>,

    /// The kubelet's plugins_registry as this program sees it: register there, without a registrar
    #[arg(
        long,
        value_name = "DIR",
        env = "BELAY_REGISTRATION_DIR",
        requires = "kubelet_registration_path"
    )]
    pub registration_dir: Option<PathBuf>,

    /// The socket of --endpoint as the kubelet sees it
    #[arg(
        long,
        value_name = "SOCKET",
        env = "BELAY_KUBELET_REGISTRATION_PATH",
        requires = "registration_dir"
    )]
    pub kubelet_registration_path: Option<Endpoint>,
}

fn kubelet_dir(text: &str) -> Result<AbsPath, Failure> {
    AbsPath::new("the folder", text.to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

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
            13,
            "a flag without an environment variable, or a new one"
        );
        for flag in flags {
            let name = flag.get_long().unwrap();
            let variable = flag.get_env().unwrap().to_str().unwrap();
            let row = format!("| `--{name}` | `{variable}` |");
            assert!(documentation.contains(&row), "{row}");
        }
    }
}
