//! The implementation of CSI's Controller service.

use super::encode;
use crate::operation::{Operations, Verdict};
use belay_proto::csi::v1 as csi;
use belay_server::call::{Rpc, answer};
use belay_server::request::{
    ControllerExpand, ControllerModify, ControllerPublish, CreateSnapshot, CreateVolume,
    DeleteSnapshot, DeleteVolume, GetVolume, ValidateCapabilities,
};
use csi::controller_server::Controller;
use csi::controller_service_capability::rpc::Type as Call;
use csi::validate_volume_capabilities_response::Confirmed;
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// The Controller service, which exposes the operations.
pub struct Service {
    operations: Arc<Operations>,
}

impl Service {
    /// Creates the service for these operations.
    #[must_use]
    pub fn new(operations: Arc<Operations>) -> Self {
        Self { operations }
    }
}

type Answer<T> = Result<Response<T>, Status>;

/// Implements the methods of the service. Each entry gives the method's name, its messages, its
/// RPC, the condition under which it is advertised, and its body. A method that is not advertised
/// responds as if it did not exist.
macro_rules! methods {
    ($($name:ident: $request:ident -> $response:ident, $rpc:ident $(if $is_advertised:path)?,
        |$operations:ident, $message:ident| $body:block)*) => {
        #[tonic::async_trait]
        impl Controller for Service {$(
            async fn $name(&self, request: Request<csi::$request>) -> Answer<csi::$response> {
                let $operations = &*self.operations;
                $(if !$is_advertised($operations) {
                    return absent(Rpc::$rpc);
                })?
                answer(Rpc::$rpc, request, async |$message: csi::$request| $body).await
            }
        )*}
    };
}

methods! {
    create_volume: CreateVolumeRequest -> CreateVolumeResponse, CreateVolume,
    |operations, message| {
        let request = CreateVolume::read(message, operations.id_bytes_max())?;
        let asked = request.topology.clone();
        let volume = operations.create(request).await?;
        let reach = operations.reach(&volume, asked.as_ref());
        let volume = Some(csi::Volume {
            accessible_topology: reach.into_iter().map(encode::topology).collect(),
            ..encode::volume(&volume)
        });
        Ok(csi::CreateVolumeResponse { volume })
    }

    delete_volume: DeleteVolumeRequest -> DeleteVolumeResponse, DeleteVolume,
    |operations, message| {
        let request = DeleteVolume::read(message, operations.id_bytes_max())?;
        operations.delete(request).await?;
        Ok(csi::DeleteVolumeResponse {})
    }

    controller_publish_volume: ControllerPublishVolumeRequest -> ControllerPublishVolumeResponse,
    ControllerPublishVolume if Operations::attaches,
    |operations, message| {
        let request: ControllerPublish = message.try_into()?;
        let marks = operations.marks(&request.id).await;
        let attachment = operations.publish(request).await?;
        let key = operations.disk_name_key();
        let publish_context = encode::publish_context(&attachment, marks, key);
        Ok(csi::ControllerPublishVolumeResponse { publish_context })
    }

    controller_unpublish_volume:
    ControllerUnpublishVolumeRequest -> ControllerUnpublishVolumeResponse,
    ControllerUnpublishVolume if Operations::attaches,
    |operations, message| {
        operations.unpublish(message.try_into()?).await?;
        Ok(csi::ControllerUnpublishVolumeResponse {})
    }

    validate_volume_capabilities:
    ValidateVolumeCapabilitiesRequest -> ValidateVolumeCapabilitiesResponse,
    ValidateVolumeCapabilities,
    |operations, message| {
        let confirmed = Confirmed {
            volume_context: message.volume_context.clone(),
            volume_capabilities: message.volume_capabilities.clone(),
            parameters: message.parameters.clone(),
            mutable_parameters: message.mutable_parameters.clone(),
        };
        let request = ValidateCapabilities::read(message, operations.id_bytes_max())?;
        let (confirmed, message) = match operations.validate(request).await? {
            Verdict::Confirmed => (Some(confirmed), String::new()),
            Verdict::Refused(why) => (None, why),
        };
        Ok(csi::ValidateVolumeCapabilitiesResponse { confirmed, message })
    }

    list_volumes: ListVolumesRequest -> ListVolumesResponse, ListVolumes if Operations::lists,
    |operations, message| {
        let page = operations.list(message.try_into()?).await?;
        let conditions = operations.conditions(&page.volumes).await?;
        Ok(encode::page(&page, conditions.as_deref()))
    }

    controller_get_volume: ControllerGetVolumeRequest -> ControllerGetVolumeResponse,
    ControllerGetVolume,
    |operations, message| {
        let request = GetVolume::read(message, operations.id_bytes_max())?;
        let volume = operations.get(request).await?;
        let condition = operations.conditions(std::slice::from_ref(&volume)).await?;
        let condition = condition.as_ref().and_then(|all| all.first());
        Ok(encode::found(&volume, condition))
    }

    get_capacity: GetCapacityRequest -> GetCapacityResponse, GetCapacity,
    |operations, message| {
        let room = operations.room(message.try_into()?).await?;
        Ok(encode::room(room))
    }

    controller_expand_volume: ControllerExpandVolumeRequest -> ControllerExpandVolumeResponse,
    ControllerExpandVolume if Operations::grows,
    |operations, message| {
        let request = ControllerExpand::read(message, operations.id_bytes_max())?;
        let bytes = operations.expand(request).await?;
        Ok(csi::ControllerExpandVolumeResponse {
            capacity_bytes: encode::bytes(bytes),
            // Raw block volumes need the node as well: the loop device or disk must reread its
            // size.
            node_expansion_required: operations.grows_on_node(),
        })
    }

    controller_get_capabilities:
    ControllerGetCapabilitiesRequest -> ControllerGetCapabilitiesResponse,
    ControllerGetCapabilities,
    |operations, _message| {
        let capabilities = of_controller(operations);
        Ok(csi::ControllerGetCapabilitiesResponse { capabilities })
    }

    create_snapshot: CreateSnapshotRequest -> CreateSnapshotResponse,
    CreateSnapshot if Operations::makes_snapshots,
    |operations, message| {
        let request = CreateSnapshot::read(message, operations.id_bytes_max())?;
        let (snapshot, topology) = operations.cut(request).await?;
        let topology = topology.into_iter().map(|it| encode::topology(it.segments()));
        let snapshot = Some(csi::Snapshot {
            accessible_topology: topology.collect(),
            ..encode::snapshot(&snapshot)
        });
        Ok(csi::CreateSnapshotResponse { snapshot })
    }

    delete_snapshot: DeleteSnapshotRequest -> DeleteSnapshotResponse, DeleteSnapshot,
    |operations, message| {
        let request = DeleteSnapshot::read(message, operations.id_bytes_max())?;
        operations.discard(request).await?;
        Ok(csi::DeleteSnapshotResponse {})
    }

    list_snapshots: ListSnapshotsRequest -> ListSnapshotsResponse, ListSnapshots if looks_up,
    |operations, message| {
        let page = operations.list_snapshots(message.try_into()?).await?;
        Ok(encode::snapshots(&page))
    }

    get_snapshot: GetSnapshotRequest -> GetSnapshotResponse, GetSnapshot if looks_up,
    |operations, message| {
        let snapshot = operations.snapshot(message.try_into()?).await?;
        let snapshot = Some(encode::snapshot(&snapshot));
        Ok(csi::GetSnapshotResponse { snapshot })
    }

    controller_modify_volume: ControllerModifyVolumeRequest -> ControllerModifyVolumeResponse,
    ControllerModifyVolume if Operations::modifies,
    |operations, message| {
        let request = ControllerModify::read(message, operations.id_bytes_max())?;
        operations.modify(request).await?;
        Ok(csi::ControllerModifyVolumeResponse {})
    }

    controller_list_volume_health:
    ControllerListVolumeHealthRequest -> ControllerListVolumeHealthResponse,
    ControllerListVolumeHealth,
    |operations, message| {
        let page = operations.list_health(message.try_into()?).await?;
        Ok(encode::unhealthy(&page))
    }

    controller_get_volume_health:
    ControllerGetVolumeHealthRequest -> ControllerGetVolumeHealthResponse,
    ControllerGetVolumeHealth,
    |operations, message| {
        let id = message.volume_id.clone();
        let conditions = operations.health(message.try_into()?).await?;
        let volume_health = Some(conditions.volume_health(&id));
        Ok(csi::ControllerGetVolumeHealthResponse { volume_health })
    }
}

/// Whether the service forwards calls that read snapshots to the operations. Without support for
/// snapshots, the operations themselves return `Unsupported`.
fn looks_up(operations: &Operations) -> bool {
    operations.lists_snapshots() || !operations.makes_snapshots()
}

/// Returns the response to a call that is not advertised, as if the method did not exist.
fn absent<T>(rpc: Rpc) -> Answer<T> {
    Err(Status::unimplemented(format!(
        "{}: not supported by this driver",
        rpc.name()
    )))
}

/// Returns the capabilities of the Controller service: exactly those that the backend and the
/// profile support.
fn of_controller(operations: &Operations) -> Vec<csi::ControllerServiceCapability> {
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
        (Call::ListVolumeHealth, health && operations.lists()),
        // This capability was removed in CSI 1.13, but older callers require it.
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
