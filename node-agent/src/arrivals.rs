//! Keeps the index of disks: by events of the kernel, and by asking each new virtio disk for its
//! serial, on a thread that waits for that disk alone.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::device::DiskIndex;
use crate::kernel::Disk;
use crate::kernel::linux::Linux;
use crate::kernel::linux::uevent::Uevents;
use crate::pool;

/// How long a sound disk may take to say its serial. Beyond that no volume waits for it.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Disks that are asked at once, the dead ones included: each has a thread.
pub(crate) const ASKED_MAX: usize = 16;
/// Between two tries to hear of events. There is no event to wait for.
const PAUSE: Duration = Duration::from_secs(60);

/// Keeps the index up to date, for as long as the agent serves.
pub(crate) async fn keep(index: Arc<DiskIndex>, kernel: Linux) -> Infallible {
    let asked = Arc::new(Semaphore::new(ASKED_MAX));
    loop {
        let Err(error) = watch(&index, &kernel, &asked).await;
        tracing::error!(
            "events about disks cannot be read ({error}): a disk that is attached is found only by \
             the next call; trying again"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch(
    index: &Arc<DiskIndex>,
    kernel: &Linux,
    asked: &Arc<Semaphore>,
) -> io::Result<Infallible> {
    let events = Uevents::open()?;
    let mut arrivals = index.arrivals();
    // What came before the events.
    rescan(index, kernel);
    loop {
        for disk in index.take_unasked() {
            drop(tokio::spawn(ask(
                Arc::clone(index),
                kernel.clone(),
                disk,
                Arc::clone(asked),
            )));
        }
        tokio::select! {
            event = events.changed() => {
                event?;
                index.forgive();
                rescan(index, kernel);
            }
            // A call has found one by itself.
            changed = arrivals.changed() => changed.map_err(io::Error::other)?,
        }
    }
}

fn rescan(index: &DiskIndex, kernel: &Linux) {
    if let Err(error) = index.rescan(kernel) {
        tracing::warn!("which disks there are is not known: {error}");
    }
}

async fn ask(index: Arc<DiskIndex>, kernel: Linux, disk: Disk, asked: Arc<Semaphore>) {
    let answer = async {
        // The semaphore is never closed.
        let _permit = asked.acquire_owned().await;
        let (index, disk) = (Arc::clone(&index), disk.clone());
        pool::apart(move || index.ask(&kernel, &disk)).await
    };
    let mut answer = std::pin::pin!(answer);
    if tokio::time::timeout(ANSWER_MAX, answer.as_mut())
        .await
        .is_err()
    {
        tracing::warn!("{} does not answer when asked for its serial", disk.name);
        index.is_late(&disk);
        drop(answer.await);
    }
}
