//! Expands a volume. If the store refuses the new size, restores the old size in the object before
//! the response, since the requested size counts as used space.

use super::Front;
use super::follow::{Follow, Patched, Step};
use super::item::about;
use super::meaning::{Growth, growth};
use crate::backend::no_volume;
use crate::kubernetes::LocalVolume;
use belay_server::call::Failure;
use belay_server::request::VolumeId;
use serde_json::json;

impl Front {
    /// Expands the volume to at least `bytes`, and returns its size in bytes.
    ///
    /// # Errors
    /// Returns the reason for which the store refuses it, as rolled back, and `Unreachable` if the
    /// store does not respond.
    pub(super) async fn grow(&self, id: &VolumeId, bytes: u64) -> Result<u64, Failure> {
        let object = self.identified::<LocalVolume>(id.as_str()).await?;
        let object = object.ok_or_else(|| no_volume(id))?;
        let until = self.until();
        let mut follow = Follow::new(self, object);
        loop {
            let step = match growth(&follow.object, bytes) {
                Growth::Done(bytes) => return Ok(bytes),
                Growth::Failed(failure) => return Err(failure),
                Growth::Begin => {
                    self.reporting(&follow.object)?;
                    gone_or_changed(follow.patch(json!({"bytes": bytes})).await?)
                }
                Growth::Refused(failure, now) => {
                    // An earlier call may have requested another size, and may have been killed.
                    let spec = follow.object.spec.known();
                    let is_asked = spec.is_some_and(|spec| spec.bytes == bytes);
                    let patched = follow.patch(json!({"bytes": now})).await?;
                    if patched == Patched::Done && is_asked {
                        return Err(failure.rolled_back());
                    }
                    gone_or_changed(patched)
                }
                Growth::Wait => follow.change(self.patience(&follow, until)).await,
            };
            let object = &follow.object;
            match step {
                Step::Changed => {}
                Step::Gone => {
                    let why = "its object was deleted meanwhile; repeat the call";
                    return Err(Failure::busy(about(object, why)).may_be_running());
                }
                Step::Late => {
                    self.reporting(object).map_err(Failure::may_be_running)?;
                    let why = "its store has not expanded it yet; repeat the call";
                    return Err(Failure::busy(about(object, why)).may_be_running());
                }
            }
        }
    }
}

fn gone_or_changed(patched: Patched) -> Step {
    match patched {
        Patched::Done | Patched::Conflict => Step::Changed,
        Patched::Gone => Step::Gone,
    }
}
