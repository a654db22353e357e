//! Runs operations as jobs that outlive their requests. A job (a running operation) owns its key,
//! e.g. the volume's ID, and runs to its end even if the caller disconnects. An identical request
//! joins the job; a different request for the same key is refused. No caller waits beyond a
//! deadline. A job that exceeds the deadline without progress is *hung*. A hung job keeps its key,
//! and callers get errors with the job's age and current work. This module does not depend on
//! volumes.

mod ownership;
mod report;
#[cfg(test)]
mod tests;
mod ticket;

use crate::call::{Failure, Rpc};
use crate::lock::Lock;
use futures_util::FutureExt as _;
use ownership::Ownership;
pub use ownership::Share;
pub use report::JobView;
pub(crate) use report::{describe, lines, measure, totals};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use ticket::{Amount, Doing, Ticket, Watch};
use tokio::sync::oneshot;
use tracing::Instrument as _;

/// Maximum time that the caller of a changing call waits for its response. The kubelet's timeout of
/// two minutes is longer, so the kubelet receives the cause of a hang as an error, and reports the
/// error as an event. Sidecars with a shorter timeout (`--timeout`, 15 s by default) retry and join
/// the job.
pub const CHANGE_DEADLINE: Duration = Duration::from_secs(100);

/// Returns a hash that is the same for identical requests. Pass all fields that determine the
/// result (identifier, path, capability, contexts), and omit fields that may differ in a retry.
/// Omit the secrets of calls to the node, but pass the secrets of calls to the controller, since
/// these select the account.
#[must_use]
pub fn fingerprint(parts: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// A class of calls. Two calls of the same class for one object cannot run at the same time; two
/// calls of different classes can.
pub trait Class: Copy + fmt::Debug + Eq + Hash + Send + 'static {
    /// Returns the maximum time that a caller of this class waits for a response.
    fn deadline(self) -> Duration;
}

/// The key of a job in the table of all jobs of a service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key<C> {
    /// The class of the call. Calls of different classes can run at the same time.
    pub class: C,
    /// The ID or the name of the object.
    pub id: Arc<str>,
    /// The path of the call, if calls for different paths of the object do not exclude each other;
    /// `None` if the path does not matter.
    pub path: Option<Arc<str>>,
}

impl<C> Key<C> {
    /// Creates the key of the object with this ID or name.
    #[must_use]
    pub fn new(class: C, id: &str) -> Self {
        let id = id.into();
        let path = None;
        Self { class, id, path }
    }

    /// Returns the key of the same object, restricted to this path.
    #[must_use]
    pub fn at(self, path: impl fmt::Display) -> Self {
        let path = Some(path.to_string().into());
        Self { path, ..self }
    }
}

impl<C> fmt::Display for Key<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            None => f.write_str(&self.id),
            Some(path) => write!(f, "{} at {path}", self.id),
        }
    }
}

/// The running jobs of a service, one per key. Clones of this table share the same jobs.
#[derive(Debug)]
pub struct Jobs<C, T> {
    running: Arc<JobMap<C, T>>,
}

#[derive(Debug)]
struct JobMap<C, T>(Lock<HashMap<Key<C>, Job<T>>>);

/// A running job.
#[derive(Debug)]
struct Job<T> {
    rpc: Rpc,
    fingerprint: u64,
    since: Instant,
    is_hung: bool,
    /// Number of bytes that the job had processed at the last deadline.
    done_before: u64,
    ticket: Ticket,
    /// All callers that wait for the result.
    callers: Vec<oneshot::Sender<Result<T, Failure>>>,
    /// Number of calls that share the key ([`Share`]); 0 if a job owns the key.
    sharers: usize,
}

impl<C, T> Clone for Jobs<C, T> {
    fn clone(&self) -> Self {
        let running = Arc::clone(&self.running);
        Self { running }
    }
}

impl<C: Class, T: Clone + Send + 'static> Default for Jobs<C, T> {
    /// Creates an empty table of jobs.
    fn default() -> Self {
        let running = Arc::new(JobMap(Lock::default()));
        report::register(&running);
        Self { running }
    }
}

impl<C: Class, T: Clone + Send + 'static> Jobs<C, T> {
    /// Runs `work` as the job of `key`, in its own task, which starts before the result is awaited.
    /// If a job of the same call with the same fingerprint is running, drops `work` and awaits the
    /// result of that job. A call that undoes the running job, e.g. NodeUnstageVolume during
    /// NodeStageVolume, replaces the job if the job is only waiting.
    ///
    /// # Errors
    /// Returns the failure of the job. Returns `Busy` if another job owns the key, or if a call
    /// that undoes this job has cancelled it. Returns `Timeout` at the deadline: the job is
    /// cancelled if it was still waiting, and otherwise keeps running. Returns `Bug` with an
    /// unknown state if the job panicked or the runtime was shut down.
    pub fn run<F>(
        &self,
        key: Key<C>,
        rpc: Rpc,
        fingerprint: u64,
        work: impl FnOnce(Ticket) -> F,
    ) -> impl Future<Output = Result<T, Failure>>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let (caller, result) = oneshot::channel();
        let deadline = key.class.deadline();
        let begun = self.begin(key, rpc, fingerprint, caller).map(|ownership| {
            if let Some(ownership) = ownership {
                let work = Box::pin(work(ownership.ticket()));
                start(work, deadline, ownership, rpc);
            }
        });
        // The future does not contain the work, so that the future uses little memory while a
        // caller waits.
        async move {
            begun?;
            result.await.unwrap_or_else(|_| Err(ended_early(rpc)))
        }
    }

    /// Shares the key with other calls of the same RPC. While the key is shared, no job can own the
    /// key.
    ///
    /// # Errors
    /// Returns `Busy` if a job owns the key, or if calls of another RPC share it.
    pub fn share(&self, key: Key<C>, rpc: Rpc) -> Result<Share<C, T>, Failure> {
        Share::new(&self.running, key, rpc)
    }

    /// Returns the running job with this key, if there is one.
    #[must_use]
    pub fn view(&self, key: &Key<C>) -> Option<JobView> {
        self.running.0.lock().get(key).map(Job::view)
    }

    /// Returns the oldest of the hung jobs whose keys `concerns` accepts.
    #[must_use]
    pub fn hung(&self, concerns: impl Fn(&Key<C>) -> bool) -> Option<JobView> {
        let running = self.running.0.lock();
        let hung = running
            .iter()
            .filter(|(key, job)| job.is_hung && concerns(key));
        hung.min_by_key(|(_, job)| job.since)
            .map(|(_, job)| job.view())
    }

    /// Returns the number of hung jobs of this class.
    #[must_use]
    pub fn hung_count(&self, class: C) -> usize {
        let running = self.running.0.lock();
        let hung = running
            .iter()
            .filter(|(key, job)| job.is_hung && key.class == class);
        hung.count()
    }

    /// Begins a job, or returns `None` if the caller has joined a running job.
    fn begin(
        &self,
        key: Key<C>,
        rpc: Rpc,
        fingerprint: u64,
        caller: oneshot::Sender<Result<T, Failure>>,
    ) -> Result<Option<Ownership<C, T>>, Failure> {
        let mut running = self.running.0.lock();
        match running.entry(key.clone()) {
            Entry::Vacant(free) => {
                let job = free.insert(Job::new(rpc, fingerprint, vec![caller]));
                Ok(Some(Ownership::new(&self.running, key, &job.ticket)))
            }
            Entry::Occupied(mut taken) => {
                let job = taken.get_mut();
                if job.rpc == rpc && job.fingerprint == fingerprint && job.sharers == 0 {
                    job.callers.push(caller);
                    return Ok(None);
                }
                let undone = undoes(rpc) == Some(job.rpc);
                if !(undone && job.ticket.cancel(|_| cancelled(job.rpc, rpc))) {
                    // Ask the work to end early if possible, so that a retry of the call is not
                    // refused.
                    let _ends = undone && job.ticket.give_up();
                    return Err(Failure::busy(busy(&key, &job.view(), rpc)));
                }
                let before = std::mem::replace(job, Job::new(rpc, fingerprint, vec![caller]));
                let ownership = Ownership::new(&self.running, key, &job.ticket);
                drop(running);
                answer_all(before.callers, &Err(cancelled(before.rpc, rpc)));
                Ok(Some(ownership))
            }
        }
    }
}

impl<T> Job<T> {
    fn new(rpc: Rpc, fingerprint: u64, callers: Vec<oneshot::Sender<Result<T, Failure>>>) -> Self {
        Self {
            rpc,
            fingerprint,
            since: Instant::now(),
            is_hung: false,
            done_before: 0,
            ticket: Ticket::new(),
            callers,
            sharers: 0,
        }
    }

    /// Creates the table entry of a key that calls share and no job owns, with the first of these
    /// calls.
    fn shared(rpc: Rpc) -> Self {
        Self {
            sharers: 1,
            ..Self::new(rpc, 0, Vec::new())
        }
    }
}

/// The work of a job. The future is boxed, so that the surrounding code is compiled only once per
/// service.
type Work<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

fn start<C: Class, T: Clone + Send + 'static>(
    work: Work<T>,
    deadline: Duration,
    ownership: Ownership<C, T>,
    rpc: Rpc,
) {
    let job = tend(work, deadline, ownership, rpc);
    tokio::spawn(job.in_current_span());
}

/// Runs a job to its end. At every deadline before the end, responds to the callers with an error.
async fn tend<C: Class, T: Clone>(
    work: Work<T>,
    deadline: Duration,
    ownership: Ownership<C, T>,
    rpc: Rpc,
) {
    let mut work = pin!(AssertUnwindSafe(work).catch_unwind());
    let result = loop {
        match tokio::time::timeout(deadline, work.as_mut()).await {
            Ok(result) => break result,
            Err(_) => ownership.overdue(deadline),
        }
    };
    let result = result.unwrap_or_else(|_| Err(Failure::panicked(rpc)));
    answer_all(ownership.release(), &result);
}

/// Sends the result to all callers that are still connected.
fn answer_all<T: Clone>(
    callers: Vec<oneshot::Sender<Result<T, Failure>>>,
    result: &Result<T, Failure>,
) {
    for caller in callers {
        drop(caller.send(result.clone()));
    }
}

/// Returns the RPC whose job this call may cancel while the job is waiting.
const fn undoes(rpc: Rpc) -> Option<Rpc> {
    match rpc {
        Rpc::NodeUnstageVolume => Some(Rpc::NodeStageVolume),
        _ => None,
    }
}

fn cancelled(rpc: Rpc, for_rpc: Rpc) -> Failure {
    Failure::busy(format!(
        "{} was cancelled by a {} before it had done anything; retry if needed",
        rpc.name(),
        for_rpc.name(),
    ))
}

fn busy<C>(key: &Key<C>, running: &JobView, asked: Rpc) -> String {
    // If the RPC is the same, the call differs from the running job only in its arguments.
    let how = if running.rpc == asked {
        " with other arguments"
    } else {
        ""
    };
    format!("{key}: another operation{how} is in progress: {running}; retry later")
}

fn ended_early(rpc: Rpc) -> Failure {
    let message = format!(
        "{} was interrupted by the exit of the process; retry",
        rpc.name()
    );
    Failure::bug(message).may_be_running()
}
