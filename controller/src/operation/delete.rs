//! Delete a volume.

use super::{Done, Operations, Subject, phase};
use crate::backend::{Progress, Unmade};
use belay_server::call::{Failure, Rpc};
use belay_server::request::DeleteVolume;
use belay_server::work::{Key, fingerprint};
use std::sync::Arc;

impl Operations {
    /// Deletes the volume; OK if it does not exist.
    ///
    /// # Errors
    /// `Precondition` while it is in use, without any change, or if its deletion failed.
    pub async fn delete(&self, request: DeleteVolume) -> Result<(), Failure> {
        self.check(&request.secrets)?;
        let (backend, engine) = (Arc::clone(&self.backend), Arc::clone(&self.engine));
        let DeleteVolume { id, secrets } = request.clone();
        let job = async move {
            let left = match backend.delete(id.clone(), secrets.clone()).await? {
                Progress::Done(()) => None,
                Progress::Begun => engine.settled_soon(&id, &secrets).await?,
            };
            match left.map(phase::ready).transpose()? {
                None => Ok(Done::Deleted),
                Some(_) => Err(engine.unmade(&id, Unmade::Delete, &secrets).await),
            }
        };
        let same = fingerprint(&request.secrets);
        let key = Key::new(Subject::Volume, request.id.as_str());
        self.jobs
            .run(key, Rpc::DeleteVolume, same, |_| job)
            .await
            .map(drop)
    }
}
