//! Grow a volume.

use super::{Done, Operations, Subject, lookup, mixed_up, phase, size};
use crate::backend::{Progress, Unmade};
use belay_server::call::{Failure, Rpc};
use belay_server::request::ControllerExpand;
use belay_server::work::{Key, fingerprint};
use std::sync::Arc;

impl Operations {
    /// Grows the volume to the requested size; OK if it is large enough. Returns its size. The node
    /// must follow in any case: a loop device or disk must reread its size, and a filesystem grow.
    ///
    /// # Errors
    /// `NotFound`; `Range` if no size fits; `Quota` if there is no free space; those of
    /// [`phase::ready`].
    pub async fn expand(&self, request: ControllerExpand) -> Result<u64, Failure> {
        let ControllerExpand {
            id, range, secrets, ..
        } = request;
        self.check(&secrets)?;
        let (backend, engine) = (Arc::clone(&self.backend), Arc::clone(&self.engine));
        let volume_id = id.clone();
        let same = fingerprint(&(&range, &secrets));
        let job = async move {
            let expansion = backend.expansion();
            let expansion = expansion
                .ok_or_else(|| Failure::unsupported("this driver does not expand volumes"))?;
            let volume = backend.get(volume_id.clone(), secrets.clone()).await?;
            let volume = phase::ready(volume.ok_or_else(|| lookup::not_found(&volume_id))?)?;
            let bytes = size::of_grown(volume.bytes, range, expansion.grown_sizes(&volume))?;
            let mut patience = engine.patience();
            loop {
                // Even if it is large enough: an earlier expansion may be unfinished.
                let resized = expansion.resize(volume_id.clone(), bytes, secrets.clone());
                if let Progress::Done(bytes) = resized.await? {
                    return Ok(Done::Grown(bytes));
                }
                let grown = engine.settled_within(&mut patience, &volume_id, &secrets);
                let grown = grown.await?;
                let grown = phase::ready(grown.ok_or_else(|| lookup::not_found(&volume_id))?)?;
                if grown.bytes >= bytes {
                    return Ok(Done::Grown(grown.bytes));
                }
                if patience.is_spent() {
                    let unmade = Unmade::Expand(bytes);
                    return Err(engine.unmade(&volume_id, unmade, &secrets).await);
                }
            }
        };
        let key = Key::new(Subject::Volume, id.as_str());
        let changed = self
            .jobs
            .run(key, Rpc::ControllerExpandVolume, same, |_| job)
            .await?;
        match changed {
            Done::Grown(bytes) => Ok(bytes),
            _ => Err(mixed_up()),
        }
    }
}
