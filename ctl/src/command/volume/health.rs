//! Calls about health: of one volume, or of all unhealthy volumes.

use belay_proto::csi::v1::{ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest};

use super::Call;
use super::flags::{HealthList, One};
use crate::command::{health, pages};
use crate::failure::Failure;
use crate::render::Answer;

impl Call<'_> {
    pub(super) async fn health(mut self, flags: One) -> Result<Answer, Failure> {
        let request = ControllerGetVolumeHealthRequest {
            volume_id: flags.volume_id,
            secrets: flags.secrets.load()?,
        };
        let call = self.client.controller_get_volume_health(request);
        health::of_one(self.target.wait_for(call).await?.volume_health)
    }

    pub(super) async fn health_list(mut self, flags: HealthList) -> Result<Answer, Failure> {
        let secrets = flags.secrets.load()?;
        let entries = pages::all(async |starting_token| {
            let request = ControllerListVolumeHealthRequest {
                max_entries: flags.page_size,
                starting_token,
                secrets: secrets.clone(),
            };
            let call = self.client.controller_list_volume_health(request);
            let page = self.target.wait_for(call).await?;
            Ok((page.entries, page.next_token))
        });
        Ok(health::of_volumes(entries.await?))
    }
}
