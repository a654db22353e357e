//! A pod that keeps writing: numbered records, one after the other, each durable before the next.
//! So any copy of the volume must have all records up to some moment, and none after it.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::kind::Kind;
use crate::pattern;
use crate::proof::{Aligned, DATA_BYTES, open};
use crate::trouble::Trouble;

/// Size of a record: a block of any filesystem.
const RECORD_BYTES: usize = 4096;
/// The writer stops there, so that a slow machine does not fill its disk.
const RECORDS_MAX: u64 = 16 << 10;
/// Pause after each record.
const PAUSE: Duration = Duration::from_micros(200);
/// Added to the seed of a record: the data next to it has another pattern.
const SEED: u64 = 1 << 41;

/// A running or stopped writer.
pub(crate) struct Writer {
    counts: Arc<Counts>,
    /// Dropping the sender stops the thread.
    thread: Option<(Sender<()>, JoinHandle<io::Result<()>>)>,
}

#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    durable: AtomicU64,
}

impl Writer {
    /// Starts to write to the published volume, next to its other data.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn start(kind: Kind, target: &Path, seed: u64) -> Result<Self, Trouble> {
        let (path, offset) = place(kind, target);
        let mut options = OpenOptions::new();
        options.write(true).create(!kind.is_block());
        let file = open(kind, &path, &mut options).map_err(|e| Trouble::own(path.display(), e))?;
        let counts = Arc::new(Counts::default());
        let ours = Arc::clone(&counts);
        let (stop, stopped) = mpsc::channel();
        let write = move || {
            let mut buffer = Aligned::new(RECORD_BYTES);
            for number in 0..RECORDS_MAX {
                pattern::fill(buffer.bytes(), seed_of(seed, number));
                counts.begun.store(number + 1, Ordering::SeqCst);
                file.write_all_at(buffer.bytes(), offset + number * RECORD_BYTES as u64)?;
                file.sync_data()?;
                counts.durable.store(number + 1, Ordering::SeqCst);
                if stopped.recv_timeout(PAUSE) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            Ok(())
        };
        let thread = Some((stop, std::thread::Builder::new().spawn(write)?));
        Ok(Self {
            counts: ours,
            thread,
        })
    }

    /// How many records must be in a copy made from now on.
    pub(crate) fn durable(&self) -> u64 {
        self.counts.durable.load(Ordering::SeqCst)
    }

    /// How many records can be in a copy made before.
    pub(crate) fn begun(&self) -> u64 {
        self.counts.begun.load(Ordering::SeqCst)
    }

    /// Waits for more durable records.
    pub(crate) async fn wait_for(&self, more: u64) {
        let enough = self.durable() + more;
        let is_writing = || self.thread.as_ref().is_some_and(|(_, t)| !t.is_finished());
        while self.durable() < enough && is_writing() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Stops writing. Returns how many records are durable.
    ///
    /// # Errors
    /// A write failed.
    pub(crate) fn stop(&mut self) -> Result<u64, Trouble> {
        if let Some((stop, thread)) = self.thread.take() {
            drop(stop);
            let panicked = |_| Err(io::Error::other("it panicked"));
            let wrote = thread.join().unwrap_or_else(panicked);
            wrote.map_err(|e| Trouble::own("writing records", e))?;
        }
        Ok(self.durable())
    }
}

impl Drop for Writer {
    /// It must not write to a volume that is torn down after an error, which is reported.
    fn drop(&mut self) {
        self.stop().ok();
    }
}

/// How many whole records are in the volume, without a gap.
///
/// # Errors
/// The volume cannot be read.
pub(crate) fn count(kind: Kind, target: &Path, seed: u64) -> Result<u64, Trouble> {
    let (path, offset) = place(kind, target);
    let failed = |e| Trouble::own(format!("read {}", path.display()), e);
    let file = open(kind, &path, OpenOptions::new().read(true)).map_err(failed)?;
    let mut buffer = Aligned::new(RECORD_BYTES);
    for number in 0..RECORDS_MAX {
        match file.read_exact_at(buffer.bytes(), offset + number * RECORD_BYTES as u64) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(number),
            read => read.map_err(failed)?,
        }
        if pattern::first_difference(buffer.bytes(), seed_of(seed, number)).is_some() {
            return Ok(number);
        }
    }
    Ok(RECORDS_MAX)
}

/// A separate file in a filesystem; after the other data on a device.
fn place(kind: Kind, target: &Path) -> (PathBuf, u64) {
    if kind.is_block() {
        (target.to_owned(), DATA_BYTES as u64)
    } else {
        (target.join("records"), 0)
    }
}

fn seed_of(seed: u64, number: u64) -> u64 {
    SEED + (seed << 16 | number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_up_to_the_first_that_is_not_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut writer = Writer::start(Kind::Xfs, path, 7).unwrap();
        while writer.durable() < 5 {
            std::thread::yield_now();
        }
        let total = writer.stop().unwrap();
        assert_eq!(writer.begun(), total);
        assert_eq!(count(Kind::Xfs, path, 7).unwrap(), total);
        assert_eq!(count(Kind::Xfs, path, 8).unwrap(), 0, "other records");

        let file = OpenOptions::new()
            .write(true)
            .open(path.join("records"))
            .unwrap();
        file.set_len(total * RECORD_BYTES as u64 - 1).unwrap();
        assert_eq!(count(Kind::Xfs, path, 7).unwrap(), total - 1, "torn");
        file.write_all_at(b"!!", 3 * RECORD_BYTES as u64 + 9)
            .unwrap();
        assert_eq!(count(Kind::Xfs, path, 7).unwrap(), 3, "a gap");
    }
}
