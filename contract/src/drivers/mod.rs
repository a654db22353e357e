//! The drivers, a file each: what of a driver is the same on every node and in every cluster.

mod local;
#[cfg(test)]
mod tests;

pub use local::LOCAL;

use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;

/// Every kind of driver, as `--driver-kind` of the agent and `--backend` of the controller name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Sparse files on one node
    Local,
}

impl Kind {
    /// What is the same of all drivers of this kind.
    #[must_use]
    pub const fn profile(self) -> &'static Profile {
        match self {
            Self::Local => &LOCAL,
        }
    }
}

/// A driver's constants. Volumes that exist carry the names, so none of those can ever change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name, unless it is told another one.
    pub name: &'static str,
    /// The topology key whose value is the place of a volume.
    pub topology_key: &'static str,
    /// What it can do as a whole, wherever it runs.
    pub capabilities: &'static [PluginCapability],
    /// How its volumes reach a node: the publish context's word for it.
    pub transport: &'static str,
    /// Most volumes on a node, unless `--max-volumes` tells another number; 0 = no limit.
    pub volumes_max: u32,
    /// The access modes that a volume can be used in.
    pub access_modes: &'static [AccessMode],
    /// A volume can be had as a raw block device, and not as a filesystem alone.
    pub raw_block: bool,
    /// A volume is attached to a node by the controller before the node uses it.
    pub attaches: bool,
    /// A node stages a volume once, and publishes it from there.
    pub stages: bool,
    /// The node has a part in growing a volume.
    pub grows_on_node: bool,
    /// The controller knows how much room is left for new volumes.
    pub knows_room: bool,
    /// What the kubelet does for it.
    pub kubelet: Kubelet,
}

/// What the kubelet does at a mount, by the driver's CSIDriver object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// Tells the agent which pod a volume is for.
    pub pod_info_on_mount: bool,
    /// Whether it gives the files to a pod's fsGroup: `File`, `None` or `ReadWriteOnceWithFSType`.
    pub fs_group_policy: &'static str,
    /// Mounts with the pod's SELinux label as an option, in place of relabelling each file.
    pub selinux_mount: bool,
}
