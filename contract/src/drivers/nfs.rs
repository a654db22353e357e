//! `nfs`: volumes that are directories of an NFS server, which each node mounts. This driver uses
//! the same names, IDs and keys as csi-driver-nfs, which it replaces.

use super::{Kubelet, ParameterPolicy, Profile, TRANSPORT_NFS};
use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;

/// The maximum length of a volume ID, in bytes. IDs of csi-driver-nfs contain the server, the share
/// and the directory, so existing IDs may exceed the 128 bytes of the specification.
pub const NFS_ID_BYTES_MAX: usize = 1024;

/// The profile of the driver for NFS.
pub const NFS: Profile = Profile {
    name: "nfs.csi.k8s.io",
    topology_key: "topology.nfs.csi.k8s.io/node",
    place_is_node: false,
    always_topology: false,
    is_regional: false,
    metadata: None,
    instance_file: None,
    capabilities: &[
        PluginCapability::Controller,
        PluginCapability::OnlineExpansion,
    ],
    transport: TRANSPORT_NFS,
    disk_names: &[],
    disk_name_key: None,
    never_format_keys: &[],
    disk_per_mille: 1000,
    volumes_max: 0,
    limits_all_disks: false,
    parameters: ParameterPolicy::RefuseInAnyCase,
    access_modes: &[
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter,
        AccessMode::MultiNodeReaderOnly,
        AccessMode::MultiNodeSingleWriter,
        AccessMode::MultiNodeMultiWriter,
    ],
    shares_raw_only: false,
    raw_block: false,
    attaches: false,
    stages: false,
    grows_on_node: false,
    knows_room: false,
    kubelet: Kubelet {
        pod_info_on_mount: false,
        fs_group_policy: "File",
        selinux_mount: false,
    },
};
