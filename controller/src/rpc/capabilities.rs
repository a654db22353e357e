//! What is advertised, computed from what is there, so that it cannot lie.

use crate::operation::Operations;
use belay_proto::csi::v1 as csi;
use csi::controller_service_capability::rpc::Type as Call;

/// The capabilities of the controller service.
#[must_use]
pub fn of_controller(operations: &Operations) -> Vec<csi::ControllerServiceCapability> {
    use csi::controller_service_capability::{Rpc, Type};
    // The verbs of every backend, and what the operations add to them.
    let mut calls = vec![
        Call::CreateDeleteVolume,
        Call::PublishUnpublishVolume,
        Call::PublishReadonly,
        Call::ListVolumes,
        Call::ListVolumesPublishedNodes,
        Call::GetVolume,
        Call::ExpandVolume,
        Call::SingleNodeMultiWriter,
    ];
    if operations.knows_capacity() {
        calls.push(Call::GetCapacity);
    }
    if operations.makes_snapshots() {
        calls.extend([
            Call::CreateDeleteSnapshot,
            Call::ListSnapshots,
            Call::GetSnapshot,
        ]);
    }
    if operations.makes_clones() {
        calls.push(Call::CloneVolume);
    }
    if operations.knows_health() {
        calls.extend([
            Call::GetVolumeHealth,
            Call::ListVolumeHealth,
            // Gone in 1.13, and what older callers ask for.
            Call::VolumeCondition,
        ]);
    }
    let advertised = |call| csi::ControllerServiceCapability {
        r#type: Some(Type::Rpc(Rpc {
            r#type: i32::from(call),
        })),
    };
    calls.into_iter().map(advertised).collect()
}
