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

    /// Whether the backend creates snapshots but cannot look them up. Without snapshots, each verb
    /// reports that itself.
    fn lists_no_snapshots(&self) -> bool {
        self.operations.makes_snapshots() && !self.operations.lists_snapshots()
    }
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Controller for Service {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Answer<csi::CreateVolumeResponse> {
        type Message = csi::CreateVolumeRequest;
        answer(Rpc::CreateVolume, request, async |message: Message| {
            let request = CreateVolume::read(message, self.operations.id_bytes_max())?;
            let asked = request.topology.clone();
            let volume = self.operations.create(request).await?;
            let reach = self.operations.reach(&volume, asked.as_ref());
            let volume = csi::Volume {
                accessible_topology: reach.into_iter().map(encode::topology).collect(),
                ..encode::volume(&volume)
            };
            Ok(csi::CreateVolumeResponse {
                volume: Some(volume),
            })
        })
        .await
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Answer<csi::DeleteVolumeResponse> {
        answer(Rpc::DeleteVolume, request, async |message| {
            let request = DeleteVolume::read(message, self.operations.id_bytes_max())?;
            self.operations.delete(request).await?;
            Ok(csi::DeleteVolumeResponse {})
        })
        .await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Answer<csi::ControllerPublishVolumeResponse> {
        if !self.operations.attaches() {
            return absent(Rpc::ControllerPublishVolume);
        }
        type Message = csi::ControllerPublishVolumeRequest;
        answer(
            Rpc::ControllerPublishVolume,
            request,
            async |message: Message| {
                let request: ControllerPublish = message.try_into()?;
                let marks = self.operations.marks(&request.id);
                let attachment = self.operations.publish(request).await?;
                let key = self.operations.disk_name_key();
                let publish_context = encode::publish_context(&attachment, marks, key);
                Ok(csi::ControllerPublishVolumeResponse { publish_context })
            },
        )
        .await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Answer<csi::ControllerUnpublishVolumeResponse> {
        if !self.operations.attaches() {
            return absent(Rpc::ControllerUnpublishVolume);
        }
        answer(Rpc::ControllerUnpublishVolume, request, async |message| {
            self.operations.unpublish(message.try_into()?).await?;
            Ok(csi::ControllerUnpublishVolumeResponse {})
        })
        .await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<csi::ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<csi::ValidateVolumeCapabilitiesResponse> {
        type Message = csi::ValidateVolumeCapabilitiesRequest;
        answer(
            Rpc::ValidateVolumeCapabilities,
            request,
            async |message: Message| {
                let confirmed = Confirmed {
                    volume_context: message.volume_context.clone(),
                    volume_capabilities: message.volume_capabilities.clone(),
                    parameters: message.parameters.clone(),
                    mutable_parameters: message.mutable_parameters.clone(),
                };
                let request = ValidateCapabilities::read(message, self.operations.id_bytes_max())?;
                let verdict = self.operations.validate(request).await?;
                let (confirmed, message) = match verdict {
                    Verdict::Confirmed => (Some(confirmed), String::new()),
                    Verdict::Refused(why) => (None, why),
                };
                Ok(csi::ValidateVolumeCapabilitiesResponse { confirmed, message })
            },
        )
        .await
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Answer<csi::ListVolumesResponse> {
        if !self.operations.lists() {
            return absent(Rpc::ListVolumes);
        }
        answer(Rpc::ListVolumes, request, async |message| {
            let page = self.operations.list(message.try_into()?).await?;
            let conditions = self.operations.conditions(&page.volumes).await?;
            Ok(encode::page(&page, conditions.as_deref()))
        })
        .await
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Answer<csi::ControllerGetVolumeResponse> {
        answer(Rpc::ControllerGetVolume, request, async |message| {
            let request = GetVolume::read(message, self.operations.id_bytes_max())?;
            let volume = self.operations.get(request).await?;
            let one = std::slice::from_ref(&volume);
            let condition = self.operations.conditions(one).await?;
            let condition = condition.as_ref().and_then(|all| all.first());
            Ok(encode::found(&volume, condition))
        })
        .await
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Answer<csi::GetCapacityResponse> {
        answer(Rpc::GetCapacity, request, async |message| {
            Ok(encode::room(
                self.operations.room(message.try_into()?).await?,
            ))
        })
        .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Answer<csi::ControllerExpandVolumeResponse> {
        if !self.operations.grows() {
            return absent(Rpc::ControllerExpandVolume);
        }
        answer(Rpc::ControllerExpandVolume, request, async |message| {
            let request = ControllerExpand::read(message, self.operations.id_bytes_max())?;
            let bytes = self.operations.expand(request).await?;
            Ok(csi::ControllerExpandVolumeResponse {
                capacity_bytes: encode::bytes(bytes),
                // Raw block needs the node, too: the loop device or disk must reread its size.
                node_expansion_required: self.operations.grows_on_node(),
            })
        })
        .await
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answer<csi::ControllerGetCapabilitiesResponse> {
        answer(Rpc::ControllerGetCapabilities, request, async |_| {
            let capabilities = of_controller(&self.operations);
            Ok(csi::ControllerGetCapabilitiesResponse { capabilities })
        })
        .await
    }

    async fn create_snapshot(
        &self,
        request: Request<csi::CreateSnapshotRequest>,
    ) -> Answer<csi::CreateSnapshotResponse> {
        if !self.operations.makes_snapshots() {
            return absent(Rpc::CreateSnapshot);
        }
        answer(Rpc::CreateSnapshot, request, async |message| {
            let request = CreateSnapshot::read(message, self.operations.id_bytes_max())?;
            let snapshot = self.operations.cut(request).await?;
            let snapshot = Some(encode::snapshot(&snapshot));
            Ok(csi::CreateSnapshotResponse { snapshot })
        })
        .await
    }

    async fn delete_snapshot(
        &self,
        request: Request<csi::DeleteSnapshotRequest>,
    ) -> Answer<csi::DeleteSnapshotResponse> {
        answer(Rpc::DeleteSnapshot, request, async |message| {
            let request = DeleteSnapshot::read(message, self.operations.id_bytes_max())?;
            self.operations.discard(request).await?;
            Ok(csi::DeleteSnapshotResponse {})
        })
        .await
    }

    async fn list_snapshots(
        &self,
        request: Request<csi::ListSnapshotsRequest>,
    ) -> Answer<csi::ListSnapshotsResponse> {
        if self.lists_no_snapshots() {
            return absent(Rpc::ListSnapshots);
        }
        answer(Rpc::ListSnapshots, request, async |message| {
            let page = self.operations.list_snapshots(message.try_into()?).await?;
            Ok(encode::snapshots(&page))
        })
        .await
    }

    async fn get_snapshot(
        &self,
        request: Request<csi::GetSnapshotRequest>,
    ) -> Answer<csi::GetSnapshotResponse> {
        if self.lists_no_snapshots() {
            return absent(Rpc::GetSnapshot);
        }
        answer(Rpc::GetSnapshot, request, async |message| {
            let snapshot = self.operations.snapshot(message.try_into()?).await?;
            let snapshot = Some(encode::snapshot(&snapshot));
            Ok(csi::GetSnapshotResponse { snapshot })
        })
        .await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<csi::ControllerModifyVolumeRequest>,
    ) -> Answer<csi::ControllerModifyVolumeResponse> {
        if !self.operations.modifies() {
            return absent(Rpc::ControllerModifyVolume);
        }
        answer(Rpc::ControllerModifyVolume, request, async |message| {
            let request = ControllerModify::read(message, self.operations.id_bytes_max())?;
            self.operations.modify(request).await?;
            Ok(csi::ControllerModifyVolumeResponse {})
        })
        .await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Answer<csi::ControllerListVolumeHealthResponse> {
        answer(Rpc::ControllerListVolumeHealth, request, async |message| {
            let page = self.operations.list_health(message.try_into()?).await?;
            Ok(encode::unhealthy(&page))
        })
        .await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<csi::ControllerGetVolumeHealthRequest>,
    ) -> Answer<csi::ControllerGetVolumeHealthResponse> {
        type Message = csi::ControllerGetVolumeHealthRequest;
        answer(
            Rpc::ControllerGetVolumeHealth,
            request,
            async |message: Message| {
                let id = message.volume_id.clone();
                let conditions = self.operations.health(message.try_into()?).await?;
                let volume_health = Some(conditions.volume_health(&id));
                Ok(csi::ControllerGetVolumeHealthResponse { volume_health })
            },
        )
        .await
    }
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
