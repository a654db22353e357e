//! The drivers, one file each: the constants of a driver that are the same on every node and in
//! every cluster.

mod local;
#[cfg(test)]
mod tests;

pub use local::LOCAL;

use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;

/// Every kind of driver, by its name for `--driver-kind` of the agent and `--backend` of the
/// controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Sparse files on one node
    Local,
}

impl Kind {
    /// The constants of this kind.
    #[must_use]
    pub const fn profile(self) -> &'static Profile {
        match self {
            Self::Local => &LOCAL,
        }
    }
}

/// A driver's constants. Existing volumes depend on the names, so the names never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The default driver name.
    pub name: &'static str,
    /// The topology key of its volumes.
    pub topology_key: &'static str,
    /// Its plugin capabilities, wherever it runs.
    pub capabilities: &'static [PluginCapability],
    /// How its volumes reach a node: the name in the publish context.
    pub transport: &'static str,
    /// Default of `--max-volumes`; 0 = unlimited.
    pub volumes_max: u32,
    /// The access modes that a volume supports.
    pub access_modes: &'static [AccessMode],
    /// Supports raw block volumes, not only filesystems.
    pub raw_block: bool,
    /// The controller attaches a volume to a node before the node uses it.
    pub attaches: bool,
    /// A node stages a volume once, and publishes it from the staging path.
    pub stages: bool,
    /// Growing a volume includes a step on the node.
    pub grows_on_node: bool,
    /// The controller reports the free capacity.
    pub knows_room: bool,
    /// The kubelet's settings for it.
    pub kubelet: Kubelet,
}

/// The kubelet's settings at a mount, from the driver's CSIDriver object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// Pass the pod's name and other data to the agent.
    pub pod_info_on_mount: bool,
    /// Whether the kubelet sets a pod's fsGroup on the files: `File`, `None` or
    /// `ReadWriteOnceWithFSType`.
    pub fs_group_policy: &'static str,
    /// Mount with the pod's SELinux label as an option, instead of relabelling each file.
    pub selinux_mount: bool,
}
