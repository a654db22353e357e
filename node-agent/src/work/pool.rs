//! The pool of threads on which a driver makes system calls that may block on a disk. Each driver
//! has a separate pool, so that the hung storage of one driver does not block the other drivers.
//!
//! The number of threads is bounded, even on a node with many hung disks. A task needs a slot to
//! start. A task that has become slow releases its slot, so that a hung disk blocks only its own
//! volume; the number of threads with slow tasks has a separate limit. Reads cannot occupy all
//! slots. Each volume has at most one change in progress, so a single volume cannot occupy all
//! slots. Tasks with mkfs or e2fsck have separate slots, so that many blank volumes do not delay an
//! unmount, and so have tasks that open encrypted volumes.

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

/// Maximum number of threads with work that is not slow, without mkfs and e2fsck. Each thread needs
/// 70 KiB of memory.
const SLOTS: usize = 4;
/// The number of slots that reads may occupy, for all volumes together.
const READ_SLOTS: usize = 2;
/// Maximum number of mkfs and e2fsck processes for volumes without encryption. The limit is low
/// because their speed depends on the disk, not on the CPU.
const FORMAT_SLOTS: usize = 2;
/// Maximum number of encrypted volumes that are opened at once, with mkfs and e2fsck inside of
/// them. One derives a key while another one formats.
const UNLOCK_SLOTS: usize = 2;
/// Maximum number of threads with slow changes, including mkfs and e2fsck, in addition to the
/// slots. When this number is reached, a further slow change keeps its slot.
const SLOW_MAX: usize = 64;
/// Maximum number of threads with slow reads. Reads have a separate limit, so that reads of a hung
/// disk do not use the threads for unmounts.
const SLOW_READS_MAX: usize = 16;

/// Maximum number of threads of one driver: the slots, the threads with slow work, and two threads
/// for [`apart`], because one of these may hang while it reads a config drive.
pub(crate) const THREADS_MAX: usize =
    SLOTS + FORMAT_SLOTS + UNLOCK_SLOTS + SLOW_MAX + SLOW_READS_MAX + 2;

/// Gauge: the number of threads that run operations, by `state`.
const THREADS: &str = "belay_pool_threads";
/// Gauge: the number of operations that wait for a thread.
const WAITING: &str = "belay_pool_waiting";

/// A kind of work, which determines the slots that the work may occupy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Work that changes a volume.
    Change,
    /// Work that only reads.
    Read,
    /// Work that may run mkfs or e2fsck, and therefore usually takes longer.
    Format,
    /// Work that opens an encrypted volume, and may run mkfs or e2fsck.
    Unlock,
}

impl Lane {
    /// Returns the time after which work is considered slow. For changes, this time is longer than
    /// a mount on a healthy disk takes, but short enough for other volumes to wait. For mkfs and
    /// e2fsck, the time is sufficient for all but the largest volumes.
    fn slow_after(self) -> Duration {
        match self {
            Lane::Change | Lane::Read => Duration::from_secs(1),
            Lane::Format | Lane::Unlock => Duration::from_secs(60),
        }
    }

    /// Returns the name of the resource for which a call in this lane waits, for error messages.
    fn slot_name(self) -> &'static str {
        match self {
            Lane::Change | Lane::Read => {
                "a thread of this driver; operations on slow disks occupy all of them"
            }
            Lane::Format => "one of the two slots for mkfs and e2fsck, which other volumes occupy",
            Lane::Unlock => {
                "one of the two slots for encrypted volumes, which other volumes occupy"
            }
        }
    }

    /// Whether the work may run mkfs or e2fsck.
    pub(crate) fn may_format(self) -> bool {
        matches!(self, Lane::Format | Lane::Unlock)
    }
}

/// A notification that is sent whenever a pool or a helper process begins work.
pub(crate) static WORKED: Notify = Notify::const_new();

/// The slots and threads of one driver.
pub(crate) struct Pool {
    slots: Arc<Semaphore>,
    read_slots: Arc<Semaphore>,
    format_slots: Arc<Semaphore>,
    unlock_slots: Arc<Semaphore>,
    slow: Arc<Semaphore>,
    slow_reads: Arc<Semaphore>,
    waiting: AtomicU32,
    threads: Arc<Threads>,
}

/// Registers the descriptions of the gauges that [`measure`] sets. Call it once.
pub(super) fn announce() {
    metrics::describe_gauge!(THREADS, "Threads that work for operations.");
    metrics::describe_gauge!(WAITING, "Operations that wait for a thread.");
}

/// The work that a thread runs. The closure is boxed so that the future of a waiting call is small,
/// and so that generic code is compiled only once per result type.
type Work<T> = Box<dyn FnOnce(&Progress) -> Result<T, Failure> + Send>;

/// The state of work that was passed to a thread.
enum ThreadWork<T> {
    /// The work was completed before it was considered slow.
    Ended(Result<T, Failure>),
    /// The work is slow and still running. The work holds a permit for a thread with slow work; if
    /// no such permit was available, the work still holds its slot.
    Slow(
        Running<Result<T, Failure>>,
        Result<OwnedSemaphorePermit, Slot>,
    ),
}

/// The right to run work on a thread of the pool, which is released when dropped.
struct Slot {
    _slot: OwnedSemaphorePermit,
    /// The second permit that a read needs; `None` for other work.
    _read: Option<OwnedSemaphorePermit>,
}

impl Pool {
    pub(crate) fn new() -> Arc<Self> {
        let slots = |count| Arc::new(Semaphore::new(count));
        Arc::new(Pool {
            slots: slots(SLOTS),
            read_slots: slots(READ_SLOTS),
            format_slots: slots(FORMAT_SLOTS),
            unlock_slots: slots(UNLOCK_SLOTS),
            slow: slots(SLOW_MAX),
            slow_reads: slots(SLOW_READS_MAX),
            waiting: AtomicU32::new(0),
            threads: Arc::default(),
        })
    }

    /// Waits for a slot, runs `work` on a thread, and shows the progress of `work` in its job. A
    /// job may call this several times.
    ///
    /// # Errors
    /// Returns the error of `work`. Returns the reason of the cancellation if the job was cancelled
    /// while it waited for a slot. Returns `INTERNAL` if `work` panicked; changes by `work` may
    /// then still be in progress.
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
            Lane::Change | Lane::Format | Lane::Unlock => None,
        };
        let slots = match lane {
            Lane::Read | Lane::Change => &self.slots,
            Lane::Format => &self.format_slots,
            Lane::Unlock => &self.unlock_slots,
        };
        Ok(Slot {
            _slot: permit(slots).await?,
            _read: read,
        })
    }

    /// Releases the slot of work that has become slow, and returns a permit for a thread with slow
    /// work. If no such permit is available, returns `Err` with the slot, which the work then
    /// keeps.
    fn release_slow(&self, lane: Lane, slot: Slot) -> Result<OwnedSemaphorePermit, Slot> {
        let slow = match lane {
            Lane::Change | Lane::Format | Lane::Unlock => &self.slow,
            Lane::Read => &self.slow_reads,
        };
        Arc::clone(slow).try_acquire_owned().map_err(|_| slot)
    }

    fn slow_taken(&self) -> u32 {
        taken(&self.slow, SLOW_MAX) + taken(&self.slow_reads, SLOW_READS_MAX)
    }
}

/// Sets the gauges to the total numbers in the pools of all drivers.
pub(crate) fn measure(pools: &[Arc<Pool>]) {
    let sum = |of: fn(&Pool) -> u32| pools.iter().map(|pool| of(pool)).sum::<u32>();
    let threads = |state| metrics::gauge!(THREADS, "state" => state);
    threads("working").set(sum(|pool| taken(&pool.slots, SLOTS)));
    threads("formatting").set(sum(|pool| taken(&pool.format_slots, FORMAT_SLOTS)));
    threads("unlocking").set(sum(|pool| taken(&pool.unlock_slots, UNLOCK_SLOTS)));
    threads("slow").set(sum(Pool::slow_taken));
    metrics::gauge!(WAITING).set(sum(|pool| pool.waiting.load(Ordering::Relaxed)));
}

fn taken(slots: &Semaphore, of: usize) -> u32 {
    u32::try_from(of.saturating_sub(slots.available_permits())).unwrap_or(u32::MAX)
}

/// Reports the progress of work on a thread to the job of this work.
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

/// Increments a counter when created, and decrements the counter when dropped.
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

/// Runs work on a separate thread, without a slot. Use it for work outside of CSI calls that may
/// block on a disk, such as the startup of a driver. The caller must limit the number of these
/// threads.
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
