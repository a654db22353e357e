//! The drivers, one file each: the constants of a driver that are the same on every node and in
//! every cluster.

mod civo;
mod digitalocean;
pub mod local;
mod nfs;
mod openstack;
#[cfg(test)]
mod tests;

pub use civo::CIVO;
pub use digitalocean::DIGITALOCEAN;
pub use local::LOCAL;
pub use nfs::{NFS, NFS_ID_BYTES_MAX};
pub use openstack::OPENSTACK;

use crate::disk::NameTemplate;
use belay_server::identity::PluginCapability;
use belay_server::request::{AccessMode, Context};
use std::net::SocketAddr;

/// The transport of volumes that are files in the node's own directory, as profiles and publish
/// contexts name it.
pub const TRANSPORT_LOOP: &str = "loop";
/// The transport of volumes that a cloud attaches to the node as disks.
pub const TRANSPORT_DISK: &str = "disk";
/// The transport of volumes that are directories of an NFS server.
pub const TRANSPORT_NFS: &str = "nfs";

/// Every kind of driver, by its name for `--driver-kind` of the agent and `--backend` of the
/// controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Sparse files on one node
    Local,
    /// Cinder volumes, which Nova plugs in as disks
    Openstack,
    /// Volumes of DigitalOcean, attached to droplets as disks
    Digitalocean,
    /// Directories of an NFS server
    Nfs,
    /// Volumes of Civo
    Civo,
}

impl Kind {
    /// Those that a controller of this project serves. The node agent serves all.
    pub const BACKENDS: &[Kind] = &[
        Kind::Local,
        Kind::Openstack,
        Kind::Digitalocean,
        Kind::Nfs,
        Kind::Civo,
    ];

    /// What is the same of all drivers of this kind.
    #[must_use]
    pub const fn profile(self) -> &'static Profile {
        match self {
            Self::Local => &LOCAL,
            Self::Openstack => &OPENSTACK,
            Self::Digitalocean => &DIGITALOCEAN,
            Self::Nfs => &NFS,
            Self::Civo => &CIVO,
        }
    }
}

/// How a driver reads the keys of a class's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterPolicy {
    /// Any other key is refused.
    Refuse,
    /// Any other key is refused; the case of keys does not count.
    RefuseInAnyCase,
    /// Other keys are ignored, as by the driver that it replaces: classes that have one must keep
    /// working.
    Ignore,
}

/// The longest ID, in bytes (CSI 1.13, "Size Limits").
const ID_BYTES_MAX: usize = 128;

/// A driver's constants. Existing volumes depend on the names, so the names never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The default driver name.
    pub name: &'static str,
    /// The topology key of its volumes.
    pub topology_key: &'static str,
    /// That place is the node, and its value the node's ID.
    pub place_is_node: bool,
    /// Topology is reported without `--with-topology`.
    pub always_topology: bool,
    /// All volumes of a controller are in one region, which its settings name.
    pub is_regional: bool,
    /// How the node agent learns the ID and zone of its node; `None` if only flags provide them.
    pub metadata: Option<&'static Metadata>,
    /// Where a node may have its ID and region; without it, the ID is the node's name.
    pub instance_file: Option<&'static InstanceFile>,
    /// What it can do as a whole, wherever it runs.
    pub capabilities: &'static [PluginCapability],
    /// How its volumes reach a node: the name in the publish context.
    pub transport: &'static str,
    /// The names in `/dev/disk/by-id` that the disk of a volume may have, by the volume's ID, or by
    /// its name if there is a [`Self::disk_name_key`]; none where its volumes are no disks.
    pub disk_names: &'static [NameTemplate],
    /// The key of the volume's name in the publish context of the driver that this one replaces,
    /// after the driver's name and a slash; `None` where disks are named by the volume's ID.
    pub disk_name_key: Option<&'static str>,
    /// Keys of the volume context with which an administrator forbids to format a volume, whatever
    /// their value.
    pub never_format_keys: &'static [&'static str],
    /// The least size of a disk, in thousandths of its volume's size.
    pub disk_per_mille: u64,
    /// Most volumes on a node, if `--max-volumes` is not set (0: unlimited).
    pub volumes_max: u32,
    /// What becomes of parameters of a class that it does not know.
    pub parameters: ParameterPolicy,
    /// The access modes that a volume supports.
    pub access_modes: &'static [AccessMode],
    /// Several nodes can have a volume at once only as raw block, and only some volumes.
    pub shares_raw_only: bool,
    /// Supports raw block volumes, not only filesystems.
    pub raw_block: bool,
    /// The controller attaches a volume to a node before the node uses it.
    pub attaches: bool,
    /// A node stages a volume once, and publishes it from the staging path.
    pub stages: bool,
    /// Growing a volume includes a step on the node.
    pub grows_on_node: bool,
    /// The scheduler considers the free capacity that the controller reports.
    pub knows_room: bool,
    /// The kubelet's settings for it.
    pub kubelet: Kubelet,
}

impl Profile {
    /// Whether a volume is a device with a filesystem, whose type a request may choose.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.transport != TRANSPORT_NFS
    }

    /// The longest ID of a volume, in bytes.
    #[must_use]
    pub fn id_bytes_max(&self) -> usize {
        match self.has_device() {
            true => ID_BYTES_MAX,
            false => NFS_ID_BYTES_MAX,
        }
    }

    /// The least size of the disk of a volume of so many bytes.
    #[must_use]
    pub const fn least_of_disk(&self, bytes: u64) -> u64 {
        match self.disk_per_mille {
            1000 => bytes,
            per_mille => bytes / 1000 * per_mille,
        }
    }

    /// The names that the disk of the volume with that ID may have, or with that name if there is a
    /// [`Self::disk_name_key`].
    #[must_use]
    pub fn names_of(&self, volume: &str) -> Vec<String> {
        let names = self.disk_names.iter();
        names.map(|name| name.name(volume)).collect()
    }

    /// Whether a volume with that context is never formatted.
    #[must_use]
    pub fn forbids_format(&self, volume_context: &Context) -> bool {
        let mut keys = self.never_format_keys.iter();
        keys.any(|key| volume_context.get(key).is_some())
    }
}

/// What the kubelet does at a mount, by the driver's CSIDriver object.
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

/// The description of an instance that a cloud offers to the instance itself: a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Its sources, in the default order.
    pub sources: &'static [MetadataSource],
    /// The label of the filesystem on the config drive.
    pub drive_label: &'static str,
    /// The default address of the metadata service.
    pub service: SocketAddr,
    /// The document: its path on the drive, and at the service.
    pub document: &'static str,
    /// The member that is the node's ID.
    pub id: &'static str,
    /// The member that is the node's zone, the value of the profile's topology key.
    pub zone: &'static str,
}

/// A file of the node in which a cloud describes the instance: TOML, of which texts at the top are
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceFile {
    /// Its default path.
    pub path: &'static str,
    /// The key of the node's ID.
    pub id: &'static str,
    /// The key of the node's region, the value of the profile's topology key.
    pub region: &'static str,
}

/// A source of metadata. `--metadata-search-order` uses the names of cinder-csi-plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MetadataSource {
    /// A small read-only disk that the cloud attaches to the instance
    #[value(name = "configDrive")]
    ConfigDrive,
    /// An HTTP server at a link-local address
    #[value(name = "metadataService")]
    Service,
}

impl MetadataSource {
    /// The word, as in the flag.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConfigDrive => "configDrive",
            Self::Service => "metadataService",
        }
    }
}
