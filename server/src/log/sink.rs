//! Writes to standard error without blocking, since a stalled reader of the log must not stop the
//! program. A line that cannot be written at once is dropped and counted. The count is written when
//! the log accepts lines again. Handles bytes, not events.

use crate::lock::Lock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat, major};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, write};
use rustix::net::{SendFlags, send};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Maximum number of bytes in the queue of the thread that writes to a file or a terminal.
const QUEUE_BYTES_MAX: usize = 64 << 10;

/// Stack size of the log thread, in bytes. The log thread formats no text, and calls only write(2).
const STACK_BYTES: usize = 64 << 10;

/// Maximum number of bytes per write to a pipe without non-blocking writes. If poll(2) reports that
/// the pipe is writable, this number of bytes fits (pipe(7), `PIPE_BUF`).
const PIPE_BYTES_MAX: usize = 4096;

/// Maximum time that a program waits at its exit until its last log lines are written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The major number of `/dev/null` and other memory devices (devices.txt in the kernel's
/// documentation).
const MEMORY_DEVICES: u32 = 1;

/// The offset that means the current file position (pwritev2(2)).
const HERE: u64 = u64::MAX;

/// Number of lines dropped since the process started.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Whether the report of dropped lines is a JSON object, like the lines around it.
static IN_JSON: AtomicBool = AtomicBool::new(false);

/// The destination of all log lines of the process.
static STDERR: Lock<Option<Sink<io::Stderr>>> = Lock::new(None);

fn stderr() -> MutexGuard<'static, Option<Sink<io::Stderr>>> {
    STDERR.lock()
}

/// Writes a line to standard error, or drops it.
pub(super) fn write_line(line: &[u8]) {
    stderr()
        .get_or_insert_with(|| Sink::new(io::stderr()))
        .write_line(line);
}

/// Starts a separate thread for writes that may block.
pub(super) fn leave_waiting_to_a_thread() -> io::Result<()> {
    stderr()
        .get_or_insert_with(|| Sink::new(io::stderr()))
        .start_thread()
}

/// Waits briefly until the thread has written its queue.
pub(super) fn flush() {
    let queue = stderr().as_ref().and_then(|sink| sink.queue.clone());
    if let Some(queue) = queue {
        queue.drain(FLUSH_TIMEOUT);
    }
}

/// Reports dropped lines as JSON objects. Call this function before the first line is logged, if
/// lines are JSON objects.
pub(super) fn report_in_json() {
    IN_JSON.store(true, Ordering::Relaxed);
}

/// Returns the number of lines dropped so far.
pub(super) fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

/// The kind of file behind a descriptor, which determines how to write to it without blocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pipe,
    /// A pipe, on a kernel that does not support non-blocking writes to pipes (before Linux 6.4).
    OldPipe,
    Socket,
    /// A memory device such as `/dev/null`, which never blocks a write.
    Null,
    /// A file or a terminal. No flag prevents a write to a file from blocking on a disk, or a write
    /// to a terminal whose output is stopped from blocking until Ctrl-Q.
    Waits,
}

impl Kind {
    fn of(file: BorrowedFd<'_>) -> Self {
        let Ok(found) = fstat(file) else {
            return Self::Waits;
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Fifo => Self::Pipe,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice if major(found.st_rdev) == MEMORY_DEVICES => Self::Null,
            _ => Self::Waits,
        }
    }
}

/// The destination of log lines.
struct Sink<F> {
    file: F,
    kind: Kind,
    /// The rest of a line that was partly written. The rest of this line is written later, since
    /// only whole lines are dropped.
    rest: Vec<u8>,
    /// Number of lines dropped since the last report.
    missed: u64,
    /// The queue of the log thread, if there is one.
    queue: Option<Arc<Queue>>,
}

impl<F: AsFd> Sink<F> {
    fn new(file: F) -> Self {
        Self {
            kind: Kind::of(file.as_fd()),
            file,
            rest: Vec::new(),
            missed: 0,
            queue: None,
        }
    }

    fn write_line(&mut self, line: &[u8]) {
        if self.take_up() && self.try_line(line) {
            return;
        }
        self.missed += 1;
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes the rest of the last line and the report of dropped lines. Returns whether the rest
    /// and the report were written completely.
    fn take_up(&mut self) -> bool {
        let rest = std::mem::take(&mut self.rest);
        if !rest.is_empty() && !self.try_line(&rest) {
            self.rest = rest;
        }
        if !self.rest.is_empty() {
            return false;
        }
        if self.missed > 0 {
            let report = report(self.missed, IN_JSON.load(Ordering::Relaxed));
            if !self.try_line(report.as_bytes()) {
                return false;
            }
            self.missed = 0;
        }
        self.rest.is_empty()
    }

    /// Writes a line. Returns whether at least a part of the line was written.
    fn try_line(&mut self, line: &[u8]) -> bool {
        let mut written = 0;
        while written < line.len() {
            match self.write_some(&line[written..]) {
                Ok(some) if some > 0 => written += some,
                Err(Errno::INTR) => {}
                // The buffer is full, or the reader has closed its end.
                _ => break,
            }
        }
        if written > 0 {
            line[written..].clone_into(&mut self.rest);
        }
        written > 0
    }

    fn write_some(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let file = self.file.as_fd();
        match (self.kind, &self.queue) {
            (Kind::Pipe, _) => {
                let slices = [IoSlice::new(bytes)];
                match pwritev2(file, &slices, HERE, ReadWriteFlags::NOWAIT) {
                    // The kernel is too old, or a seccomp filter refuses the flag.
                    Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS | Errno::PERM) => {
                        self.kind = Kind::OldPipe;
                        self.write_some(bytes)
                    }
                    written => written,
                }
            }
            (Kind::OldPipe, _) => {
                let mut writable = [PollFd::new(&file, PollFlags::OUT)];
                let at_once = Timespec::default();
                if poll(&mut writable, Some(&at_once))? == 0 {
                    return Err(Errno::AGAIN);
                }
                write(file, &bytes[..bytes.len().min(PIPE_BYTES_MAX)])
            }
            (Kind::Socket, _) => send(file, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
            (Kind::Waits, Some(queue)) => queue.push(bytes),
            // Until the log thread starts, no calls are served, so the write may block.
            (Kind::Null | Kind::Waits, _) => write(file, bytes),
        }
    }
}

impl Sink<io::Stderr> {
    fn start_thread(&mut self) -> io::Result<()> {
        if self.kind != Kind::Waits || self.queue.is_some() {
            return Ok(());
        }
        let queue = Arc::<Queue>::default();
        let lines = Arc::clone(&queue);
        std::thread::Builder::new()
            .name("log".into())
            .stack_size(STACK_BYTES)
            .spawn(move || lines.write_all_to(&mut io::stderr()))?;
        self.queue = Some(queue);
        Ok(())
    }
}

/// Returns the report of dropped lines, in the format of the lines around it.
fn report(missed: u64, in_json: bool) -> String {
    let mut time = String::new();
    if SystemTime.format_time(&mut Writer::new(&mut time)).is_err() {
        // A line without a timestamp is better than no line.
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

/// Bytes queued for the thread that writes them.
#[derive(Default)]
struct Queue {
    waiting: Lock<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    is_writing: bool,
    /// Whether `drain` waits until the queue is empty.
    is_drained: bool,
}

impl Queue {
    /// Queues all bytes, or returns `AGAIN` if the bytes do not fit into the queue.
    fn push(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut waiting = self.waiting.lock();
        if waiting.bytes.len() + bytes.len() > QUEUE_BYTES_MAX {
            return Err(Errno::AGAIN);
        }
        waiting.bytes.extend_from_slice(bytes);
        drop(waiting);
        self.changed.notify_all();
        Ok(bytes.len())
    }

    fn write_all_to(&self, file: &mut impl io::Write) {
        loop {
            let mut waiting = self.waiting.lock();
            waiting.is_writing = false;
            if waiting.is_drained {
                self.changed.notify_all();
            }
            while waiting.bytes.is_empty() {
                let woken = self.changed.wait(waiting);
                waiting = woken.unwrap_or_else(PoisonError::into_inner);
            }
            waiting.is_writing = true;
            let bytes = std::mem::take(&mut waiting.bytes);
            drop(waiting);
            // Ignore the error: the disk may be full, and the error cannot be reported elsewhere.
            drop(file.write_all(&bytes));
        }
    }

    /// Waits until all bytes are written, at most for `timeout`.
    fn drain(&self, timeout: Duration) {
        let end = Instant::now() + timeout;
        let mut waiting = self.waiting.lock();
        waiting.is_drained = true;
        while waiting.is_writing || !waiting.bytes.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let woken = self.changed.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read as _};
    use std::os::unix::net::UnixStream;

    const LINE: &str = "a line that is long enough to fill every buffer some day\n";

    /// Writes lines until one is dropped. Returns the number of lines that were written.
    fn fill<F: AsFd>(sink: &mut Sink<F>) -> u64 {
        (0..)
            .find(|_| {
                sink.write_line(LINE.as_bytes());
                sink.missed > 0
            })
            .unwrap()
    }

    /// Reads all bytes that can be read without blocking.
    fn read_all(reader: &mut impl io::Read) -> String {
        let mut bytes = Vec::new();
        let mut some = [0; 4096];
        while let Ok(length @ 1..) = reader.read(&mut some) {
            bytes.extend_from_slice(&some[..length]);
        }
        String::from_utf8(bytes).unwrap()
    }

    fn expect_whole_lines_and_a_count<F: AsFd>(mut sink: Sink<F>, reader: &mut impl io::Read) {
        let taken = fill(&mut sink);
        assert!(taken > 10, "{taken}");
        sink.write_line(LINE.as_bytes());
        let mut text = read_all(reader);
        sink.write_line(b"the last line\n");
        text += &read_all(reader);
        let lines: Vec<&str> = text.lines().collect();
        let [whole @ .., report, last] = lines.as_slice() else {
            panic!("{text}")
        };
        assert_eq!(whole.len() as u64, taken);
        assert!(whole.iter().all(|line| *line == LINE.trim_end()), "{text}");
        let count = "  WARN 2 log lines were dropped, because stderr was not read in time";
        assert!(report.ends_with(count), "{report}");
        assert_eq!(*last, "the last line");
    }

    fn pipe() -> (PipeReader, io::PipeWriter) {
        let (reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&reader, true).unwrap();
        (reader, writer)
    }

    #[test]
    fn a_pipe_that_is_not_read_takes_whole_lines_and_then_the_count_of_the_others() {
        let (mut reader, writer) = pipe();
        expect_whole_lines_and_a_count(Sink::new(writer), &mut reader);
    }

    #[test]
    fn so_does_a_pipe_of_an_older_kernel() {
        let (mut reader, writer) = pipe();
        let mut sink = Sink::new(writer);
        sink.kind = Kind::OldPipe;
        expect_whole_lines_and_a_count(sink, &mut reader);
    }

    #[test]
    fn so_does_a_socket() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        expect_whole_lines_and_a_count(Sink::new(writer), &mut reader);
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
    fn a_line_larger_than_the_room_is_finished_before_the_next_one() {
        let (mut reader, writer) = pipe();
        let mut sink = Sink::new(writer);
        let long = format!("{}\n", "x".repeat(100_000));
        sink.write_line(long.as_bytes());
        sink.write_line(b"dropped\n");
        let mut text = read_all(&mut reader);
        sink.write_line(b"the next line\n");
        text += &read_all(&mut reader);
        let (first, others) = text.split_once('\n').unwrap();
        assert_eq!(first.len(), 100_000);
        assert!(others.contains(" 1 log lines were dropped"), "{others}");
        assert!(others.ends_with("the next line\n"), "{others}");
    }

    #[test]
    fn writes_do_not_block_when_the_reader_is_gone() {
        let (reader, writer) = pipe();
        drop(reader);
        let mut sink = Sink::new(writer);
        assert_eq!(fill(&mut sink), 0);
    }

    #[test]
    fn a_full_queue_takes_no_more_until_it_is_written() {
        let queue = Arc::<Queue>::default();
        let line = [b'x'; 1000];
        let taken = (0..).find(|_| queue.push(&line).is_err()).unwrap();
        assert_eq!(taken, QUEUE_BYTES_MAX / line.len());
        let (mut reader, mut writer) = io::pipe().unwrap();
        let lines = Arc::clone(&queue);
        std::thread::spawn(move || lines.write_all_to(&mut writer));
        let mut bytes = vec![0; taken * line.len()];
        reader.read_exact(&mut bytes).unwrap();
        queue.drain(Duration::from_secs(60));
        assert!(queue.push(&line).is_ok());
    }
}
