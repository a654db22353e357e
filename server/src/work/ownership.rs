//! A job's hold on its key, from its beginning to whatever end it has.

use super::ticket::Ticket;
use super::{Job, Look, Running, answer_all};
use crate::call::Failure;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Frees the key when dropped, so that no end of a job, however sudden, can leave it taken.
pub(super) struct Ownership<T> {
    running: Arc<Running<T>>,
    key: Arc<str>,
    /// Tells this job from a later one of the same key.
    ticket: Ticket,
}

impl<T> Ownership<T> {
    pub(super) fn new(running: &Arc<Running<T>>, key: Arc<str>, ticket: &Ticket) -> Self {
        Self {
            running: Arc::clone(running),
            key,
            ticket: ticket.clone(),
        }
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.ticket.clone()
    }

    /// Frees the key and hands back who waits.
    pub(super) fn release(&self) -> Vec<oneshot::Sender<Result<T, Failure>>> {
        let mut running = self.running.lock();
        let is_ours = |job: &Job<T>| job.ticket.is(&self.ticket);
        if !running.get(&self.key).is_some_and(is_ours) {
            return Vec::new();
        }
        let job = running.remove(&self.key);
        drop(running);
        let Some(job) = job else { return Vec::new() };
        if job.is_hung {
            let now = job.look();
            tracing::warn!(
                subject = &*self.key,
                "{now}, and has come to its end at last"
            );
        }
        job.callers
    }
}

impl<T: Clone> Ownership<T> {
    /// The deadline has come: a job that waits is given up, one that works is hung, and all who
    /// wait for it are told.
    pub(super) fn overdue(&self, deadline: Duration) {
        let seconds = deadline.as_secs();
        let mut running = self.running.lock();
        let Some(job) = running.get_mut(&self.key) else {
            return;
        };
        let gave_up = self.ticket.give_up(|awaited| {
            let rpc = job.rpc.name();
            Failure::timeout(format!(
                "{}: {rpc} was given up after {seconds} s, for it waits for {awaited}; nothing \
                 was done, repeat the call",
                self.key,
            ))
        });
        if gave_up || !job.ticket.is(&self.ticket) {
            return;
        }
        let look = job.look();
        if !std::mem::replace(&mut job.is_hung, true) {
            tracing::error!(
                subject = &*self.key,
                "{look}: beyond its deadline, and goes on; the storage is slow or does not answer"
            );
        }
        let callers = std::mem::take(&mut job.callers);
        drop(running);
        answer_all(callers, &Err(hung(&self.key, &look)));
    }
}

impl<T> Drop for Ownership<T> {
    fn drop(&mut self) {
        drop(self.release());
    }
}

fn hung(key: &str, look: &Look) -> Failure {
    Failure::timeout(format!(
        "{key}: {look}; the storage is slow or does not answer; it goes on, repeat the call for \
         its result"
    ))
    .may_be_running()
}
