//! `civo`: volumes of Civo, each attached to the node as a SCSI disk of QEMU. This driver uses the
//! same names, IDs and keys as civo-csi, which it replaces.

use super::{InstanceFile, Kubelet, ParameterPolicy, Profile, TRANSPORT_DISK};
use crate::disk::{IdPart, NameTemplate};
use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;

/// The configuration of Civo's statistics agent, a file on each of its nodes.
const INSTANCE: InstanceFile = InstanceFile {
    path: "/etc/civostatsd",
    id: "instance_id",
    region: "region",
};

/// The profile of the driver for Civo.
pub const CIVO: Profile = Profile {
    name: "csi.civo.com",
    topology_key: "region",
    place_is_node: false,
    always_topology: false,
    is_regional: true,
    metadata: None,
    instance_file: Some(&INSTANCE),
    capabilities: &[
        PluginCapability::Controller,
        PluginCapability::OfflineExpansion,
    ],
    transport: TRANSPORT_DISK,
    // The serial number is the complete volume ID, in pages 0x80 and 0x83 of SCSI.
    disk_names: &[
        named("scsi-0QEMU_QEMU_HARDDISK_"),
        named("scsi-SQEMU_QEMU_HARDDISK_"),
    ],
    disk_name_key: None,
    never_format_keys: &[],
    // A disk may be smaller than its volume: the disk of a volume of 10 GiB had 0.945 times that
    // size.
    disk_per_mille: 900,
    // This is the limit in civo-csi; the limit of the cloud itself is unknown.
    volumes_max: 1024,
    limits_all_disks: true,
    parameters: ParameterPolicy::Ignore,
    access_modes: &[
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter,
    ],
    shares_raw_only: false,
    raw_block: true,
    attaches: true,
    stages: true,
    grows_on_node: true,
    // The quota belongs to the account, so reading the quota periodically would cost API calls
    // without any benefit.
    knows_room: false,
    kubelet: Kubelet {
        pod_info_on_mount: true,
        // This policy is the default of Kubernetes, which civo-csi also uses.
        fs_group_policy: "ReadWriteOnceWithFSType",
        selinux_mount: false,
    },
};

const fn named(prefix: &'static str) -> NameTemplate {
    let part = IdPart::Whole;
    NameTemplate { prefix, part }
}
