//! The few threads on which system calls may wait for a disk.
//!
//! Bounded: a node whose disks hang must not collect threads. mkfs has places of its own, so that
//! a dozen blank volumes never keep an unmount waiting.

use std::sync::Arc;

use belay_server::failure::Failure;
use tokio::sync::Semaphore;

/// Operations that run at once. Volumes beyond that queue; each place costs a thread's 150 KiB.
const PLACES: usize = 4;
/// mkfs children that run at once; they are bound by the disk, not by us.
const FORMAT_PLACES: usize = 2;

/// Threads that the runtime may need for all places.
pub(crate) const THREADS_MAX: usize = PLACES + FORMAT_PLACES;

/// Who may use the threads.
pub(crate) struct Pool {
    places: Arc<Semaphore>,
    format_places: Arc<Semaphore>,
}

impl Pool {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Pool {
            places: Arc::new(Semaphore::new(PLACES)),
            format_places: Arc::new(Semaphore::new(FORMAT_PLACES)),
        })
    }

    /// Runs `work` on a thread of the pool.
    ///
    /// # Errors
    /// Those of `work`; `INTERNAL`, and perhaps still running, when it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        on_thread(&self.places, work).await
    }

    /// [`Pool::run`] for work that may start mkfs.
    ///
    /// # Errors
    /// As [`Pool::run`].
    pub(crate) async fn run_format<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        on_thread(&self.format_places, work).await
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that hands work to threads"
)]
async fn on_thread<T: Send + 'static>(
    places: &Arc<Semaphore>,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let place = Arc::clone(places)
        .acquire_owned()
        .await
        .map_err(|_| Failure::bug("the pool is closed; the agent is ending"))?;
    let work = move || {
        let result = work();
        // Only now: a caller that goes away does not end a thread that hangs.
        drop(place);
        result
    };
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| {
            Err(Failure::bug(format!("an operation broke off: {error}")).may_be_running())
        })
}
