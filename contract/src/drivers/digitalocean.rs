//! `digitalocean`: volumes of DigitalOcean, each attached to the node's droplet as a SCSI disk.
//! This driver uses the same names, IDs and keys as csi-digitalocean, which it replaces.

use super::{Kubelet, Metadata, MetadataSource, ParameterPolicy, Profile, TRANSPORT_DISK};
use crate::disk::{IdPart, NameTemplate};
use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The metadata that DigitalOcean offers to a droplet (API reference, "Metadata API").
const METADATA: Metadata = Metadata {
    sources: &[MetadataSource::Service],
    drive_label: "config-2",
    service: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80),
    document: "metadata/v1.json",
    id: "droplet_id",
    zone: "region",
};

/// The profile of the driver for DigitalOcean.
pub const DIGITALOCEAN: Profile = Profile {
    name: "dobs.csi.digitalocean.com",
    topology_key: "region",
    place_is_node: false,
    always_topology: true,
    is_regional: true,
    metadata: Some(&METADATA),
    instance_file: None,
    capabilities: &[
        PluginCapability::Controller,
        PluginCapability::OnlineExpansion,
    ],
    transport: TRANSPORT_DISK,
    // The name consists of the vendor DO, the model Volume, and the volume's name as the
    // vendor-specific identifier (page 0x83).
    disk_names: &[NameTemplate {
        prefix: "scsi-0DO_Volume_",
        part: IdPart::Whole,
    }],
    disk_name_key: Some("volume-name"),
    // csi-digitalocean used the second key up to Kubernetes 1.11. The third key is in
    // csi-digitalocean's example for existing volumes.
    never_format_keys: &[
        "dobs.csi.digitalocean.com/noformat",
        "com.digitalocean.csi.dobs/noformat",
        "com.digitalocean.csi/noformat",
    ],
    disk_per_mille: 1000,
    volumes_max: 15,
    limits_all_disks: false,
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
    knows_room: false,
    kubelet: Kubelet {
        pod_info_on_mount: true,
        fs_group_policy: "ReadWriteOnceWithFSType",
        selinux_mount: false,
    },
};
