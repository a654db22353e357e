//! The drivers that Belay can replace: their names, and which of their settings Belay supports. A
//! test compares the table with the profiles of Belay's drivers.

/// A driver that Belay can replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// cinder-csi-plugin
    Cinder,
    /// csi-digitalocean
    Digitalocean,
    /// civo-csi
    Civo,
    /// csi-driver-nfs: its node plugin, or both programs
    Nfs,
}

/// The properties of a driver that Belay can replace.
#[derive(Debug)]
pub(super) struct Peer {
    /// The names that the driver's CSIDriver object can have.
    pub(super) drivers: &'static [&'static str],
    /// Belay's name for the backend.
    pub(super) backend: &'static str,
    /// The last path components of the driver's image names, without tags.
    pub(super) images: &'static [&'static str],
    /// The StorageClass parameters that Belay accepts, except the parameters of the
    /// external-provisioner.
    pub(super) parameters: &'static [&'static str],
    /// Whether Belay ignores StorageClass parameters that `parameters` does not contain, like the
    /// driver.
    pub(super) ignores_parameters: bool,
    /// The topology key of the driver's volumes.
    pub(super) topology_key: &'static str,
    /// The VolumeSnapshotClass parameters that Belay accepts.
    pub(super) snapshot_parameters: &'static [&'static str],
    /// The number of nodes to which Belay attaches a volume at the same time.
    pub(super) sharing: Sharing,
    /// Whether a key of the driver's Secrets selects one of several clouds.
    pub(super) chooses_cloud: bool,
    /// Whether the driver's volumes are directories on servers. Belay replaces the node plugin of
    /// these drivers; their controller may keep running.
    pub(super) is_remote: bool,
}

/// The number of nodes that can use a volume at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// A single node.
    None,
    /// Several nodes, but only for raw block volumes, and only if the cloud allows several
    /// attachments.
    Raw,
    /// Several nodes.
    All,
}

/// Belay's own class parameters, which configure `mkfs`.
pub(super) const FORMATTING: &[&str] = &[
    "blockSize",
    "inodeSize",
    "bytesPerInode",
    "numberOfInodes",
    "btrfsNodeSize",
];

/// The filesystems that Belay mounts.
pub(super) const FILESYSTEMS: &[&str] = &["ext4", "xfs", "btrfs"];

const CINDER: Peer = Peer {
    drivers: &["cinder.csi.openstack.org"],
    backend: "openstack",
    images: &["cinder-csi-plugin"],
    parameters: &[
        "type",
        "availability",
        "cinder.csi.openstack.org/affinity",
        "cinder.csi.openstack.org/anti-affinity",
    ],
    ignores_parameters: false,
    topology_key: "topology.cinder.csi.openstack.org/zone",
    snapshot_parameters: &[
        "type",
        "force-create",
        "availability",
        "backup-max-duration-seconds-per-gb",
    ],
    sharing: Sharing::Raw,
    chooses_cloud: true,
    is_remote: false,
};

const DIGITALOCEAN: Peer = Peer {
    drivers: &["dobs.csi.digitalocean.com", "com.digitalocean.csi.dobs"],
    backend: "digitalocean",
    images: &["do-csi-plugin"],
    parameters: &[],
    ignores_parameters: true,
    topology_key: "region",
    snapshot_parameters: &[],
    sharing: Sharing::None,
    chooses_cloud: false,
    is_remote: false,
};

const CIVO: Peer = Peer {
    drivers: &["csi.civo.com"],
    backend: "civo",
    images: &["civo-csi"],
    parameters: &["type", "capacity"],
    ignores_parameters: true,
    topology_key: "region",
    snapshot_parameters: &[],
    sharing: Sharing::None,
    chooses_cloud: false,
    is_remote: false,
};

const NFS: Peer = Peer {
    drivers: &["nfs.csi.k8s.io"],
    backend: "nfs",
    images: &["nfsplugin"],
    parameters: &["server", "share", "subDir", "onDelete", "mountPermissions"],
    ignores_parameters: false,
    topology_key: "topology.nfs.csi.k8s.io/node",
    snapshot_parameters: &["server", "share", "mountOptions"],
    sharing: Sharing::All,
    chooses_cloud: false,
    is_remote: true,
};

impl Kind {
    pub(super) const fn peer(self) -> &'static Peer {
        match self {
            Self::Cinder => &CINDER,
            Self::Digitalocean => &DIGITALOCEAN,
            Self::Civo => &CIVO,
            Self::Nfs => &NFS,
        }
    }
}

#[cfg(test)]
mod tests {
    use belay_contract::drivers;
    use belay_contract::format;
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn the_parameters_of_formatting_are_those_of_the_contract() {
        assert_eq!(FORMATTING, format::PARAMETERS);
    }

    #[test]
    fn the_table_agrees_with_the_profiles() {
        for kind in Kind::value_variants() {
            let peer = kind.peer();
            let backend = drivers::Kind::from_str(peer.backend, false).unwrap();
            let profile = backend.profile();
            assert_eq!(peer.drivers[0], profile.name);
            assert_eq!(peer.topology_key, profile.topology_key);
            assert_eq!(peer.is_remote, !profile.attaches);
            let ignores = profile.parameters == drivers::ParameterPolicy::Ignore;
            assert_eq!(peer.ignores_parameters, ignores);
        }
    }
}
