//! Get and list volumes.

use super::{Operations, deadline};
use crate::backend::{Page, Volume};
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
        self.volume(request.id, Secrets::default()).await
    }

    /// The volume, in any phase.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) async fn volume(&self, id: VolumeId, secrets: Secrets) -> Result<Volume, Failure> {
        let asked = self.backend.get(id.clone(), secrets);
        let volume = deadline::enforce(&format!("volume {id}"), asked).await?;
        volume.ok_or_else(|| not_found(&id))
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
        let asked = self
            .backend
            .list(request.starting_token, limit, Secrets::default());
        deadline::enforce("the list of volumes", asked).await
    }
}

pub(super) fn not_found(id: &VolumeId) -> Failure {
    Failure::not_found(format!("volume {id}: not found"))
}
