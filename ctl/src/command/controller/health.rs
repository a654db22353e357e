//! Calls about health: of one volume, or of all unhealthy volumes.

use belay_proto::csi::v1::{
    ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, VolumeHealth,
};

use crate::command::controller::Call;
use crate::command::health;
use crate::failure::Failure;
use crate::render::Answer;

impl Call<'_> {
    pub(super) async fn health(mut self, volume_id: String) -> Result<Answer, Failure> {
        let request = ControllerGetVolumeHealthRequest {
            volume_id,
            ..Default::default()
        };
        let call = self.client.controller_get_volume_health(request);
        health::of_one(self.target.wait_for(call).await?.volume_health)
    }

    pub(super) async fn health_list(mut self, max_entries: i32) -> Result<Answer, Failure> {
        let pages = async |starting_token| {
            let request = ControllerListVolumeHealthRequest {
                max_entries,
                starting_token,
                ..Default::default()
            };
            let call = self.client.controller_list_volume_health(request);
            self.target.wait_for(call).await
        };
        Ok(health::of_volumes(all(pages).await?))
    }
}

/// The entries of all pages.
///
/// # Errors
/// A page cannot be read, or names itself as the next page, which would never end.
async fn all(
    mut page: impl AsyncFnMut(String) -> Result<ControllerListVolumeHealthResponse, Failure>,
) -> Result<Vec<VolumeHealth>, Failure> {
    let mut entries = Vec::new();
    let mut token = String::new();
    loop {
        let answer = page(token.clone()).await?;
        entries.extend(answer.entries);
        if answer.next_token.is_empty() {
            return Ok(entries);
        }
        if answer.next_token == token {
            return Err(Failure::Answer("names the same page as the next one"));
        }
        token = answer.next_token;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Page `n` has the volume `n` and the next page that `next` returns.
    async fn listed(next: impl Fn(&str) -> &'static str) -> Result<Vec<String>, Failure> {
        let pages = async |token: String| {
            let volume = VolumeHealth {
                volume_id: token.clone(),
                ..Default::default()
            };
            Ok(ControllerListVolumeHealthResponse {
                entries: vec![volume],
                next_token: next(&token).to_owned(),
            })
        };
        let all = all(pages).await?;
        Ok(all.into_iter().map(|volume| volume.volume_id).collect())
    }

    #[tokio::test]
    async fn all_pages_are_read_in_their_order() {
        let next = |token: &str| match token {
            "" => "2",
            "2" => "3",
            _ => "",
        };
        assert_eq!(listed(next).await.unwrap(), ["", "2", "3"]);
    }

    #[tokio::test]
    async fn a_page_that_follows_itself_is_refused() {
        assert!(matches!(listed(|_| "2").await, Err(Failure::Answer(_))));
    }
}
