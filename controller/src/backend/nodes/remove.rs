//! Deletes a volume or snapshot: writes an attempt to its object, waits until the store has deleted
//! the file, and deletes the object. An attempt that a call no longer waits for is cancelled, so
//! that no store executes it later.

use super::Front;
use super::follow::{Follow, Followed, Patched, Step};
use super::item::{disk_of, id, unreachable, wanted};
use super::meaning::{Removal, removal};
use crate::kubernetes::{Object, Selector, Written};
use belay_server::call::Failure;
use serde_json::json;
use std::sync::Arc;
use tokio::time::Instant;

impl Front {
    /// Returns the object with this ID; `None` only if the server has no such object.
    ///
    /// # Errors
    /// Returns `Unreachable` if the objects cannot be listed, or if a disk has or may have a file
    /// with this ID.
    pub(super) async fn identified<R: Followed>(
        &self,
        id: &str,
    ) -> Result<Option<Arc<Object<R>>>, Failure> {
        let cache = R::cache(self);
        cache.ready().await?;
        if let Some(seen) = cache.identified(id) {
            return Ok(Some(seen.object));
        }
        match self.listed(id).await? {
            Some(object) => Ok(Some(object)),
            None => self.absent::<R>(id).await.map(|()| None),
        }
    }

    /// Returns an object with this ID from the server; `None` if there is none.
    async fn listed<R: Followed>(&self, id: &str) -> Result<Option<Arc<Object<R>>>, Failure> {
        let list = self.client.list::<R>(&Selector::id(id)).await?;
        Ok(list.items.into_iter().next().map(Arc::new))
    }

    /// Deletes the volume or snapshot with this ID; succeeds if it does not exist.
    ///
    /// # Errors
    /// Returns the reason for which the store refuses it, and `Unreachable` if the store does not
    /// respond.
    pub(super) async fn delete_identified<R: Followed>(&self, id: &str) -> Result<(), Failure> {
        let Some(object) = self.identified::<R>(id).await? else {
            return Ok(());
        };
        let name = object.metadata.name.clone();
        if self.remove(object).await? {
            return Ok(());
        }
        // The file may exist. The next call finds it without an object.
        let why = format!(
            "{} {id}: {} {name} was deleted by another process; repeat the call",
            R::WHAT,
            R::KIND
        );
        Err(Failure::busy(why))
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
        let until = Instant::now() + self.limits.removal;
        let (mut follow, mut stands) = (Follow::new(self, object), false);
        let removed = self.attempt(&mut follow, &mut stands, until).await;
        if removed.is_err() && stands {
            // The store must not execute an attempt after a failure was returned for it. If the
            // attempt is claimed or ended, this changes nothing.
            drop(cancelled(&mut follow, &mut stands).await);
        }
        removed
    }

    /// Makes an attempt to remove the object. `stands` is set while the attempt is in the object
    /// and can be cancelled.
    async fn attempt<R: Followed>(
        &self,
        follow: &mut Follow<'_, R>,
        stands: &mut bool,
        until: Instant,
    ) -> Result<bool, Failure> {
        let (mut own, mut is_claimed) = (None, false);
        loop {
            if self.is_gone(&follow.object) {
                match self.give_up(follow).await? {
                    Patched::Done => return deleted(&follow.object),
                    Patched::Gone => return Ok(false),
                    Patched::Conflict => continue,
                }
            }
            match removal(&follow.object, own) {
                Removal::Delete => match follow.delete().await? {
                    Written::Done(()) => return deleted(&follow.object),
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
                        Patched::Done => (own, *stands) = (Some(number), true),
                        Patched::Gone => return Ok(false),
                        Patched::Conflict => {}
                    }
                }
                Removal::Refused(failure) => match cancelled(follow, stands).await? {
                    Patched::Done => return Err(failure.rolled_back()),
                    Patched::Gone => return Ok(is_claimed),
                    Patched::Conflict => {}
                },
                step @ (Removal::Wait | Removal::Claimed) => {
                    if step == Removal::Claimed {
                        (is_claimed, *stands) = (true, false);
                    }
                    match follow.change(self.patience(follow, until)).await {
                        Step::Changed => {}
                        Step::Gone => return Ok(is_claimed),
                        Step::Late if is_claimed => {
                            let why = "being removed by its store; repeat the call";
                            return Err(unreachable(&follow.object, why).may_be_running());
                        }
                        Step::Late => match cancelled(follow, stands).await? {
                            Patched::Done => {
                                return Err(not_removed(&follow.object));
                            }
                            Patched::Gone => return Ok(false),
                            Patched::Conflict => {}
                        },
                    }
                }
                Removal::Ended(failure) => {
                    *stands = false;
                    return Err(failure.rolled_back());
                }
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

/// Returns true for an object whose deletion the server has accepted.
///
/// # Errors
/// Returns `Unreachable` if the object has finalizers, so that the server keeps it.
fn deleted<R: Followed>(object: &Object<R>) -> Result<bool, Failure> {
    match object.metadata.finalizers.is_empty() {
        true => Ok(true),
        false => {
            let why = "its object has finalizers of other programs, which must remove them; \
                       repeat the call";
            Err(unreachable(object, why))
        }
    }
}

/// Returns the error for an object whose store has not responded to an attempt.
fn not_removed<R: Followed>(object: &Object<R>) -> Failure {
    let disk = wanted(object).map(|wanted| disk_of(&wanted));
    let disk = disk.unwrap_or_default();
    let why = format!(
        "the store of disk {disk} has not removed it: it is busy, or its pod does not run; repeat \
         the call"
    );
    unreachable(object, &why)
}

/// Cancels an attempt, unless the object has changed: the store may then be deleting the file.
async fn cancelled<R: Followed>(
    follow: &mut Follow<'_, R>,
    stands: &mut bool,
) -> Result<Patched, Failure> {
    let cancelled = follow.patch(json!({"remove": null})).await;
    *stands = matches!(cancelled, Ok(Patched::Conflict));
    cancelled.map_err(|failure| Failure {
        message: format!(
            "{} {}: its removal cannot be cancelled: {failure}",
            R::WHAT,
            id(&follow.object)
        ),
        ..failure
    })
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::super::examples::{changed, conflict, disk, encoded, missing, nodes, shows, volume};
    use super::*;
    use crate::http::tests::Act;
    use crate::kubernetes::{Event, FINALIZER, LocalVolume};
    use belay_server::call::{Certainty, Kind};
    use std::time::Duration;
    use tokio::time::advance;

    const READY: &str = r#"{"phase": "Ready", "bytes": 2}"#;
    /// The response for a LocalDisk that does not exist.
    const NO_DISK: &str = r#"{"kind": "Status", "reason": "NotFound",
        "details": {"name": "node1.default", "kind": "localdisks"}}"#;
    const ATTEMPT: &str = r#"{"remove": 3}"#;

    /// Returns the result of a removal whose call does not wait, if the server responds like this.
    async fn hasty(acts: Vec<Act>) -> Result<bool, Failure> {
        let limits = Limits {
            removal: Duration::ZERO,
            ..Limits::default()
        };
        let ready = volume(&[FINALIZER], READY);
        let (nodes, server, _dir) = nodes(limits, ready, acts.clone()).await;
        let object = nodes.front.volumes.named("pvc-1").unwrap().object;
        let removed = nodes.front.remove::<LocalVolume>(object).await;
        assert_eq!(server.calls(), acts.len());
        removed
    }

    #[tokio::test]
    async fn an_attempt_is_cancelled_before_a_failure_unless_it_was_claimed() {
        let ready = volume(&[FINALIZER], READY);
        let attempt = || shows(&changed(&ready, "spec", ATTEMPT));
        let failed = async |acts| hasty(acts).await.unwrap_err();
        let late = failed(vec![attempt(), shows(&ready)]).await;
        assert_eq!(late.kind, Kind::Unreachable, "{late}");
        assert_eq!(late.certainty, Certainty::NothingHappened, "{late}");
        let why = "the store of disk node1.default has not removed it";
        assert!(late.message.contains(why), "{late}");

        let removing = volume(&[FINALIZER], r#"{"phase": "Removing"}"#);
        let removing = changed(&removing, "spec", ATTEMPT);
        let newer = r#"{"resourceVersion": "3"}"#;
        let shows_newer = |of: &Object<LocalVolume>, part: &str| {
            let of = changed(of, "spec", part);
            let of = super::super::examples::encoded(&changed(&of, "metadata", newer));
            Act::answer("200 OK", &of.to_string())
        };
        let claimed = shows_newer(&removing, ATTEMPT);
        let claimed = failed(vec![attempt(), conflict(), claimed]).await;
        assert!(claimed.message.contains("being removed"), "{claimed}");
        assert_eq!(claimed.certainty, Certainty::MayBeRunning, "{claimed}");

        // The store has removed the file meanwhile.
        let removed = volume(&[], r#"{"phase": "Removing"}"#);
        let removed = shows_newer(&removed, ATTEMPT);
        let deleted = Act::answer("200 OK", "{}");
        let acts = vec![attempt(), conflict(), removed, deleted];
        assert!(hasty(acts).await.unwrap());

        // An object that is missing without a claim says nothing about the file.
        assert!(!hasty(vec![attempt(), conflict(), missing()]).await.unwrap());
        let unknown = failed(vec![attempt(), Act::Cut("")]).await;
        assert!(unknown.message.contains("cannot be cancelled"), "{unknown}");
        assert_eq!(unknown.certainty, Certainty::MayBeRunning, "{unknown}");
    }

    #[tokio::test]
    async fn a_repeated_call_makes_another_attempt() {
        let limits = Limits {
            removal: Duration::ZERO,
            ..Limits::default()
        };
        let ready = || volume(&[FINALIZER], READY);
        let removed = volume(&[], r#"{"phase": "Removing"}"#);
        let next = changed(&ready(), "metadata", r#"{"generation": 5}"#);
        let acts = vec![
            shows(&changed(&ready(), "spec", ATTEMPT)),
            shows(&next),
            shows(&changed(&removed, "spec", r#"{"remove": 5}"#)),
            Act::answer("200 OK", "{}"),
        ];
        let (nodes, server, _dir) = nodes(limits, ready(), acts).await;
        let remove = async |object| nodes.front.remove::<LocalVolume>(Arc::new(object)).await;
        assert_eq!(remove(ready()).await.unwrap_err().kind, Kind::Unreachable);
        assert!(remove(next).await.unwrap());
        assert_eq!(server.calls(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_of_a_gone_disk_is_given_up_unless_the_disk_has_returned() {
        let no_disk = || Act::answer("404 Not Found", NO_DISK);
        let returned = Act::answer("200 OK", &encoded(&disk("null")).to_string());
        let given_up = |others: &[&str]| {
            let deleted = Act::answer("200 OK", "{}");
            vec![no_disk(), shows(&volume(others, READY)), deleted]
        };
        for (others, acts, expected) in [
            (&[][..], given_up(&[]), Ok(true)),
            (
                &["other"],
                given_up(&["other"]),
                Err("finalizers of other programs"),
            ),
            (&[], vec![no_disk(), missing(), missing()], Ok(false)),
            (&[], vec![returned], Err("has just returned")),
        ] {
            let ready = volume(&[&[FINALIZER], others].concat(), READY);
            let (nodes, server, _dir) = nodes(Limits::default(), ready, acts.clone()).await;
            nodes.front.disks.apply(Ok(Event::Deleted(disk("null"))));
            advance(Limits::default().silent).await;
            let object = nodes.front.volumes.named("pvc-1").unwrap().object;
            let removed = nodes.front.remove::<LocalVolume>(object).await;
            match expected {
                Ok(expected) => assert_eq!(removed.unwrap(), expected),
                Err(part) => assert!(removed.unwrap_err().message.contains(part)),
            }
            assert_eq!(server.calls(), acts.len());
        }
    }
}
