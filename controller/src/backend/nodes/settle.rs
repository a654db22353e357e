//! Waits until the store has accepted an order and carried it out. Withdraws an order that no store
//! accepts: if the conditional deletion of its object succeeds, it is certain that no store has
//! accepted the order or ever will.

use super::Front;
use super::disks::{disk_of, silence};
use super::follow::{Follow, Followed, Step};
use super::item::{about, failure, unreachable, wanted};
use super::meaning::{Meaning, meaning};
use crate::kubernetes::{Object, Parsed, Written};
use belay_server::call::Failure;
use std::sync::Arc;
use tokio::time::Instant;

/// The result of an order.
pub(super) enum Settled<R: Followed> {
    /// The volume is complete, or the data of the snapshot is captured.
    Usable(Arc<Object<R>>),
    /// The file has been lost.
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
    /// `Unreachable` if the store is silent, and `Busy` at the time `until`.
    pub(super) async fn settle<R: Followed>(
        &self,
        object: Arc<Object<R>>,
        until: Instant,
    ) -> Result<Settled<R>, Failure> {
        let mut follow = Follow::new(self, object);
        let accept = follow.since + self.limits.accept;
        loop {
            let state = meaning(&follow.object);
            let wait = match &state {
                Meaning::Usable => return Ok(Settled::Usable(follow.object.clone())),
                Meaning::Lost => return Ok(Settled::Lost(follow.object.clone())),
                Meaning::Odd(why) => {
                    return Err(unreachable(&follow.object, why).may_be_running());
                }
                Meaning::Ordered if Instant::now() < accept => Some(until.min(accept)),
                Meaning::Ordered | Meaning::Refused(_) | Meaning::Removed => None,
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
        let reported = object.status.as_ref().and_then(Parsed::known);
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
