//! Expands and deletes a volume.

use super::{Operations, Subject, lookup, size};
use crate::backend::{DroppedChange, Progress, no_volume};
use belay_server::call::{Failure, Rpc};
use belay_server::request::{ControllerExpand, DeleteVolume};
use belay_server::work::fingerprint;
use std::sync::Arc;

impl Operations {
    /// Expands the volume to the requested size, and returns its size in bytes. Succeeds if the
    /// volume is already large enough. Unless the profile excludes it, the node must then expand
    /// the volume as well: a loop device or disk must reread its size, and a filesystem must grow.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist, `Range` if no size fits, `Quota` if there
    /// is no free space, and the errors of [`lookup::ready`].
    pub async fn expand(&self, request: ControllerExpand) -> Result<u64, Failure> {
        let ControllerExpand {
            id, range, secrets, ..
        } = request;
        let cloud = self.cloud(&secrets)?;
        let (backend, engine) = (Arc::clone(&cloud.backend), Arc::clone(&cloud.engine));
        let volume_id = id.clone();
        let same = fingerprint(&(&range, &secrets));
        let job = async move {
            let expansion = backend.expansion();
            let expansion = expansion
                .ok_or_else(|| Failure::unsupported("this driver does not expand volumes"))?;
            let volume = backend.get(volume_id.clone(), secrets.clone()).await?;
            let volume = lookup::ready(volume.ok_or_else(|| no_volume(&volume_id))?)?;
            let bytes = size::of_grown(volume.bytes, range, expansion.grown_sizes(&volume))?;
            let mut patience = engine.patience();
            loop {
                // Call `resize` even if the volume is large enough, since an earlier expansion may
                // be unfinished.
                let resized = expansion.resize(volume_id.clone(), bytes, secrets.clone());
                if let Progress::Done(bytes) = resized.await? {
                    return Ok(bytes);
                }
                let grown = engine.settled_within(&mut patience, &volume_id, &secrets);
                let grown = grown.await?;
                let grown = lookup::ready(grown.ok_or_else(|| no_volume(&volume_id))?)?;
                if grown.bytes >= bytes {
                    return Ok(grown.bytes);
                }
                if patience.is_spent() {
                    let dropped = DroppedChange::Expand(bytes);
                    return Err(engine.dropped(&volume_id, dropped, &secrets).await);
                }
            }
        };
        let rpc = Rpc::ControllerExpandVolume;
        let call = (Subject::Volume, id.as_str(), rpc, same);
        self.run(cloud, call, job).await
    }
}

impl Operations {
    /// Deletes the volume; succeeds if the volume does not exist.
    ///
    /// # Errors
    /// Returns `Precondition` if the volume is in use and was not changed, or if its deletion
    /// failed.
    pub async fn delete(&self, request: DeleteVolume) -> Result<(), Failure> {
        let cloud = self.cloud(&request.secrets)?;
        let (clouds, here) = (Arc::clone(&self.clouds), cloud.clone());
        let DeleteVolume { id, secrets } = request.clone();
        let job = async move {
            let engine = &here.engine;
            let left = match here.backend.delete(id.clone(), secrets.clone()).await? {
                Progress::Done(()) => {
                    clouds.no_volume_elsewhere(&here, &id).await?;
                    None
                }
                Progress::Begun => engine.settled_soon(&id, &secrets).await?,
            };
            match left.map(lookup::ready).transpose()? {
                None => Ok(()),
                Some(_) => Err(engine.dropped(&id, DroppedChange::Delete, &secrets).await),
            }
        };
        let same = fingerprint(&request.secrets);
        let call = (
            Subject::Volume,
            request.id.as_str(),
            Rpc::DeleteVolume,
            same,
        );
        self.run(cloud, call, job).await
    }
}
