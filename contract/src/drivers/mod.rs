//! The constants of the drivers, with one file for each driver. These constants are the same on
//! every node and in every cluster.

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

/// Key of a volume's name in the volume contexts of `ListVolumes` and `ControllerGetVolume`, whose
/// responses have no field for the name. The context that a node receives never has this key.
pub const VOLUME_NAME: &str = "belay.dev/name";

/// Name of the transport for volumes that are files in a directory of the node.
pub const TRANSPORT_LOOP: &str = "loop";
/// Name of the transport for volumes that a cloud attaches to the node as disks.
pub const TRANSPORT_DISK: &str = "disk";
/// Name of the transport for volumes that are directories of an NFS server.
pub const TRANSPORT_NFS: &str = "nfs";

/// The kinds of drivers, with the names that `--driver-kind` of the agent and `--backend` of the
/// controller accept.
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
    /// The kinds for which this project has a controller. The node agent supports all kinds.
    pub const BACKENDS: &[Kind] = &[
        Kind::Local,
        Kind::Openstack,
        Kind::Digitalocean,
        Kind::Nfs,
        Kind::Civo,
    ];

    /// Returns the constants that all drivers of this kind share.
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

/// How a driver treats unknown keys in the parameters of a StorageClass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterPolicy {
    /// The request is refused.
    Refuse,
    /// The request is refused. Keys are compared without regard to case.
    RefuseInAnyCase,
    /// Unknown keys are ignored, as in the driver that Belay replaces, so that existing classes
    /// with unknown keys keep working.
    Ignore,
}

/// The maximum length of an ID, in bytes (CSI 1.13, "Size Limits").
const ID_BYTES_MAX: usize = 128;

/// The constants of a driver. Existing volumes depend on the names, so the names never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The default driver name.
    pub name: &'static str,
    /// The topology key of the driver's volumes.
    pub topology_key: &'static str,
    /// Whether the topology identifies the node: its value is the node's ID.
    pub place_is_node: bool,
    /// Whether topology is reported even without the flag `--with-topology`.
    pub always_topology: bool,
    /// Whether all volumes of a controller are in one region, which its settings name.
    pub is_regional: bool,
    /// The metadata from which the node agent reads the ID and zone of its node; `None` if only
    /// flags provide them.
    pub metadata: Option<&'static Metadata>,
    /// The file on the node that contains the node's ID and region; `None` if the cloud writes no
    /// file. If the file is missing on the node, the ID is the node's name.
    pub instance_file: Option<&'static InstanceFile>,
    /// The plugin capabilities of the driver, which are the same in its controller and its node
    /// agent.
    pub capabilities: &'static [PluginCapability],
    /// The name of the transport by which volumes reach a node, as in the publish context.
    pub transport: &'static str,
    /// Templates for the names in `/dev/disk/by-id` that the disk of a volume may have. The names
    /// contain the volume's ID, or the volume's name if there is a [`Self::disk_name_key`]. The
    /// list is empty if volumes are not disks.
    pub disk_names: &'static [NameTemplate],
    /// The key of the volume's name in the publish context of the driver that Belay replaces, after
    /// the driver's name and a slash; `None` if disks are named by the volume's ID.
    pub disk_name_key: Option<&'static str>,
    /// Keys of the volume context by which an administrator forbids formatting a volume, regardless
    /// of their value.
    pub never_format_keys: &'static [&'static str],
    /// The minimum size of a disk, in thousandths of its volume's size.
    pub disk_per_mille: u64,
    /// The default of `--max-volumes`, the maximum number of volumes on a node (0: unlimited).
    pub volumes_max: u32,
    /// Whether the maximum applies to all disks of a node, such as its root disk, and not only to
    /// volumes of the cloud.
    pub limits_all_disks: bool,
    /// How the driver treats unknown parameters of a StorageClass.
    pub parameters: ParameterPolicy,
    /// The access modes that volumes support.
    pub access_modes: &'static [AccessMode],
    /// Whether only some raw block volumes, and no volumes with a filesystem, can be attached to
    /// several nodes at once.
    pub shares_raw_only: bool,
    /// Whether the driver supports raw block volumes in addition to volumes with a filesystem.
    pub raw_block: bool,
    /// Whether the controller attaches a volume to a node before the node uses it.
    pub attaches: bool,
    /// Whether a node stages a volume before publishing it. The volume is then published from the
    /// staging path.
    pub stages: bool,
    /// Whether expanding a volume includes a step on the node.
    pub grows_on_node: bool,
    /// Whether the scheduler considers the free capacity that the controller reports.
    pub knows_room: bool,
    /// The settings for the kubelet.
    pub kubelet: Kubelet,
}

impl Profile {
    /// Whether a volume is a block device, so that a request may select the type of its filesystem.
    #[must_use]
    pub fn has_device(&self) -> bool {
        self.transport != TRANSPORT_NFS
    }

    /// Whether the volumes are bound to a node, a zone or a region, so that topology can be
    /// reported.
    #[must_use]
    pub fn may_report_topology(&self) -> bool {
        let has_zones = self.always_topology || self.is_regional || self.metadata.is_some();
        self.place_is_node || has_zones
    }

    /// Returns the maximum length of a volume ID, in bytes.
    #[must_use]
    pub fn id_bytes_max(&self) -> usize {
        match self.has_device() {
            true => ID_BYTES_MAX,
            false => NFS_ID_BYTES_MAX,
        }
    }

    /// Returns the minimum size of the disk of a volume of `bytes`, in bytes.
    #[must_use]
    pub const fn least_of_disk(&self, bytes: u64) -> u64 {
        match self.disk_per_mille {
            1000 => bytes,
            per_mille => bytes / 1000 * per_mille,
        }
    }

    /// Returns the names that the disk of a volume may have. `volume` is the ID of the volume, or
    /// its name if there is a [`Self::disk_name_key`].
    #[must_use]
    pub fn names_of(&self, volume: &str) -> Vec<String> {
        let names = self.disk_names.iter();
        names.map(|name| name.name(volume)).collect()
    }

    /// Whether a volume with this context must never be formatted.
    #[must_use]
    pub fn forbids_format(&self, volume_context: &Context) -> bool {
        let mut keys = self.never_format_keys.iter();
        keys.any(|key| volume_context.get(key).is_some())
    }
}

/// The fields of the driver's CSIDriver object that control how the kubelet mounts its volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kubelet {
    /// Whether the kubelet passes the pod's name and other data to the agent.
    pub pod_info_on_mount: bool,
    /// The policy by which the kubelet sets a pod's fsGroup on the files of a volume: `File`,
    /// `None` or `ReadWriteOnceWithFSType`.
    pub fs_group_policy: &'static str,
    /// Whether the kubelet mounts with the pod's SELinux label as an option, instead of relabelling
    /// each file.
    pub selinux_mount: bool,
}

/// The metadata that a cloud offers to an instance: a JSON object that describes the instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The sources of the metadata, in the default order.
    pub sources: &'static [MetadataSource],
    /// The label of the filesystem on the config drive.
    pub drive_label: &'static str,
    /// The default address of the metadata service.
    pub service: SocketAddr,
    /// The path of the JSON object on the config drive and in the URL of the metadata service.
    pub document: &'static str,
    /// The member of the JSON object that contains the node's ID.
    pub id: &'static str,
    /// The member of the JSON object that contains the node's zone, which is the value of the
    /// profile's topology key.
    pub zone: &'static str,
}

/// A TOML file in which a cloud describes the instance on the instance itself. Only strings at the
/// top level are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceFile {
    /// The default path of the file.
    pub path: &'static str,
    /// The key of the node's ID.
    pub id: &'static str,
    /// The key of the node's region. The region is the value of the profile's topology key.
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
    /// Returns the name of the source, as in the flag.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConfigDrive => "configDrive",
            Self::Service => "metadataService",
        }
    }
}
