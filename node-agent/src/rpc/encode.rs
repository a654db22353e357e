//! Converts results of operations to responses of the CSI Node service.

use belay_contract::drivers::Profile;
use belay_proto::csi::v1 as csi;
use belay_server::request::AccessMode;
use csi::node_service_capability::{Rpc as RpcCapability, Type, rpc};

use crate::operation::{StorageCondition, VolumeStats, VolumeUsage};

/// Returns the node capabilities of a driver with this profile.
pub(super) fn capabilities(profile: &Profile) -> csi::NodeGetCapabilitiesResponse {
    let mode = AccessMode::SingleNodeMultiWriter;
    let capabilities = [
        (rpc::Type::StageUnstageVolume, profile.stages),
        (rpc::Type::GetVolumeStats, true),
        (rpc::Type::ExpandVolume, profile.grows_on_node),
        (
            rpc::Type::SingleNodeMultiWriter,
            profile.access_modes.contains(&mode),
        ),
        (rpc::Type::GetVolumeHealth, true),
        (rpc::Type::GetStorageHealth, true),
        // CSI 1.13 has removed this capability, but up to Kubernetes 1.36 the kubelet checks for
        // it.
        (rpc::Type::VolumeCondition, true),
    ];
    let kinds = capabilities.into_iter().filter(|(_, can)| *can);
    let capabilities = kinds.map(|(kind, _)| csi::NodeServiceCapability {
        r#type: Some(Type::Rpc(RpcCapability {
            r#type: kind.into(),
        })),
    });
    csi::NodeGetCapabilitiesResponse {
        capabilities: capabilities.collect(),
    }
}

pub(super) fn stats(stats: &VolumeStats) -> csi::NodeGetVolumeStatsResponse {
    use csi::volume_usage::Unit;
    let usage = match stats.usage {
        VolumeUsage::Block(bytes) => vec![csi::VolumeUsage {
            total: signed(bytes),
            unit: Unit::Bytes.into(),
            ..Default::default()
        }],
        VolumeUsage::Filesystem(usage) => {
            let bytes = csi::VolumeUsage {
                available: signed(usage.available_bytes),
                total: signed(usage.total_bytes),
                used: signed(usage.used_bytes),
                unit: Unit::Bytes.into(),
            };
            // A btrfs creates inodes as needed and reports a total of 0 inodes. Without this
            // branch, the btrfs would seem to have no free inodes.
            let inodes = (usage.total_inodes > 0).then(|| csi::VolumeUsage {
                available: signed(usage.free_inodes),
                total: signed(usage.total_inodes),
                used: signed(usage.used_inodes),
                unit: Unit::Inodes.into(),
            });
            std::iter::once(bytes).chain(inodes).collect()
        }
    };
    csi::NodeGetVolumeStatsResponse {
        usage,
        volume_condition: Some(stats.conditions.volume_condition()),
    }
}

pub(super) fn storage(conditions: Vec<StorageCondition>) -> csi::NodeGetStorageHealthResponse {
    csi::NodeGetStorageHealthResponse {
        backend_health: conditions
            .into_iter()
            .map(StorageCondition::backend_health)
            .collect(),
    }
}

/// Converts an unsigned size or count to protobuf's int64. Returns the maximum of int64 for a
/// larger value, which no real size has.
pub(super) fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use belay_server::health::Conditions;

    use super::*;
    use crate::kernel::Usage;

    #[test]
    fn a_filesystem_without_a_number_of_inodes_reports_bytes_alone() {
        for (total_inodes, units) in [
            (
                4,
                &[
                    csi::volume_usage::Unit::Bytes,
                    csi::volume_usage::Unit::Inodes,
                ][..],
            ),
            (0, &[csi::volume_usage::Unit::Bytes]),
        ] {
            let usage = Usage {
                total_bytes: 3,
                used_bytes: 1,
                available_bytes: 2,
                total_inodes,
                used_inodes: 0,
                free_inodes: total_inodes,
            };
            let stats = stats(&VolumeStats {
                usage: VolumeUsage::Filesystem(usage),
                conditions: Conditions::default(),
            });
            let reported: Vec<_> = stats.usage.iter().map(csi::VolumeUsage::unit).collect();
            assert_eq!(reported, units);
        }
    }
}
