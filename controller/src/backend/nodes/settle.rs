//! Waits until the store has accepted an order and carried it out. Withdraws an order that no store
//! accepts: if the conditional deletion of its object succeeds, it is certain that no store has
//! accepted the order or ever will.

use super::Front;
use super::disks::silence;
use super::follow::{Follow, Followed, Step};
use super::item::{about, disk_of, failure, unreachable, wanted};
use super::meaning::{Meaning, meaning};
use crate::kubernetes::{Object, Written};
use belay_server::call::Failure;
use std::sync::Arc;
use tokio::time::Instant;

/// The result of an order.
pub(super) enum Settled<R: Followed> {
    /// The volume is complete, or the data of the snapshot is captured.
    Usable(Arc<Object<R>>),
    /// The file has been lost, or the disk is gone before the file was complete.
    Lost(Arc<Object<R>>),
    /// No store has accepted the order, and its object is deleted.
    Withdrawn,
    /// The store has refused the order, and its object is deleted.
    Refused(Failure),
    /// Another process has deleted the object.
    Gone,
}

impl Front {
    /// Waits until the order is carried out or refused, at most until `until`.
    ///
    /// # Errors
    /// Returns failures with an unknown state while the store may still carry out the order:
    /// `Unreachable` if the store is silent or has not accepted the order yet, and `Busy` at the
    /// time `until`.
    pub(super) async fn settle<R: Followed>(
        &self,
        object: Arc<Object<R>>,
        until: Instant,
    ) -> Result<Settled<R>, Failure> {
        let mut follow = Follow::new(self, object);
        let accept = follow.since + self.limits.accept;
        let hold = accept.min(follow.since + self.limits.hold);
        loop {
            let state = meaning(&follow.object);
            let wait = match &state {
                Meaning::Usable => return Ok(Settled::Usable(follow.object.clone())),
                Meaning::Lost => return Ok(Settled::Lost(follow.object.clone())),
                Meaning::Ordered if Instant::now() < hold => Some(until.min(hold)),
                Meaning::Ordered if Instant::now() < accept => {
                    let disk = wanted(&follow.object).map(|it| disk_of(&it));
                    let disk = disk.unwrap_or_default();
                    if !self.is_first(&disk, follow.since) {
                        let why =
                            format!("the store of disk {disk} has not accepted the order yet");
                        return Err(unreachable(&follow.object, &why).may_be_running());
                    }
                    Some(until.min(accept))
                }
                Meaning::Ordered | Meaning::Refused(_) | Meaning::Removed => None,
                Meaning::Making | Meaning::Removing | Meaning::Odd(_)
                    if self.is_gone(&follow.object) =>
                {
                    return Ok(Settled::Lost(follow.object.clone()));
                }
                Meaning::Odd(why) => {
                    return Err(unreachable(&follow.object, why).may_be_running());
                }
                Meaning::Making | Meaning::Removing => Some(self.patience(&follow, until)),
            };
            let step = match wait {
                Some(wake) => follow.change(wake).await,
                None => match follow.delete().await.map_err(Failure::may_be_running)? {
                    Written::Done(()) => return Ok(self.deleted(&follow.object, state)),
                    Written::Missing => return Ok(Settled::Gone),
                    Written::Conflict => follow.reread().await.map_err(Failure::may_be_running)?,
                },
            };
            match step {
                Step::Gone => return Ok(Settled::Gone),
                Step::Late if wait.is_some() => self.waits_longer(&follow, until)?,
                Step::Late | Step::Changed => {}
            }
        }
    }

    /// Returns the result of an order whose object was deleted in this state.
    fn deleted<R: Followed>(&self, object: &Object<R>, state: Meaning) -> Settled<R> {
        match state {
            Meaning::Refused(failure) => Settled::Refused(failure),
            Meaning::Ordered => {
                if let Some(wanted) = wanted(object) {
                    self.withdrawn(disk_of(&wanted));
                }
                Settled::Withdrawn
            }
            _ => Settled::Gone,
        }
    }

    /// Fails if the call must not wait longer for an object that has not changed.
    fn waits_longer<R: Followed>(
        &self,
        follow: &Follow<'_, R>,
        until: Instant,
    ) -> Result<(), Failure> {
        let object = &follow.object;
        let is_order = meaning(object) == Meaning::Ordered;
        if let Some(wanted) = wanted(object)
            && !is_order
            && self.silent_at(&wanted) <= Instant::now()
        {
            return Err(unreachable(object, &silence(&wanted)).may_be_running());
        }
        if Instant::now() < until {
            return Ok(());
        }
        let reported = object.known_status();
        let has_failed = reported.is_some_and(|status| R::reported(status).failure.is_some());
        Err(match has_failed {
            true => failure(object).may_be_running(),
            false => {
                let why = "its store has not finished its change; repeat the call";
                Failure::busy(about(object, why)).may_be_running()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::super::examples::{conflict, missing, nodes, shows, volume};
    use super::*;
    use crate::http::tests::Act;
    use crate::kubernetes::{Event, FINALIZER};
    use belay_server::call::{Certainty, Kind};
    use std::time::Duration;
    use tokio::time::advance;

    const READY: &str = r#"{"phase": "Ready", "bytes": 2}"#;

    /// Returns the result of an order that was not accepted in time, if the server responds like
    /// this to its deletion, and whether the disk gets further orders.
    async fn late(acts: Vec<Act>) -> (Result<&'static str, Failure>, bool) {
        let limits = Limits {
            accept: Duration::ZERO,
            ..Limits::default()
        };
        let (nodes, server, _dir) = nodes(limits, volume(&[], "null"), acts.clone()).await;
        let order = nodes.front.volumes.named("pvc-1").unwrap().object;
        let settled = nodes.front.settle(order, nodes.front.until()).await;
        assert_eq!(server.calls(), acts.len());
        let settled = settled.map(|settled| match settled {
            Settled::Usable(_) => "usable",
            Settled::Lost(_) => "lost",
            Settled::Withdrawn => "withdrawn",
            Settled::Refused(_) => "refused",
            Settled::Gone => "gone",
        });
        (settled, nodes.front.offers("default")[0].room.is_ok())
    }

    #[tokio::test]
    async fn only_a_deletion_that_succeeds_withdraws_an_order() {
        let deleted = || Act::answer("200 OK", "{}");
        let accepted = || shows(&volume(&[FINALIZER], READY));
        for (acts, expected, has_room) in [
            (vec![deleted()], "withdrawn", false),
            (vec![missing()], "gone", true),
            (vec![conflict(), missing()], "gone", true),
            (vec![conflict(), accepted()], "usable", true),
            (
                vec![conflict(), shows(&volume(&[], "null")), deleted()],
                "withdrawn",
                false,
            ),
        ] {
            let (settled, room) = late(acts).await;
            assert_eq!((settled.unwrap(), room), (expected, has_room));
        }
        // It is unknown whether the order was accepted.
        for acts in [
            vec![Act::Cut("")],
            vec![conflict(), Act::answer("403 Forbidden", "{}")],
        ] {
            let failure = late(acts).await.0.unwrap_err();
            assert_eq!(failure.certainty, Certainty::MayBeRunning, "{failure}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_call_with_the_oldest_order_of_a_disk_waits_for_its_withdrawal() {
        let limits = Limits::default();
        let (nodes, server, _dir) = nodes(limits, volume(&[], "null"), vec![]).await;
        advance(Duration::from_millis(1)).await;
        let mut second = volume(&[], "null");
        second.metadata.name = "pvc-2".to_owned();
        nodes.front.volumes.apply(Ok(Event::Changed(second)));
        let order = |name: &str| nodes.front.volumes.named(name).unwrap().object;
        let begun = Instant::now();
        // The second call does not wait at all.
        for _ in 0..2 {
            let settled = nodes
                .front
                .settle(order("pvc-2"), nodes.front.until())
                .await;
            let failure = settled.err().unwrap();
            assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
            assert_eq!(failure.certainty, Certainty::MayBeRunning);
        }
        assert!(begun.elapsed() < 2 * limits.hold);
        let first = nodes.front.settle(order("pvc-1"), nodes.front.until());
        let rest = limits.accept - Duration::from_secs(1) - begun.elapsed();
        assert!(tokio::time::timeout(rest, first).await.is_err());
        assert_eq!(server.calls(), 0);
    }

    #[tokio::test]
    async fn an_accepted_order_keeps_the_failure_of_its_last_attempt() {
        let failing = r#"{"phase": "Making", "failure": {"kind": "Unreachable",
            "certainty": "NothingHappened", "message": "EIO"}}"#;
        for (status, kind) in [(failing, Kind::Unreachable), ("null", Kind::Busy)] {
            let limits = Limits {
                patience: Duration::ZERO,
                ..Limits::default()
            };
            let making = volume(&[FINALIZER], status);
            let (nodes, _server, _dir) = nodes(limits, making, Vec::new()).await;
            let order = nodes.front.volumes.named("pvc-1").unwrap().object;
            let settled = nodes.front.settle(order, nodes.front.until()).await;
            let failure = settled.err().unwrap();
            assert_eq!(failure.kind, kind, "{failure}");
            assert_eq!(failure.certainty, Certainty::MayBeRunning);
        }
    }
}
