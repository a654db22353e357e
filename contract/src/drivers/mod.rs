//! The drivers, a file each: what of a driver is the same on every node and in every cluster.

mod local;

pub use local::LOCAL;

use belay_server::identity::PluginCapability;

/// A driver's constants. Volumes that exist carry them, so none of them can ever change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name, unless it is told another one.
    pub name: &'static str,
    /// The topology key whose value is the place of a volume.
    pub topology_key: &'static str,
    /// What it can do as a whole, wherever it runs.
    pub capabilities: &'static [PluginCapability],
}
