//! Operations are jobs, not requests: a job owns its key and runs to its end even if the caller goes
//! away; the same request joins it, another one for that key is refused. Knows nothing of volumes.

use crate::failure::Failure;
use crate::rpc::Rpc;
use futures_util::FutureExt as _;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::oneshot;
use tracing::Instrument as _;

/// What makes two requests the same. Put in all that matters (identifier, path, capability,
/// contexts), and leave out what may differ between a call and its repetition (secrets).
#[must_use]
pub fn fingerprint(parts: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

/// The jobs that run now, one a key (a volume id, or the name of a volume to be made). Clones share
/// the same jobs.
#[derive(Debug)]
pub struct Jobs<T> {
    running: Arc<Running<T>>,
}

type Running<T> = Mutex<HashMap<Arc<str>, Job<T>>>;

/// A running job, seen by those who would join it.
#[derive(Debug)]
struct Job<T> {
    rpc: Rpc,
    fingerprint: u64,
    since: Instant,
    /// Who joined; the one who began it is served by the task itself.
    joined: Vec<oneshot::Sender<Result<T, Failure>>>,
}

impl<T> Default for Jobs<T> {
    fn default() -> Self {
        Self {
            running: Arc::default(),
        }
    }
}

impl<T> Clone for Jobs<T> {
    fn clone(&self) -> Self {
        Self {
            running: Arc::clone(&self.running),
        }
    }
}

impl<T: Clone + Send + 'static> Jobs<T> {
    /// No job runs yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `work` as the job of `key`, in a task of its own. If the same call with the same
    /// fingerprint runs already, `work` is dropped and the result of the running one awaited.
    ///
    /// # Errors
    /// The failure of the job; `Busy` if another job owns the key; `Bug` that may be running if the
    /// job panicked or the runtime ended under it.
    pub async fn run<F>(&self, key: &str, rpc: Rpc, fingerprint: u64, work: F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        match self.begin(key, rpc, fingerprint)? {
            Begun::Joined(result) => result.await.unwrap_or_else(|_| Err(ended_early(rpc))),
            Begun::Owned(mut ownership) => {
                let job = async move {
                    let result = AssertUnwindSafe(work).catch_unwind().await;
                    let result = result.unwrap_or_else(|_| Err(Failure::panicked(rpc)));
                    for joined in ownership.release() {
                        // Whoever joined may have gone away, and then nobody wants the result.
                        drop(joined.send(result.clone()));
                    }
                    result
                };
                let job = tokio::spawn(job.in_current_span());
                job.await.unwrap_or_else(|_| Err(ended_early(rpc)))
            }
        }
    }

    fn begin(&self, key: &str, rpc: Rpc, fingerprint: u64) -> Result<Begun<T>, Failure> {
        let key: Arc<str> = key.into();
        match lock(&self.running).entry(Arc::clone(&key)) {
            Entry::Vacant(free) => {
                let since = Instant::now();
                free.insert(Job {
                    rpc,
                    fingerprint,
                    since,
                    joined: Vec::new(),
                });
            }
            Entry::Occupied(mut taken) => {
                let job = taken.get_mut();
                if job.rpc != rpc || job.fingerprint != fingerprint {
                    return Err(busy(&key, job.rpc, job.since));
                }
                let (sender, receiver) = oneshot::channel();
                job.joined.push(sender);
                return Ok(Begun::Joined(receiver));
            }
        }
        Ok(Begun::Owned(Ownership::new(Arc::clone(&self.running), key)))
    }
}

/// How a call takes part in a job.
enum Begun<T> {
    Owned(Ownership<T>),
    Joined(oneshot::Receiver<Result<T, Failure>>),
}

/// Frees the key when dropped, so that no end of a job, however sudden, can leave it taken.
struct Ownership<T> {
    running: Arc<Running<T>>,
    /// None once freed: by then the key may belong to the next job.
    key: Option<Arc<str>>,
}

impl<T> Ownership<T> {
    fn new(running: Arc<Running<T>>, key: Arc<str>) -> Self {
        metrics::gauge!("belay_jobs_running").increment(1);
        Self {
            running,
            key: Some(key),
        }
    }

    /// Frees the key and hands back who has joined up to now.
    fn release(&mut self) -> Vec<oneshot::Sender<Result<T, Failure>>> {
        let key = self.key.take();
        let job = key.and_then(|key| lock(&self.running).remove(&key));
        job.map_or_else(Vec::new, |job| job.joined)
    }
}

impl<T> Drop for Ownership<T> {
    fn drop(&mut self) {
        drop(self.release());
        metrics::gauge!("belay_jobs_running").decrement(1);
    }
}

/// The map is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(running: &Running<T>) -> MutexGuard<'_, HashMap<Arc<str>, Job<T>>> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}

fn busy(key: &str, rpc: Rpc, since: Instant) -> Failure {
    let seconds = since.elapsed().as_secs();
    Failure::busy(format!(
        "{key}: a {} with other arguments has been running for {seconds} s; repeat the call later",
        rpc.name(),
    ))
}

fn ended_early(rpc: Rpc) -> Failure {
    let message = format!(
        "{} was cut short by the end of the process; repeat it",
        rpc.name()
    );
    Failure::bug(message).may_be_running()
}
