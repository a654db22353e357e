//! The agent's flags.

use std::path::PathBuf;

use belay_server::config::CommonArgs;

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
}
