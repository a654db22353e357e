//! `openstack`: Cinder volumes, each attached to the node by Nova as a disk. This driver uses the
//! same names, IDs and keys as cinder-csi-plugin, which it replaces.

use super::{Kubelet, Metadata, MetadataSource, ParameterPolicy, Profile, TRANSPORT_DISK};
use crate::disk::{IdPart, NameTemplate};
use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The number of bytes of its serial number that a virtio disk reports: `VIRTIO_BLK_ID_BYTES`
/// (include/uapi/linux/virtio_blk.h).
const SERIAL_BYTES: usize = 20;

/// The metadata that Nova offers to an instance (Nova's user guide, "Metadata").
const METADATA: Metadata = Metadata {
    sources: &[MetadataSource::ConfigDrive, MetadataSource::Service],
    drive_label: "config-2",
    service: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80),
    document: "openstack/latest/meta_data.json",
    id: "uuid",
    zone: "availability_zone",
};

/// The profile of the driver for OpenStack.
pub const OPENSTACK: Profile = Profile {
    name: "cinder.csi.openstack.org",
    topology_key: "topology.cinder.csi.openstack.org/zone",
    place_is_node: false,
    always_topology: false,
    is_regional: false,
    metadata: Some(&METADATA),
    instance_file: None,
    capabilities: &[
        PluginCapability::Controller,
        PluginCapability::OnlineExpansion,
    ],
    transport: TRANSPORT_DISK,
    // Nova passes the volume's ID to libvirt as the serial number. For SCSI disks, QEMU reports the
    // complete serial number, unless the hypervisor shortens it. Some clouds set a world-wide name.
    disk_names: &[
        named("virtio-", IdPart::First(SERIAL_BYTES)),
        named("virtio-", IdPart::Whole),
        named("scsi-0QEMU_QEMU_HARDDISK_", IdPart::First(SERIAL_BYTES)),
        named("scsi-0QEMU_QEMU_HARDDISK_", IdPart::Whole),
        named("wwn-0x", IdPart::Digits),
    ],
    disk_name_key: None,
    never_format_keys: &[],
    disk_per_mille: 1000,
    volumes_max: 256,
    limits_all_disks: true,
    parameters: ParameterPolicy::Refuse,
    access_modes: &[
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter,
        AccessMode::MultiNodeReaderOnly,
        AccessMode::MultiNodeMultiWriter,
    ],
    shares_raw_only: true,
    raw_block: true,
    attaches: true,
    stages: true,
    grows_on_node: true,
    knows_room: false,
    kubelet: Kubelet {
        pod_info_on_mount: true,
        fs_group_policy: "File",
        selinux_mount: false,
    },
};

const fn named(prefix: &'static str, part: IdPart) -> NameTemplate {
    NameTemplate { prefix, part }
}
