//! The advertised capabilities: exactly those that the backend and the profile support.

use crate::operation::Operations;
use belay_proto::csi::v1 as csi;
use csi::controller_service_capability::rpc::Type as Call;

/// The capabilities of the controller service.
#[must_use]
pub fn of_controller(operations: &Operations) -> Vec<csi::ControllerServiceCapability> {
    use csi::controller_service_capability::{Rpc, Type};
    let (attaches, snapshots) = (operations.attaches(), operations.makes_snapshots());
    let (listed, health) = (operations.lists_snapshots(), operations.knows_health());
    let calls = [
        (Call::CreateDeleteVolume, true),
        (Call::PublishUnpublishVolume, attaches),
        (Call::PublishReadonly, operations.attaches_read_only()),
        (Call::ListVolumes, operations.lists()),
        (Call::ListVolumesPublishedNodes, attaches),
        (Call::GetVolume, true),
        (Call::ExpandVolume, operations.grows()),
        (Call::ModifyVolume, operations.modifies()),
        (Call::SingleNodeMultiWriter, true),
        (Call::GetCapacity, operations.knows_capacity()),
        (Call::CreateDeleteSnapshot, snapshots),
        (Call::ListSnapshots, listed),
        (Call::GetSnapshot, listed),
        (Call::CloneVolume, operations.makes_clones()),
        (Call::GetVolumeHealth, health),
        (Call::ListVolumeHealth, health),
        // Removed in CSI 1.13; older callers require it.
        (Call::VolumeCondition, health),
    ];
    let advertised = |call| csi::ControllerServiceCapability {
        r#type: Some(Type::Rpc(Rpc {
            r#type: i32::from(call),
        })),
    };
    let offered = calls.into_iter().filter(|(_, offered)| *offered);
    offered.map(|(call, _)| advertised(call)).collect()
}
