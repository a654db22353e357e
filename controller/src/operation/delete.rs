//! Delete a volume.

use super::{Changed, Operations};
use belay_server::call::{Failure, Rpc};
use belay_server::request::DeleteVolume;
use std::sync::Arc;

impl Operations {
    /// Removes the volume. One that is unknown is removed already.
    ///
    /// # Errors
    /// `Precondition` while it is in use; then nothing was changed.
    pub async fn delete(&self, request: DeleteVolume) -> Result<(), Failure> {
        let backend = Arc::clone(&self.backend);
        let id = request.id.clone();
        let job = async move {
            backend.delete(id).await?;
            Ok(Changed::Deleted)
        };
        self.changing
            .run(request.id.as_str(), Rpc::DeleteVolume, 0, |_| job)
            .await
            .map(drop)
    }
}
