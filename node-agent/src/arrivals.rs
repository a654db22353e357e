//! Keeps the index of disks up to date: by uevents of the kernel, and by reading the serial of each
//! new virtio disk, on a separate thread per disk.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::device::DiskIndex;
use crate::kernel::Disk;
use crate::kernel::linux::Linux;
use crate::kernel::linux::uevent::Uevents;
use crate::work;

/// How long a healthy disk may take to report its serial. After that no volume waits for it.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The maximum number of concurrent reads of serials, including hung ones: each has a thread.
pub(crate) const ASKED_MAX: usize = 16;
/// The pause between two attempts to subscribe to uevents. No event reports that it is possible
/// again.
const PAUSE: Duration = Duration::from_secs(60);

/// Keeps the index up to date while the agent serves.
pub(crate) async fn keep(index: Arc<DiskIndex>, kernel: Linux) -> Infallible {
    let asked = Arc::new(Semaphore::new(ASKED_MAX));
    loop {
        let Err(error) = watch(&index, &kernel, &asked).await;
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
    asked: &Arc<Semaphore>,
) -> io::Result<Infallible> {
    // Also if there is no subscription: calls find disks that are plugged in later.
    ask_new(index, kernel, asked);
    let events = Uevents::open()?;
    let mut arrivals = index.arrivals();
    // For changes before the subscription.
    rescan(index, kernel);
    loop {
        ask_new(index, kernel, asked);
        tokio::select! {
            event = events.changed() => {
                event?;
                index.forgive();
                rescan(index, kernel);
            }
            // A call has found a change by itself.
            changed = arrivals.changed() => changed.map_err(io::Error::other)?,
        }
    }
}

/// Asks the disks that have not been asked, each on a separate thread.
fn ask_new(index: &Arc<DiskIndex>, kernel: &Linux, asked: &Arc<Semaphore>) {
    for disk in index.take_unasked() {
        drop(tokio::spawn(ask(
            Arc::clone(index),
            kernel.clone(),
            disk,
            Arc::clone(asked),
        )));
    }
}

fn rescan(index: &DiskIndex, kernel: &Linux) {
    if let Err(error) = index.rescan(kernel) {
        tracing::warn!("the disks of the node cannot be listed: {error}");
    }
}

async fn ask(index: Arc<DiskIndex>, kernel: Linux, disk: Disk, asked: Arc<Semaphore>) {
    let answer = async {
        // The semaphore is never closed.
        let _permit = asked.acquire_owned().await;
        let (index, disk) = (Arc::clone(&index), disk.clone());
        work::apart(move || index.ask(&kernel, &disk)).await
    };
    let mut answer = std::pin::pin!(answer);
    if tokio::time::timeout(ANSWER_MAX, answer.as_mut())
        .await
        .is_err()
    {
        tracing::warn!("{} does not answer the query for its serial", disk.name);
        index.is_late(&disk);
        drop(answer.await);
    }
}
