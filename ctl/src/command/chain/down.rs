//! `belayctl umount`: unpublish, unstage, detach, and delete if asked.

use std::path::PathBuf;

use belay_proto::csi::v1::{
    ControllerUnpublishVolumeRequest, DeleteVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest,
};
use clap::Args;

use super::record::{self, Record};
use super::{Driver, step};
use crate::failure::Failure;
use crate::render::{Answer, Cell};
use crate::secrets::Secrets;
use crate::target::Target;

#[derive(Args)]
pub(crate) struct Umount {
    /// Where it is mounted
    dir: PathBuf,
    /// Delete the volume and its data as well
    #[arg(long)]
    delete: bool,
    /// The state directory of `mount`
    #[arg(long, value_name = "DIR", default_value = "/run/belayctl")]
    state_dir: PathBuf,
    #[command(flatten)]
    secrets: Secrets,
}

impl Umount {
    /// Makes the calls; each may be repeated after a failure.
    ///
    /// # Errors
    /// See [`Failure`]; the step that failed is named.
    pub(crate) async fn run(self, on: &Target) -> Result<Answer, Failure> {
        let state = record::state(&self.state_dir)?;
        let record = Record::load(&state, &record::target(&self.dir)?)?;
        let secrets = self.secrets.load()?;
        let mut driver = Driver::connect(on, &record.sockets).await?;
        let volume_id = || record.volume_id.clone();
        let call = driver
            .node
            .node_unpublish_volume(NodeUnpublishVolumeRequest {
                volume_id: volume_id(),
                target_path: record.target.display().to_string(),
            });
        step("NodeUnpublishVolume", on.wait_for(call).await)?;
        if record.needs.1 {
            let staging = Record::staging(&state, &record.target);
            let call = driver.node.node_unstage_volume(NodeUnstageVolumeRequest {
                volume_id: volume_id(),
                staging_target_path: staging.display().to_string(),
            });
            step("NodeUnstageVolume", on.wait_for(call).await)?;
        }
        if record.needs.0 {
            let request = ControllerUnpublishVolumeRequest {
                volume_id: volume_id(),
                node_id: record.node_id.clone(),
                secrets: secrets.clone(),
            };
            let call = driver.controller.controller_unpublish_volume(request);
            step("ControllerUnpublishVolume", on.wait_for(call).await)?;
        }
        if self.delete {
            let call = driver.controller.delete_volume(DeleteVolumeRequest {
                volume_id: volume_id(),
                secrets,
            });
            step("DeleteVolume", on.wait_for(call).await)?;
        }
        if let Some(place) = &record.place {
            place.restore(&record.target)?;
        }
        record.remove(&state)?;
        let volume = match self.delete {
            true => "deleted",
            false => "kept",
        };
        Ok(Answer::Record(vec![
            ("volume_id", Cell::Text(record.volume_id.clone())),
            ("volume", Cell::Text(volume.to_owned())),
        ]))
    }
}
