//! The few threads on which system calls of one driver may wait for a disk. Each driver has its
//! own, so that one whose storage hangs takes none from another.
//!
//! Bounded: a node whose disks hang must not collect threads. Work that takes long gives its place
//! on, so that a dead disk holds up its own volume and nothing else: places count work that makes
//! headway, and threads are what is bounded in the end. Reads cannot take all places, so one
//! volume, which has at most one change under way, always leaves a place to the others. mkfs has
//! places of its own: a dozen blank volumes never keep an unmount waiting.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belay_server::call::Failure;
use belay_server::work::{Ticket, Watch};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinHandle};

use crate::operation::phase::{Phase, Progress};

/// Work that makes headway at once. Each thread costs 70 KiB.
const PLACES: usize = 4;
/// How many of the places may be taken by reads, of one volume or of many.
const READ_PLACES: usize = 2;
/// mkfs children that run at once; they are bound by the disk, not by us.
const FORMAT_PLACES: usize = 2;
/// Threads whose work takes long, beyond the places. When that many volumes hang, the places are
/// all that is left.
const SLOW_MAX: usize = 64;
/// The same for reads, so that those of a disk that is gone leave room for its unmounts.
const SLOW_READS_MAX: usize = 16;

/// Threads that the runtime may need for one driver: all places, and its work of [`apart`].
pub(crate) const THREADS_MAX: usize = PLACES + FORMAT_PLACES + SLOW_MAX + SLOW_READS_MAX + 1;

/// Gauge: threads that work for operations, by `state`.
const THREADS: &str = "belay_pool_threads";
/// Gauge: operations that wait for a thread.
const WAITING: &str = "belay_pool_waiting";

/// What kind of work it is, and thus which places it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Changes something.
    Change,
    /// Looks only.
    Read,
    /// May start mkfs, which takes longer as a rule.
    Format,
}

impl Lane {
    /// From when on its work takes long. A change: beyond what a mount of a sound disk needs, and
    /// short enough that others hardly notice that they waited for it. mkfs: beyond what it needs
    /// for all but the largest volumes; who then still holds a place has a disk that hangs.
    fn slow_after(self) -> Duration {
        match self {
            Lane::Change | Lane::Read => Duration::from_secs(1),
            Lane::Format => Duration::from_secs(60),
        }
    }

    /// What calls wait for, as their callers are told.
    fn place_name(self) -> &'static str {
        match self {
            Lane::Change | Lane::Read => "a place on the agent's threads, which slow disks hold",
            Lane::Format => "one of the two places for mkfs, which other volumes have",
        }
    }
}

/// Who may use the threads of one driver.
pub(crate) struct Pool {
    places: Arc<Semaphore>,
    read_places: Arc<Semaphore>,
    format_places: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    slow_reads: Arc<Semaphore>,
    waiting: AtomicU32,
}

/// Describes what [`measure`] sets. To be called once.
pub(crate) fn announce() {
    metrics::describe_gauge!(THREADS, "Threads that work for operations.");
    metrics::describe_gauge!(WAITING, "Operations that wait for a thread.");
}

/// A right to run, given back when dropped.
struct Place {
    _place: OwnedSemaphorePermit,
    /// For reads alone.
    _read: Option<OwnedSemaphorePermit>,
}

impl Pool {
    pub(crate) fn new() -> Arc<Self> {
        let places = |count| Arc::new(Semaphore::new(count));
        Arc::new(Pool {
            places: places(PLACES),
            read_places: places(READ_PLACES),
            format_places: places(FORMAT_PLACES),
            slow: places(SLOW_MAX),
            slow_reads: places(SLOW_READS_MAX),
            waiting: AtomicU32::new(0),
        })
    }

    /// Runs `work`, the whole of a job or a part of it, on a thread. Others see its progress.
    ///
    /// # Errors
    /// Those of `work`; why the job was given up, if it was while it waited for a place;
    /// `INTERNAL`, and perhaps still running, when `work` panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        ticket: &Ticket,
        lane: Lane,
        work: impl FnOnce(&Progress) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let place = ticket.wait(lane.place_name(), self.place(lane)).await??;
        let progress = Arc::new(Progress::default());
        ticket.watched_by(Window(Arc::clone(&progress)));
        let mut thread = spawn(move || work(&progress));
        if let Ok(result) = tokio::time::timeout(lane.slow_after(), &mut thread).await {
            return result.unwrap_or_else(broke_off);
        }
        let _held = self.give_on(lane, place);
        thread.await.unwrap_or_else(broke_off)
    }

    async fn place(&self, lane: Lane) -> Result<Place, Failure> {
        let _waiting = Counted::one_more(&self.waiting);
        let read = match lane {
            Lane::Read => Some(permit(&self.read_places).await?),
            Lane::Change | Lane::Format => None,
        };
        let places = match lane {
            Lane::Read | Lane::Change => &self.places,
            Lane::Format => &self.format_places,
        };
        Ok(Place {
            _place: permit(places).await?,
            _read: read,
        })
    }

    /// Lets others have the place of work that takes long, as long as threads are left.
    fn give_on(&self, lane: Lane, place: Place) -> Result<OwnedSemaphorePermit, Place> {
        let slow = match lane {
            Lane::Change | Lane::Format => &self.slow,
            Lane::Read => &self.slow_reads,
        };
        Arc::clone(slow).try_acquire_owned().map_err(|_| place)
    }

    fn slow_taken(&self) -> u32 {
        taken(&self.slow, SLOW_MAX) + taken(&self.slow_reads, SLOW_READS_MAX)
    }
}

/// Sets the gauges, for the pools of all drivers together.
pub(crate) fn measure(pools: &[Arc<Pool>]) {
    let sum = |of: fn(&Pool) -> u32| pools.iter().map(|pool| of(pool)).sum::<u32>();
    let threads = |state| metrics::gauge!(THREADS, "state" => state);
    threads("working").set(sum(|pool| taken(&pool.places, PLACES)));
    threads("formatting").set(sum(|pool| taken(&pool.format_places, FORMAT_PLACES)));
    threads("slow").set(sum(Pool::slow_taken));
    metrics::gauge!(WAITING).set(sum(|pool| pool.waiting.load(Ordering::Relaxed)));
}

fn taken(places: &Semaphore, of: usize) -> u32 {
    u32::try_from(of.saturating_sub(places.available_permits())).unwrap_or(u32::MAX)
}

/// Shows the work of a thread to those who look at the job.
struct Window(Arc<Progress>);

impl Watch for Window {
    fn doing(&self) -> Option<&'static str> {
        self.0.now().map(Phase::name)
    }
}

/// One in a count, as long as it lives.
struct Counted<'a>(&'a AtomicU32);

impl<'a> Counted<'a> {
    fn one_more(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs work of the start of a driver on a thread beyond the places: its disk may not answer, and
/// a driver has one such work at a time.
pub(crate) fn apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, Failure>> {
    let thread = spawn(work);
    async { thread.await.or_else(broke_off) }
}

async fn permit(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    let permit = Arc::clone(places).acquire_owned().await;
    permit.map_err(|_| Failure::bug("the pool is closed; the agent is ending"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that hands work to threads"
)]
fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(work)
}

fn broke_off<T>(error: JoinError) -> Result<T, Failure> {
    Err(Failure::bug(format!("an operation broke off: {error}")).may_be_running())
}
