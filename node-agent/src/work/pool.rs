//! The threads on which system calls of one driver may wait for a disk. Each driver has its own
//! pool, so that hung storage of one driver does not block another driver.
//!
//! The number of threads is bounded, even on a node with many hung disks. Slots limit the work that
//! makes progress. Work that has become slow gives its slot back, so that a hung disk blocks only
//! its own volume; a separate limit bounds the threads with slow work. Reads cannot take all slots.
//! A volume has at most one change in progress, so one volume always leaves a slot to the others.
//! mkfs and e2fsck have separate slots, so that a dozen blank volumes never delay an unmount.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belay_server::call::Failure;
use belay_server::work::{Doing, Ticket, Watch};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::Progress;
use super::threads::{Running, Threads, spawn};

/// Maximum number of threads with work that is not slow, except mkfs and e2fsck. Each thread costs
/// 70 KiB.
const SLOTS: usize = 4;
/// The number of slots that reads may take, whether of one volume or of many.
const READ_SLOTS: usize = 2;
/// Maximum number of mkfs and e2fsck processes that run at once. The disk limits their speed, not
/// the CPU.
const FORMAT_SLOTS: usize = 2;
/// Maximum number of threads with slow work, in addition to the slots. If that many volumes hang,
/// further slow work keeps its slot.
const SLOW_MAX: usize = 64;
/// Maximum number of threads with slow reads. It is separate from [`SLOW_MAX`] so that reads of a
/// hung disk leave threads for unmounts.
const SLOW_READS_MAX: usize = 16;

/// Maximum number of threads of one driver: all slots, all slow work, and two for [`apart`], of
/// which one may read a config drive that hangs.
pub(crate) const THREADS_MAX: usize = SLOTS + FORMAT_SLOTS + SLOW_MAX + SLOW_READS_MAX + 2;

/// Gauge: the number of threads with work of operations, by `state`.
const THREADS: &str = "belay_pool_threads";
/// Gauge: the number of operations that wait for a thread.
const WAITING: &str = "belay_pool_waiting";

/// A kind of work, which determines the slots that it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Work that changes a volume.
    Change,
    /// Work that only reads.
    Read,
    /// Work that may run mkfs or e2fsck, which usually take longer.
    Format,
}

impl Lane {
    /// The time after which work counts as slow. For changes, it is longer than a mount on a
    /// healthy disk takes, but short enough for others to wait. For mkfs and e2fsck, it is longer
    /// than they take on all but the largest volumes.
    fn slow_after(self) -> Duration {
        match self {
            Lane::Change | Lane::Read => Duration::from_secs(1),
            Lane::Format => Duration::from_secs(60),
        }
    }

    /// The resource that a call waits for, as named in its errors.
    fn slot_name(self) -> &'static str {
        match self {
            Lane::Change | Lane::Read => {
                "a thread of this driver; operations on slow disks occupy all of them"
            }
            Lane::Format => "one of the two slots for mkfs and e2fsck, which other volumes occupy",
        }
    }
}

/// Notified whenever a pool or a helper process begins work.
pub(crate) static WORKED: Notify = Notify::const_new();

/// The slots and threads of one driver.
pub(crate) struct Pool {
    slots: Arc<Semaphore>,
    read_slots: Arc<Semaphore>,
    format_slots: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    slow_reads: Arc<Semaphore>,
    waiting: AtomicU32,
    threads: Arc<Threads>,
}

/// Describes the gauges that [`measure`] sets. Call it once.
pub(super) fn announce() {
    metrics::describe_gauge!(THREADS, "Threads that work for operations.");
    metrics::describe_gauge!(WAITING, "Operations that wait for a thread.");
}

/// Work for a thread. It is boxed so that the future of a waiting call is small, and so that the
/// code around the work is compiled only once per type of result.
type Work<T> = Box<dyn FnOnce(&Progress) -> Result<T, Failure> + Send>;

/// Work that was handed to a thread.
enum ThreadWork<T> {
    /// The work ended before it counted as slow.
    Ended(Result<T, Failure>),
    /// The work is still running. It holds a permit for a thread with slow work, or keeps its slot
    /// if all these permits were taken.
    Slow(
        Running<Result<T, Failure>>,
        Result<OwnedSemaphorePermit, Slot>,
    ),
}

/// The right to run work on a thread of the pool. It is released when dropped.
struct Slot {
    _slot: OwnedSemaphorePermit,
    /// The additional permit that a read needs; `None` for other work.
    _read: Option<OwnedSemaphorePermit>,
}

impl Pool {
    pub(crate) fn new() -> Arc<Self> {
        let slots = |count| Arc::new(Semaphore::new(count));
        Arc::new(Pool {
            slots: slots(SLOTS),
            read_slots: slots(READ_SLOTS),
            format_slots: slots(FORMAT_SLOTS),
            slow: slots(SLOW_MAX),
            slow_reads: slots(SLOW_READS_MAX),
            waiting: AtomicU32::new(0),
            threads: Arc::default(),
        })
    }

    /// Runs `work`, a part of a job or all of it, on a thread, and shows its progress in the job.
    /// Waits for a slot first.
    ///
    /// # Errors
    /// Returns the error of `work`. Returns the reason if the job was cancelled while it waited for
    /// a slot. Returns `INTERNAL` if `work` panicked; an effect of it may still be in progress.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        ticket: &Ticket,
        lane: Lane,
        work: impl FnOnce(&Progress) -> Result<T, Failure> + Send + 'static,
    ) -> impl Future<Output = Result<T, Failure>> {
        let begin = self.begin(ticket, lane, Box::new(work));
        async move {
            match begin.await? {
                ThreadWork::Ended(result) => result,
                ThreadWork::Slow(mut thread, _held) => thread.result().await?,
            }
        }
    }

    async fn begin<T: Send + 'static>(
        &self,
        ticket: &Ticket,
        lane: Lane,
        work: Work<T>,
    ) -> Result<ThreadWork<T>, Failure> {
        let slot = ticket.wait(lane.slot_name(), self.slot(lane)).await??;
        let progress = Arc::new(Progress::default());
        ticket.watched_by(Window(Arc::clone(&progress)));
        WORKED.notify_one();
        let mut thread = self.threads.run(move || work(&progress));
        match tokio::time::timeout(lane.slow_after(), thread.result()).await {
            Ok(result) => Ok(ThreadWork::Ended(result?)),
            Err(_) => Ok(ThreadWork::Slow(thread, self.release_slow(lane, slot))),
        }
    }

    async fn slot(&self, lane: Lane) -> Result<Slot, Failure> {
        let _waiting = Counted::one_more(&self.waiting);
        let read = match lane {
            Lane::Read => Some(permit(&self.read_slots).await?),
            Lane::Change | Lane::Format => None,
        };
        let slots = match lane {
            Lane::Read | Lane::Change => &self.slots,
            Lane::Format => &self.format_slots,
        };
        Ok(Slot {
            _slot: permit(slots).await?,
            _read: read,
        })
    }

    /// Releases the slot of work that has become slow, and returns a permit for a thread with slow
    /// work. If all these permits are taken, returns the slot, which the work keeps.
    fn release_slow(&self, lane: Lane, slot: Slot) -> Result<OwnedSemaphorePermit, Slot> {
        let slow = match lane {
            Lane::Change | Lane::Format => &self.slow,
            Lane::Read => &self.slow_reads,
        };
        Arc::clone(slow).try_acquire_owned().map_err(|_| slot)
    }

    fn slow_taken(&self) -> u32 {
        taken(&self.slow, SLOW_MAX) + taken(&self.slow_reads, SLOW_READS_MAX)
    }
}

/// Sets the gauges to the sums over the pools of all drivers.
pub(crate) fn measure(pools: &[Arc<Pool>]) {
    let sum = |of: fn(&Pool) -> u32| pools.iter().map(|pool| of(pool)).sum::<u32>();
    let threads = |state| metrics::gauge!(THREADS, "state" => state);
    threads("working").set(sum(|pool| taken(&pool.slots, SLOTS)));
    threads("formatting").set(sum(|pool| taken(&pool.format_slots, FORMAT_SLOTS)));
    threads("slow").set(sum(Pool::slow_taken));
    metrics::gauge!(WAITING).set(sum(|pool| pool.waiting.load(Ordering::Relaxed)));
}

fn taken(slots: &Semaphore, of: usize) -> u32 {
    u32::try_from(of.saturating_sub(slots.available_permits())).unwrap_or(u32::MAX)
}

/// Shows the progress of work on a thread in the view of its job.
struct Window(Arc<Progress>);

impl Watch for Window {
    fn doing(&self) -> Option<Doing> {
        let phase = self.0.now()?;
        Some(Doing {
            step: phase.name(),
            amount: self.0.amount(),
        })
    }

    fn give_up(&self) -> bool {
        self.0.give_up()
    }
}

/// Adds one to a counter while this exists.
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

/// Runs work on a separate thread, without a slot. It is for the start of a driver, whose disk may
/// not answer, and which has only one such work at a time.
pub(crate) fn apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, Failure>> {
    let thread = spawn(work);
    async {
        let result = thread.await;
        let why = |error| format!("work of the start ended abnormally: {error}");
        result.map_err(|error| Failure::bug(why(error)).may_be_running())
    }
}

async fn permit(slots: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    let permit = Arc::clone(slots).acquire_owned().await;
    permit.map_err(|_| Failure::bug("the pool is closed; the agent is shutting down"))
}
