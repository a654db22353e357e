//! `local`: a volume is a file on one node, and only reachable there.

use super::{Kubelet, ParameterPolicy, Profile};
use crate::transport::LOOP;
use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;

/// See the module.
pub const LOCAL: Profile = Profile {
    name: "local.csi.belay.dev",
    topology_key: "topology.local.csi.belay.dev/node",
    place_is_node: true,
    always_topology: false,
    is_regional: false,
    metadata: None,
    instance_file: None,
    capabilities: &[
        PluginCapability::Controller,
        PluginCapability::OnlineExpansion,
    ],
    transport: LOOP,
    disk_names: &[],
    disk_name_key: None,
    never_format_keys: &[],
    disk_per_mille: 1000,
    volumes_max: 0,
    parameters: ParameterPolicy::Refuse,
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
    knows_room: true,
    kubelet: Kubelet {
        pod_info_on_mount: false,
        fs_group_policy: "File",
        selinux_mount: true,
    },
};
