//! Deletes a volume or snapshot: writes an attempt to its object, waits until the store has deleted
//! the file, and deletes the object. An attempt that a call no longer waits for is cancelled, so
//! that no store executes it later.

use super::Front;
use super::follow::{Follow, Followed, Patched, Step};
use super::item::{id, unreachable, wanted};
use super::meaning::{Removal, removal};
use crate::kubernetes::{Object, Selector, Written};
use belay_server::call::Failure;
use serde_json::json;
use std::sync::Arc;
use tokio::time::Instant;

impl Front {
    /// Returns the object with this ID; `None` only if the server has no such object. `is_cached`
    /// states whether the cache is used.
    ///
    /// # Errors
    /// Returns `Unreachable` if the objects cannot be listed, or if a disk has a file with this ID.
    pub(super) async fn identified<R: Followed>(
        &self,
        id: &str,
        is_cached: bool,
    ) -> Result<Option<Arc<Object<R>>>, Failure> {
        let cache = R::cache(self);
        cache.current()?;
        if let Some(seen) = cache.identified(id).filter(|_| is_cached) {
            return Ok(Some(seen.object));
        }
        let list = self.client.list::<R>(&Selector::id(id)).await?;
        match list.items.into_iter().next() {
            Some(object) => Ok(Some(Arc::new(object))),
            None => self.unlisted(R::WHAT, id).map(|()| None),
        }
    }

    /// Deletes the volume or snapshot with this ID; succeeds if it does not exist.
    ///
    /// # Errors
    /// Returns the reason for which the store refuses it, and `Unreachable` if the store does not
    /// respond.
    pub(super) async fn delete_identified<R: Followed>(&self, id: &str) -> Result<(), Failure> {
        let mut is_cached = true;
        while let Some(object) = self.identified::<R>(id, is_cached).await? {
            if self.remove(object).await? {
                break;
            }
            // The object does not exist, but the cache may still contain it.
            is_cached = false;
        }
        Ok(())
    }

    /// Deletes the file and the object. Returns whether this is done; if not, the object was
    /// deleted by another process, and a file may exist.
    ///
    /// # Errors
    /// Returns the errors of [`Self::delete_identified`].
    pub(super) async fn remove<R: Followed>(
        &self,
        object: Arc<Object<R>>,
    ) -> Result<bool, Failure> {
        let until = Instant::now() + self.limits.patience;
        let mut follow = Follow::new(self, object);
        let (mut own, mut is_claimed) = (None, false);
        loop {
            match removal(&follow.object, own) {
                Removal::Delete => match follow.delete().await? {
                    Written::Done(()) => return Ok(true),
                    Written::Missing => return Ok(is_claimed),
                    Written::Conflict => {
                        if follow.reread().await? == Step::Gone {
                            return Ok(is_claimed);
                        }
                    }
                },
                Removal::Begin(number) => {
                    self.reporting(&follow.object)?;
                    match follow.patch(json!({"remove": number})).await? {
                        Patched::Done => own = Some(number),
                        Patched::Gone => return Ok(false),
                        Patched::Conflict => {}
                    }
                }
                Removal::Refused(failure) => match cancelled(&mut follow).await? {
                    Patched::Done => return Err(failure.rolled_back()),
                    Patched::Gone => return Ok(is_claimed),
                    Patched::Conflict => {}
                },
                step @ (Removal::Wait | Removal::Claimed) => {
                    is_claimed |= step == Removal::Claimed;
                    match follow.change(self.patience(&follow, until)).await {
                        Step::Changed => {}
                        Step::Gone => return Ok(is_claimed),
                        Step::Late if is_claimed => {
                            let why = "being removed by its store; repeat the call";
                            return Err(unreachable(&follow.object, why).may_be_running());
                        }
                        Step::Late => match cancelled(&mut follow).await? {
                            Patched::Done => {
                                let why = "its store has not removed it; repeat the call";
                                return Err(unreachable(&follow.object, why));
                            }
                            Patched::Gone => return Ok(false),
                            Patched::Conflict => {}
                        },
                    }
                }
                Removal::Ended(failure) => return Err(failure.rolled_back()),
                Removal::Odd(why) => return Err(unreachable(&follow.object, &why)),
            }
        }
    }

    /// Returns the time until which a call waits for the object's store: until `until`, but not
    /// longer than the store reports.
    pub(super) fn patience<R: Followed>(&self, of: &Follow<'_, R>, until: Instant) -> Instant {
        let silent = wanted(&of.object).map(|wanted| self.silent_at(&wanted));
        silent.map_or(until, |silent| until.min(silent))
    }
}

/// Cancels an attempt, unless the object has changed: the store may then be deleting the file.
async fn cancelled<R: Followed>(follow: &mut Follow<'_, R>) -> Result<Patched, Failure> {
    let cancelled = follow.patch(json!({"remove": null})).await;
    cancelled.map_err(|failure| Failure {
        message: format!(
            "{} {}: its removal cannot be cancelled: {failure}",
            R::WHAT,
            id(&follow.object)
        ),
        ..failure
    })
}
