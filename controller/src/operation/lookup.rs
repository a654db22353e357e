//! Get and list volumes.

use super::{Operations, deadline};
use crate::backend::{Answer, Page, Volume};
use belay_server::call::Failure;
use belay_server::request::{GetVolume, ListVolumes, Secrets, VolumeId};

/// Maximum number of entries in a page. An entry takes up to some 800 bytes (id, topology, node id
/// of 256 bytes), and gRPC clients refuse messages of more than 4 MiB by default.
pub(super) const PAGE_ENTRIES_MAX: usize = 4096;

impl Operations {
    /// The volume, in any phase.
    ///
    /// # Errors
    /// `NotFound`.
    pub async fn get(&self, request: GetVolume) -> Result<Volume, Failure> {
        let id = request.id;
        let Some(clouds) = self.backend.clouds() else {
            return self.volume(id, Secrets::default()).await;
        };
        found(&id, clouds.get_anywhere(id.clone())).await
    }

    /// The volume, in any phase.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) async fn volume(&self, id: VolumeId, secrets: Secrets) -> Result<Volume, Failure> {
        found(&id, self.backend.get(id.clone(), secrets)).await
    }

    /// A page of volumes.
    ///
    /// # Errors
    /// `BadToken` for an unknown token.
    pub async fn list(&self, request: ListVolumes) -> Result<Page, Failure> {
        let limit = request
            .max_entries
            .unwrap_or(PAGE_ENTRIES_MAX)
            .min(PAGE_ENTRIES_MAX);
        let after = request.starting_token;
        let asked = match self.backend.clouds() {
            Some(clouds) => clouds.list_all(after, limit),
            None => self.backend.list(after, limit, Secrets::default()),
        };
        deadline::enforce("the list of volumes", asked).await
    }
}

async fn found(id: &VolumeId, asked: Answer<'_, Option<Volume>>) -> Result<Volume, Failure> {
    let volume = deadline::enforce(&format!("volume {id}"), asked).await?;
    volume.ok_or_else(|| not_found(id))
}

pub(super) fn not_found(id: &VolumeId) -> Failure {
    Failure::not_found(format!("volume {id}: not found"))
}
