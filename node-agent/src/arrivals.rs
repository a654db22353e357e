//! Keeps the index of disks up to date: subscribes to the kernel's uevents, and reads the serial
//! number of each new virtio disk on a separate thread.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::device::{ANSWER_MAX, DiskIndex};
use crate::kernel::Disk;
use crate::kernel::linux::Linux;
use crate::kernel::linux::uevent::Uevents;
use crate::work;

/// Maximum number of disks whose serial numbers are read at the same time, each on a separate
/// thread.
const ASKED_MAX: usize = 16;
/// Maximum number of threads, in addition to [`ASKED_MAX`], that wait for disks which do not
/// respond. A disk that does not respond in time does not delay the reads of other disks, and is
/// not read a second time.
const HUNG_MAX: usize = 256;
/// Maximum number of threads that read serial numbers.
pub(crate) const THREADS_MAX: usize = ASKED_MAX + HUNG_MAX;
/// The pause between two attempts to subscribe to uevents. The agent receives no event when a
/// subscription becomes possible.
const PAUSE: Duration = Duration::from_secs(60);

/// Permits for the threads that read serial numbers: `asked` for new reads, `hung` for reads that
/// have exceeded their deadline.
struct Slots {
    asked: Semaphore,
    hung: Semaphore,
}

impl Slots {
    fn new() -> Arc<Self> {
        Arc::new(Slots {
            asked: Semaphore::new(ASKED_MAX),
            hung: Semaphore::new(HUNG_MAX),
        })
    }
}

/// Keeps the index of disks up to date while the agent serves calls.
pub(crate) async fn keep(index: Arc<DiskIndex>, kernel: Linux) -> Infallible {
    let slots = Slots::new();
    loop {
        let Err(error) = watch(&index, &kernel, &slots).await;
        tracing::error!(
            "uevents of disks cannot be read ({error}): a disk that is attached is found only by \
             the next call; retrying"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch(
    index: &Arc<DiskIndex>,
    kernel: &Linux,
    slots: &Arc<Slots>,
) -> io::Result<Infallible> {
    // Read the serial numbers even if the subscription fails, because CSI calls also list the
    // disks, and thereby find new disks.
    ask_new(index, kernel, slots);
    let events = Uevents::open()?;
    let mut arrivals = index.arrivals();
    // List the disks now, because the kernel sends no events for changes before the subscription.
    rescan(index, kernel);
    loop {
        ask_new(index, kernel, slots);
        tokio::select! {
            event = events.changed() => {
                event?;
                index.forgive();
                rescan(index, kernel);
            }
            // A CSI call has listed the disks and has found a change.
            changed = arrivals.changed() => changed.map_err(io::Error::other)?,
        }
    }
}

/// Reads the serial numbers of disks whose serial numbers are unknown, each on a separate thread.
fn ask_new(index: &Arc<DiskIndex>, kernel: &Linux, slots: &Arc<Slots>) {
    for disk in index.take_unasked() {
        drop(tokio::spawn(ask(
            Arc::clone(index),
            kernel.clone(),
            disk,
            Arc::clone(slots),
        )));
    }
}

fn rescan(index: &DiskIndex, kernel: &Linux) {
    if let Err(error) = index.rescan(kernel) {
        tracing::warn!("the disks of the node cannot be listed: {error}");
    }
}

async fn ask(index: Arc<DiskIndex>, kernel: Linux, disk: Disk, slots: Arc<Slots>) {
    let (of, at) = (Arc::clone(&index), disk.clone());
    query(&index, &disk, &slots, move || of.ask(&kernel, &at)).await;
}

/// Runs `work`, which reads a disk's serial number, on a thread. If the disk does not respond in
/// time, replaces the permit of the thread by a permit for hung disks, if one is available.
async fn query(
    index: &DiskIndex,
    disk: &Disk,
    slots: &Slots,
    work: impl FnOnce() + Send + 'static,
) {
    // Acquiring a permit fails only if the semaphore is closed, and the semaphore is never closed.
    let slot = slots.asked.acquire().await;
    let mut answer = std::pin::pin!(work::apart(work));
    let ended = match tokio::time::timeout(ANSWER_MAX, answer.as_mut()).await {
        Ok(ended) => ended,
        Err(_) => {
            tracing::warn!(
                "{} does not respond to the query for its serial number",
                disk.name
            );
            index.is_late(disk);
            let hung = slots.hung.try_acquire();
            if hung.is_ok() {
                drop(slot);
            }
            answer.await
        }
    };
    if let Err(failure) = ended {
        index.has_failed(disk, &failure.message);
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::mpsc;

    use super::*;
    use crate::kernel::fake::{Fake, Machine, Plug};

    /// Returns an index with `count` disks whose serial numbers are unknown.
    fn plugged(count: usize) -> (Arc<DiskIndex>, Fake, Vec<Disk>) {
        let machine = Machine::new();
        for number in 0..count {
            let medium = PathBuf::from(format!("/media/{number}"));
            machine.make_file(Path::new(&medium), 1 << 20);
            machine.plug(Plug::virtio(&medium, &format!("vol-{number}")));
        }
        let (index, kernel) = (Arc::new(DiskIndex::new()), machine.process());
        index.rescan(&kernel).unwrap();
        let disks = index.take_unasked();
        assert_eq!(disks.len(), count);
        (index, kernel, disks)
    }

    fn described(index: &DiskIndex, disk: &Disk) -> String {
        let all = index.described();
        let found = all.into_iter().find(|it| it.starts_with(&disk.name));
        found.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn silent_disks_do_not_keep_others_from_being_recognised() {
        let (index, kernel, mut disks) = plugged(ASKED_MAX + 1);
        let slots = Slots::new();
        let healthy = disks.pop().unwrap();
        let (release, silence) = mpsc::channel::<()>();
        let silence = Arc::new(std::sync::Mutex::new(silence));
        for disk in disks.clone() {
            let (index, slots) = (Arc::clone(&index), Arc::clone(&slots));
            let silence = Arc::clone(&silence);
            let wait = move || assert!(silence.lock().unwrap().recv().is_err());
            tokio::spawn(async move { query(&index, &disk, &slots, wait).await });
        }
        tokio::task::yield_now().await;
        assert_eq!(slots.asked.available_permits(), 0);
        tokio::time::advance(ANSWER_MAX).await;
        for _ in &disks {
            tokio::task::yield_now().await;
        }
        assert_eq!(slots.asked.available_permits(), ASKED_MAX);
        let of = (Arc::clone(&index), healthy.clone());
        query(&index, &healthy, &slots, move || of.0.ask(&kernel, &of.1)).await;
        assert!(described(&index, &healthy).contains("virtio-vol-"));
        for disk in &disks {
            assert!(described(&index, disk).contains("does not answer"));
        }
        drop(release);
    }

    #[tokio::test]
    async fn a_query_that_panics_has_failed_and_is_repeated_after_the_next_event() {
        let (index, kernel, disks) = plugged(1);
        let slots = Slots::new();
        query(&index, &disks[0], &slots, || panic!("a bug")).await;
        assert!(described(&index, &disks[0]).contains("ended abnormally"));
        index.forgive();
        let again = index.take_unasked();
        assert_eq!(again, disks);
        index.ask(&kernel, &again[0]);
        assert!(described(&index, &disks[0]).contains("virtio-vol-0"));
    }
}
