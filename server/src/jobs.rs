//! Operations are jobs, not requests: a job owns its key and runs to its end even if the caller
//! goes away; the same request joins it, another one for that key is refused. Knows nothing of
//! volumes.

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
            Begun::Joined(result) => {
                drop(work);
                result.await.unwrap_or_else(|_| Err(ended_early(rpc)))
            }
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
                    return Err(busy(&key, job, rpc));
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

fn busy<T>(key: &str, job: &Job<T>, asked: Rpc) -> Failure {
    let seconds = job.since.elapsed().as_secs();
    let running = job.rpc.name();
    // The arguments of one call say nothing about those of another.
    let how = if job.rpc == asked {
        " with other arguments"
    } else {
        ""
    };
    Failure::busy(format!(
        "{key}: a {running}{how} has been running for {seconds} s; repeat the call later"
    ))
}

fn ended_early(rpc: Rpc) -> Failure {
    let message = format!(
        "{} was cut short by the end of the process; repeat it",
        rpc.name()
    );
    Failure::bug(message).may_be_running()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Certainty, Kind};
    use std::future::pending;
    use tokio::task::{JoinHandle, yield_now};

    /// A job in a caller of its own, that ends with what is sent.
    async fn begun(
        jobs: &Jobs<u32>,
        rpc: Rpc,
        fingerprint: u64,
    ) -> (oneshot::Sender<u32>, JoinHandle<Result<u32, Failure>>) {
        let (end, ended) = oneshot::channel();
        let jobs = jobs.clone();
        let caller = tokio::spawn(async move {
            let work = async { Ok(ended.await.unwrap()) };
            jobs.run("vol-1", rpc, fingerprint, work).await
        });
        yield_now().await;
        (end, caller)
    }

    fn keys<T>(jobs: &Jobs<T>) -> usize {
        lock(&jobs.running).len()
    }

    #[tokio::test]
    async fn the_same_request_joins_and_gets_the_same_result() {
        let jobs = Jobs::new();
        let (end, first) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
        let (unused, second) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
        assert!(unused.is_closed(), "the work of the second is dropped");
        assert_eq!(keys(&jobs), 1);
        end.send(42).unwrap();
        assert_eq!(first.await.unwrap(), Ok(42));
        assert_eq!(second.await.unwrap(), Ok(42));
        assert_eq!(keys(&jobs), 0);
    }

    #[tokio::test]
    async fn another_request_for_the_key_is_refused_and_told_what_runs() {
        let jobs = Jobs::new();
        let (_end, _first) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
        for (rpc, fingerprint) in [(Rpc::NodeStageVolume, 8), (Rpc::NodeUnstageVolume, 7)] {
            let refused = jobs
                .run("vol-1", rpc, fingerprint, pending())
                .await
                .unwrap_err();
            assert_eq!(refused.kind, Kind::Busy);
            assert_eq!(refused.certainty, Certainty::NothingHappened);
            let how = match rpc {
                Rpc::NodeStageVolume => " with other arguments",
                _ => "",
            };
            let running = format!("vol-1: a NodeStageVolume{how} has been running for ");
            assert!(refused.message.starts_with(&running), "{refused}");
        }
        assert_eq!(
            jobs.run("vol-2", Rpc::NodeStageVolume, 8, async { Ok(1) })
                .await,
            Ok(1)
        );
    }

    #[tokio::test]
    async fn a_job_outlives_its_caller_and_serves_the_next_one() {
        let jobs = Jobs::new();
        let (end, first) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(!end.is_closed(), "the work goes on");
        let (_unused, second) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
        end.send(42).unwrap();
        assert_eq!(second.await.unwrap(), Ok(42));
        assert_eq!(keys(&jobs), 0);
    }

    #[tokio::test]
    async fn a_panic_reaches_all_who_wait_as_maybe_running_and_frees_the_key() {
        let jobs = Jobs::new();
        // Its work unwraps the error of a sender that is gone.
        let (end, first) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
        let (_unused, second) = begun(&jobs, Rpc::NodeStageVolume, 7).await;
        drop(end);
        for caller in [first, second] {
            let failure = caller.await.unwrap().unwrap_err();
            assert_eq!(failure.kind, Kind::Bug);
            assert_eq!(failure.certainty, Certainty::MayBeRunning);
        }
        assert_eq!(
            jobs.run("vol-1", Rpc::NodeUnstageVolume, 1, async { Ok(1) })
                .await,
            Ok(1)
        );
    }

    #[test]
    fn a_job_cut_short_by_the_end_of_its_runtime_frees_the_key() {
        let jobs: Jobs<u32> = Jobs::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let (_end, _first) = runtime.block_on(begun(&jobs, Rpc::NodeStageVolume, 7));
        assert_eq!(keys(&jobs), 1);
        drop(runtime);
        assert_eq!(keys(&jobs), 0);
    }

    #[test]
    fn fingerprints_tell_requests_apart_and_repetitions_not() {
        let request = |path: &str, read_only: bool| fingerprint(&(path.to_owned(), read_only));
        assert_eq!(request("/a", true), request("/a", true));
        assert_ne!(request("/a", true), request("/a", false));
        assert_ne!(request("/a", true), request("/b", true));
    }
}
