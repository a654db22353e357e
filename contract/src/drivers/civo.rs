//! `civo`: a volume of Civo, which is attached to the node as a SCSI disk of QEMU. Names, ids and
//! keys are those of civo-csi.

use super::{InstanceFile, Kubelet, ParameterPolicy, Profile, TRANSPORT_DISK};
use crate::disk::{IdPart, NameTemplate};
use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;

/// The file of Civo's own statistics, on each of its nodes.
const INSTANCE: InstanceFile = InstanceFile {
    path: "/etc/civostatsd",
    id: "instance_id",
    region: "region",
};

/// See the module.
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
    // The serial is the volume's ID, in full: page 0x83 and page 0x80 of SCSI.
    disk_names: &[
        named("scsi-0QEMU_QEMU_HARDDISK_"),
        named("scsi-SQEMU_QEMU_HARDDISK_"),
    ],
    disk_name_key: None,
    never_format_keys: &[],
    // Of 10 GiB, 0.945 were seen.
    disk_per_mille: 900,
    // As civo-csi has it; the real limit is not known.
    volumes_max: 1024,
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
    // The quota is the account's, and asking for it all the time would be calls without a use.
    knows_room: false,
    kubelet: Kubelet {
        pod_info_on_mount: true,
        // The default of Kubernetes, as civo-csi has it.
        fs_group_policy: "ReadWriteOnceWithFSType",
        selinux_mount: false,
    },
};

const fn named(prefix: &'static str) -> NameTemplate {
    let part = IdPart::Whole;
    NameTemplate { prefix, part }
}
