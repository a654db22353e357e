//! Standard error, written by a thread: a reader of the log that stalls must not stop the program.
//! A line that does not fit in the queue is dropped and counted; the count is written when the
//! queue accepts lines again. Knows lines, not events.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Maximum number of lines that wait for the thread. Most have less than 256 bytes.
const LINES_MAX: usize = 256;

/// The thread formats nothing.
const STACK_BYTES: usize = 64 << 10;

/// Maximum time that the exit of a program waits until its last lines are written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Lines dropped since the start.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Whether the report of dropped lines is a JSON object, like the lines around it.
static IN_JSON: AtomicBool = AtomicBool::new(false);

/// The queue of the process, which has one standard error. Empty until the thread is started.
static STDERR: OnceLock<Queue> = OnceLock::new();

/// Queues a line for standard error, or drops it. Before [`start_thread`], writes it.
pub(super) fn write_line(line: &[u8]) {
    match STDERR.get() {
        Some(queue) => queue.push(line),
        None => write(&mut io::stderr(), line),
    }
}

/// Starts the thread, unless it runs.
pub(super) fn start_thread() -> io::Result<()> {
    if STDERR.get().is_some() {
        return Ok(());
    }
    let (queue, entries) = Queue::new();
    std::thread::Builder::new()
        .name("log".into())
        .stack_size(STACK_BYTES)
        .spawn(move || write_all(&entries, &mut io::stderr()))?;
    // If another thread has been started meanwhile, this one ends.
    drop(STDERR.set(queue));
    Ok(())
}

/// Waits briefly until the thread has written its queue.
pub(super) fn flush() {
    if let Some(queue) = STDERR.get() {
        queue.flush(FLUSH_TIMEOUT);
    }
}

/// Reports dropped lines as JSON objects. Call this before the first line, if lines are JSON
/// objects.
pub(super) fn report_in_json() {
    IN_JSON.store(true, Ordering::Relaxed);
}

/// Returns the number of lines dropped so far.
pub(super) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// Work for the thread.
enum Entry {
    Line(Vec<u8>),
    /// Everything before this entry is written. The sender is dropped, which its receiver notices.
    Flush(SyncSender<()>),
}

/// Lines for the thread that writes them.
struct Queue {
    entries: SyncSender<Entry>,
    /// Lines dropped since the last report.
    missed: AtomicU64,
}

impl Queue {
    /// Creates a queue, and its end for the thread.
    fn new() -> (Self, Receiver<Entry>) {
        let (entries, receiver) = sync_channel(LINES_MAX);
        let missed = AtomicU64::new(0);
        (Self { entries, missed }, receiver)
    }

    /// Queues the report of dropped lines, and then the line, or drops the line.
    fn push(&self, line: &[u8]) {
        let try_push = |line| self.entries.try_send(Entry::Line(line)).is_ok();
        let mut missed = self.missed.swap(0, Ordering::Relaxed);
        if missed > 0 && try_push(report(missed, IN_JSON.load(Ordering::Relaxed)).into_bytes()) {
            missed = 0;
        }
        if missed > 0 || !try_push(line.to_vec()) {
            self.missed.fetch_add(missed + 1, Ordering::Relaxed);
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all lines are written, at most for `timeout`, and returns whether they are. Does
    /// not wait if the queue is full, since its reader has stalled.
    fn flush(&self, timeout: Duration) -> bool {
        let (done, written) = sync_channel(0);
        self.entries.try_send(Entry::Flush(done)).is_ok()
            && written.recv_timeout(timeout) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Writes what is queued until the queue is dropped.
fn write_all(entries: &Receiver<Entry>, file: &mut impl Write) {
    for entry in entries {
        match entry {
            Entry::Line(line) => write(file, &line),
            Entry::Flush(done) => drop(done),
        }
    }
}

fn write(file: &mut impl Write, line: &[u8]) {
    // The disk may be full, or the reader gone; there is no other place for the error.
    if file.write_all(line).is_err() {
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the report of dropped lines, in the format of the lines around it.
fn report(missed: u64, in_json: bool) -> String {
    let mut time = String::new();
    if SystemTime.format_time(&mut Writer::new(&mut time)).is_err() {
        // A line without a timestamp is better than none.
        time.clear();
    }
    let message = format!("{missed} log lines were dropped, because stderr was not read in time");
    match in_json {
        false => format!("{time}  WARN {message}\n"),
        true => {
            format!("{{\"timestamp\":\"{time}\",\"level\":\"WARN\",\"message\":\"{message}\"}}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader};

    const LINE: &str = "a line that is long enough to fill every buffer some day";
    const PATIENCE: Duration = Duration::from_secs(60);

    fn pushed(queue: &Queue, text: &str) -> bool {
        queue.push(format!("{text}\n").as_bytes());
        queue.missed.load(Ordering::Relaxed) == 0
    }

    #[test]
    fn a_reader_that_stalls_gets_whole_lines_and_then_the_count_of_the_others() {
        let (queue, entries) = Queue::new();
        for _ in 0..LINES_MAX {
            assert!(pushed(&queue, LINE));
        }
        assert!(!pushed(&queue, LINE) && !pushed(&queue, LINE));
        let (reader, mut writer) = io::pipe().unwrap();
        std::thread::spawn(move || write_all(&entries, &mut writer));
        let mut lines = BufReader::new(reader).lines().map(Result::unwrap);
        for _ in 0..LINES_MAX {
            assert_eq!(lines.next().unwrap(), LINE);
        }
        assert!(pushed(&queue, "the last line"));
        let count = "  WARN 2 log lines were dropped, because stderr was not read in time";
        let report = lines.next().unwrap();
        assert!(report.ends_with(count), "{report}");
        assert_eq!(lines.next().unwrap(), "the last line");
    }

    #[test]
    fn the_count_in_json_is_an_object_like_the_lines_around_it() {
        let line: serde_json::Value = serde_json::from_str(&report(2, true)).unwrap();
        assert_eq!(line["level"], "WARN");
        let message = line["message"].as_str().unwrap();
        assert!(message.starts_with("2 log lines were dropped"), "{message}");
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn the_thread_goes_on_when_the_reader_is_gone() {
        let (queue, entries) = Queue::new();
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        std::thread::spawn(move || write_all(&entries, &mut writer));
        for _ in 0..2 {
            assert!(pushed(&queue, LINE) && queue.flush(PATIENCE));
        }
    }

    #[test]
    fn a_flush_returns_when_everything_is_written() {
        let (queue, entries) = Queue::new();
        for _ in 0..LINES_MAX - 1 {
            assert!(pushed(&queue, LINE));
        }
        std::thread::scope(|scope| {
            let flushing = scope.spawn(move || queue.flush(PATIENCE));
            let mut written = Vec::new();
            write_all(&entries, &mut written);
            assert!(flushing.join().unwrap());
            assert_eq!(written.len(), (LINES_MAX - 1) * (LINE.len() + 1));
        });
    }

    #[test]
    fn a_flush_does_not_wait_for_a_reader_that_has_stalled() {
        let (queue, _entries) = Queue::new();
        while pushed(&queue, LINE) {}
        assert!(!queue.flush(PATIENCE));
    }
}
