//! Makes the calls of a kubelet directly on the gRPC service, without a socket.

use std::collections::HashMap;
use std::path::Path;

use belay_proto::csi::v1 as csi;
use belay_server::request::AccessMode;
use csi::node_server::Node as _;
use csi::volume_capability::{self, access_mode};
use tonic::{Request, Status};

use crate::kernel::fake::Fake;
use crate::operation::tests::bench::{Form, Verb, Volume};
use crate::rpc::NodeService;

/// Makes the call and waits for its response.
pub(super) async fn send(
    service: &NodeService<Fake>,
    volume: &Volume,
    verb: Verb,
) -> Result<(), Status> {
    match verb {
        Verb::Stage => drop(service.node_stage_volume(stage(volume)).await?),
        Verb::Unstage => drop(service.node_unstage_volume(unstage(volume)).await?),
        Verb::Publish(target) => {
            drop(service.node_publish_volume(publish(volume, target)).await?);
        }
        Verb::Unpublish(target) => {
            let request = unpublish(volume, target);
            drop(service.node_unpublish_volume(request).await?);
        }
        Verb::Expand => drop(service.node_expand_volume(expand(volume)).await?),
        Verb::Stats => drop(service.node_get_volume_stats(stats(volume)).await?),
        Verb::Health => drop(service.node_get_volume_health(health(volume)).await?),
    }
    Ok(())
}

fn stage(volume: &Volume) -> Request<csi::NodeStageVolumeRequest> {
    Request::new(csi::NodeStageVolumeRequest {
        volume_id: volume.id.clone(),
        staging_target_path: text(&volume.staging()),
        volume_capability: Some(capability(volume)),
        publish_context: context(volume),
        ..Default::default()
    })
}

fn unstage(volume: &Volume) -> Request<csi::NodeUnstageVolumeRequest> {
    Request::new(csi::NodeUnstageVolumeRequest {
        volume_id: volume.id.clone(),
        staging_target_path: text(&volume.staging()),
    })
}

fn publish(volume: &Volume, target: u8) -> Request<csi::NodePublishVolumeRequest> {
    Request::new(csi::NodePublishVolumeRequest {
        volume_id: volume.id.clone(),
        staging_target_path: text(&volume.staging()),
        target_path: text(&volume.target(target)),
        volume_capability: Some(capability(volume)),
        publish_context: context(volume),
        ..Default::default()
    })
}

fn unpublish(volume: &Volume, target: u8) -> Request<csi::NodeUnpublishVolumeRequest> {
    Request::new(csi::NodeUnpublishVolumeRequest {
        volume_id: volume.id.clone(),
        target_path: text(&volume.target(target)),
    })
}

fn expand(volume: &Volume) -> Request<csi::NodeExpandVolumeRequest> {
    Request::new(csi::NodeExpandVolumeRequest {
        volume_id: volume.id.clone(),
        volume_path: text(&volume.staging()),
        staging_target_path: text(&volume.staging()),
        ..Default::default()
    })
}

fn stats(volume: &Volume) -> Request<csi::NodeGetVolumeStatsRequest> {
    Request::new(csi::NodeGetVolumeStatsRequest {
        volume_id: volume.id.clone(),
        volume_path: text(&volume.target(1)),
        ..Default::default()
    })
}

fn health(volume: &Volume) -> Request<csi::NodeGetVolumeHealthRequest> {
    Request::new(csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        volume_publish_path: text(&volume.target(1)),
        staging_target_path: text(&volume.staging()),
    })
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn context(volume: &Volume) -> HashMap<String, String> {
    volume.entries().into_iter().collect()
}

fn capability(volume: &Volume) -> csi::VolumeCapability {
    use volume_capability::{AccessMode as Mode, AccessType, BlockVolume, MountVolume};
    let mode = match volume.mode {
        AccessMode::SingleNodeSingleWriter => access_mode::Mode::SingleNodeSingleWriter,
        _ => access_mode::Mode::SingleNodeMultiWriter,
    };
    let access_type = match volume.form {
        Form::Block => AccessType::Block(BlockVolume {}),
        form => AccessType::Mount(MountVolume {
            fs_type: format!("{form:?}").to_lowercase(),
            mount_flags: volume.flags.iter().map(|&flag| flag.into()).collect(),
            ..Default::default()
        }),
    };
    csi::VolumeCapability {
        access_mode: Some(Mode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}
