//! A job's ownership of its key, from its start to any kind of end.

use super::ticket::Ticket;
use super::{Job, JobView, Running, answer_all};
use crate::call::Failure;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Frees the key when dropped, so that no end of a job, however sudden, leaves it taken.
pub(super) struct Ownership<T> {
    running: Arc<Running<T>>,
    key: Arc<str>,
    /// Distinguishes this job from a later one of the same key.
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

    /// Frees the key and returns the waiting callers.
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
            let now = job.view();
            tracing::warn!(subject = &*self.key, "{now}; finished after its deadline");
        }
        job.callers
    }
}

impl<T: Clone> Ownership<T> {
    /// At the deadline: a waiting job is cancelled, a working one is hung, and all callers get an
    /// error.
    pub(super) fn overdue(&self, deadline: Duration) {
        let seconds = deadline.as_secs();
        let mut running = self.running.lock();
        let Some(job) = running.get_mut(&self.key) else {
            return;
        };
        let cancelled = self.ticket.cancel(|awaited| {
            let rpc = job.rpc.name();
            Failure::timeout(format!(
                "{}: {rpc} was cancelled after {seconds} s of waiting for {awaited}; nothing \
                 was done, retry",
                self.key,
            ))
        });
        if cancelled || !job.ticket.is(&self.ticket) {
            return;
        }
        let view = job.view();
        if !std::mem::replace(&mut job.is_hung, true) {
            tracing::error!(
                subject = &*self.key,
                "{view}; exceeded its deadline, still running: the storage is slow or hangs"
            );
        }
        let callers = std::mem::take(&mut job.callers);
        drop(running);
        answer_all(callers, &Err(hung(&self.key, &view)));
    }
}

impl<T> Drop for Ownership<T> {
    fn drop(&mut self) {
        drop(self.release());
    }
}

fn hung(key: &str, view: &JobView) -> Failure {
    Failure::timeout(format!(
        "{key}: {view}; the storage is slow or does not answer; still running, retry for \
         the result"
    ))
    .may_be_running()
}
