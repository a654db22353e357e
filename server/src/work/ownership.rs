//! The ownership of a key by a job, and the sharing of a key by several calls. Ownership and
//! sharing end when the value is dropped, however the job or the call ends.

use super::ticket::Ticket;
use super::{Class, Job, JobMap, JobView, Key, answer_all, busy};
use crate::call::{Failure, Rpc};
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Minimum number of bytes per second that work of a known amount must process; slower work counts
/// as hung. All healthy disks are faster.
const HEADWAY: u64 = 1 << 20;

/// Frees the key when this value is dropped, so that the key is free again however the job ends.
pub(super) struct Ownership<C: Class, T> {
    running: Arc<JobMap<C, T>>,
    key: Key<C>,
    /// The ticket (handle) of the job, which distinguishes the job from a later job with the same
    /// key.
    ticket: Ticket,
}

impl<C: Class, T> Ownership<C, T> {
    pub(super) fn new(running: &Arc<JobMap<C, T>>, key: Key<C>, ticket: &Ticket) -> Self {
        Self {
            running: Arc::clone(running),
            key,
            ticket: ticket.clone(),
        }
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.ticket.clone()
    }

    /// Frees the key, and returns the callers that are waiting for the job.
    pub(super) fn release(&self) -> Vec<oneshot::Sender<Result<T, Failure>>> {
        let mut running = self.running.0.lock();
        let is_ours = |job: &Job<T>| job.ticket.is(&self.ticket);
        if !running.get(&self.key).is_some_and(is_ours) {
            return Vec::new();
        }
        let job = running.remove(&self.key);
        drop(running);
        let Some(job) = job else { return Vec::new() };
        if job.is_hung {
            let now = job.view();
            let subject = self.key.to_string();
            tracing::warn!(subject, "{now}; finished after its deadline");
        }
        job.callers
    }
}

impl<C: Class, T: Clone> Ownership<C, T> {
    /// Handles a deadline of the job, and returns an error to all callers. If the job is only
    /// waiting, cancels the job. If the job is working, marks the job as hung unless it processes
    /// data at least as fast as [`HEADWAY`].
    pub(super) fn overdue(&self, deadline: Duration) {
        let seconds = deadline.as_secs();
        let mut running = self.running.0.lock();
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
        let done = self.ticket.amount().map_or(0, |amount| amount.done);
        let least = HEADWAY * deadline.as_secs();
        let is_hung = done < least.saturating_add(job.done_before);
        job.done_before = done;
        let was_hung = std::mem::replace(&mut job.is_hung, is_hung);
        let subject = self.key.to_string();
        match (was_hung, is_hung) {
            (false, true) => tracing::error!(
                subject,
                "{view}; exceeded its deadline, still running: the storage is slow or hangs; see \
                 the kernel log, and `belayctl node jobs` for all operations"
            ),
            (true, false) => tracing::info!(subject, "{view}; no longer hung"),
            _ => {}
        }
        let callers = std::mem::take(&mut job.callers);
        drop(running);
        answer_all(callers, &Err(late(&self.key, &view, is_hung)));
    }
}

impl<C: Class, T> Drop for Ownership<C, T> {
    fn drop(&mut self) {
        drop(self.release());
    }
}

fn late<C>(key: &Key<C>, view: &JobView, is_hung: bool) -> Failure {
    let why = match is_hung {
        true => " the storage is slow or does not answer;",
        false => "",
    };
    let message = format!("{key}: {view};{why} still running, retry for the result");
    Failure::timeout(message).may_be_running()
}

/// A share of a key, which ends when this value is dropped. Several calls of one RPC can share a
/// key. Each of these calls also has a separate job, under another key. The calls use the object
/// that the shared key names, but do not change that object.
#[derive(Debug)]
pub struct Share<C: Class, T> {
    running: Arc<JobMap<C, T>>,
    key: Key<C>,
}

impl<C: Class, T> Share<C, T> {
    pub(super) fn new(running: &Arc<JobMap<C, T>>, key: Key<C>, rpc: Rpc) -> Result<Self, Failure> {
        match running.0.lock().entry(key.clone()) {
            Entry::Vacant(free) => {
                free.insert(Job::shared(rpc));
            }
            Entry::Occupied(mut taken) => {
                let job = taken.get_mut();
                if job.sharers == 0 || job.rpc != rpc {
                    return Err(Failure::busy(busy(&key, &job.view(), rpc)));
                }
                job.sharers += 1;
            }
        }
        let running = Arc::clone(running);
        Ok(Self { running, key })
    }
}

impl<C: Class, T> Drop for Share<C, T> {
    fn drop(&mut self) {
        let mut running = self.running.0.lock();
        let Some(job) = running.get_mut(&self.key) else {
            return;
        };
        job.sharers -= 1;
        if job.sharers == 0 {
            running.remove(&self.key);
        }
    }
}
