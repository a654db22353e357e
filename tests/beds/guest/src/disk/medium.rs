//! The content of a disk: a file of the host, and a write-back cache that is lost in a power cut.
//! This module handles bytes, offsets and faults, and is independent of the disk protocol.

mod copy;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belay_bed::chance::Chance;
use rustix::event::poll;

/// The block size of current disks, in bytes. A power cut never leaves a block partly written.
const PAGE: u64 = 4096;
/// The unit of a disk's size, in bytes.
const SECTOR: u64 = 512;
/// Maximum number of pages in the cache: 16 MiB, as in real disks.
const CACHE_MAX: usize = 4096;
/// Overwriting a cached page first writes the old content to the platter, once in this many times.
const WRITTEN_BEFORE: u64 = 4;

/// The part of the cache that survives a power cut.
#[derive(Clone, Copy, Debug)]
pub enum Survival {
    /// Only data that was flushed.
    Nothing,
    /// The whole cache.
    Everything,
    /// Flushed data, and some of the cached pages, which the seed selects.
    Some(u64),
}

/// The requests that fail with an I/O error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failing {
    /// Whether reads fail.
    pub reads: bool,
    /// Whether writes fail.
    pub writes: bool,
    /// Whether flushes of the cache fail.
    pub flushes: bool,
}

/// The reason why a request does not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The response is an I/O error.
    Failed,
    /// There is no response, because the power of the disk is cut.
    NoPower,
}

/// The content of a disk, which outlives the guests that use it.
#[derive(Debug)]
pub struct Medium {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    platter: File,
    bytes: u64,
    cache: BTreeMap<u64, Vec<u8>>,
    chance: Chance,
    failing: Failing,
    has_power: bool,
    changes: u64,
    writes: u64,
    reads: u64,
    bytes_read: u64,
    latency: Duration,
    at_once: usize,
    cut: Option<Scheduled>,
    at_read: Option<Scheduled>,
}

/// An event scheduled at the request with a given number.
struct Scheduled {
    at: u64,
    act: Box<dyn FnOnce() + Send>,
}

impl std::fmt::Debug for Scheduled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at {}", self.at)
    }
}

impl Medium {
    /// Creates a disk with its content in this file, which is created if missing, and resized.
    ///
    /// # Panics
    /// Panics if the file cannot be created or opened, or if `bytes` is not a multiple of 512.
    #[must_use]
    pub fn new(path: &Path, bytes: u64) -> Self {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let platter = options.open(path).expect("the file of a disk");
        let medium = Medium {
            state: Mutex::new(State {
                platter,
                bytes: 0,
                cache: BTreeMap::new(),
                chance: Chance::seeded(bytes),
                failing: Failing::default(),
                has_power: true,
                changes: 0,
                writes: 0,
                reads: 0,
                bytes_read: 0,
                latency: Duration::ZERO,
                at_once: 0,
                cut: None,
                at_read: None,
            }),
        };
        medium.resize(bytes);
        medium
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Returns the number of writes so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// Returns the number of reads so far.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Schedules an event before the response to the read with this number ([`Medium::reads`]).
    pub fn act_at_read(&self, read: u64, act: impl FnOnce() + Send + 'static) {
        self.state().at_read = Some(Scheduled {
            at: read,
            act: Box::new(act),
        });
    }

    /// Returns the total number of bytes that were read from the disk.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.state().bytes_read
    }

    /// Sets the latency of all further requests, which may be in progress at the same time.
    pub fn delay(&self, latency: Duration) {
        self.state().latency = latency;
    }

    /// Returns the maximum number of reads that waited for the latency at the same time.
    #[must_use]
    pub fn at_once(&self) -> usize {
        self.state().at_once
    }

    pub(crate) fn latency(&self) -> Duration {
        self.state().latency
    }

    /// Waits for the latency of the disk, on behalf of requests that contain this number of reads.
    pub(crate) fn think(&self, reads: usize) {
        let mut state = self.state();
        state.at_once = state.at_once.max(reads);
        let latency = state.latency;
        drop(state);
        if let Ok(latency) = latency.try_into() {
            // Only the timeout ends this call of poll(2).
            poll(&mut [], Some(&latency)).unwrap_or_default();
        }
    }

    /// Sets the size in bytes. [`Slot::grow`](crate::Slot::grow) notifies the guest as well.
    ///
    /// # Panics
    /// Panics if the size is not a multiple of 512, or if the file cannot be resized.
    pub fn resize(&self, bytes: u64) {
        assert_eq!(bytes % SECTOR, 0, "a size in sectors");
        let mut state = self.state();
        state.platter.set_len(bytes).expect("truncate");
        state.bytes = bytes;
        // Extend the cached last page, which may have been incomplete.
        if let Some((page, mut content)) = state.cache.pop_last() {
            content.resize(state.page_size(page), 0);
            state.cache.insert(page, content);
        }
    }

    /// Sets which requests fail from now on.
    pub fn fail(&self, failing: Failing) {
        self.state().failing = failing;
    }

    /// Returns the number of writes and flushes so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// Schedules a power cut at the write or flush with this number ([`Medium::changes`]). This
    /// request and all later requests get no response, and `act` must cut the guest's power.
    pub fn cut_at(&self, change: u64, act: impl FnOnce() + Send + 'static) {
        self.state().cut = Some(Scheduled {
            at: change,
            act: Box::new(act),
        });
    }

    /// Cuts the power, and turns it on again. The guest must have ended before this call.
    pub fn lose_cache(&self, survival: Survival) {
        let mut state = self.state();
        let cache = std::mem::take(&mut state.cache);
        let mut chance = match survival {
            Survival::Some(seed) => Some(Chance::seeded(seed)),
            Survival::Nothing | Survival::Everything => None,
        };
        for (page, content) in cache {
            let survives = match &mut chance {
                Some(chance) => chance.below(2) == 0,
                None => matches!(survival, Survival::Everything),
            };
            if survives {
                state.put(page, &content).expect("the file of a disk");
            }
        }
        state.has_power = true;
        state.cut = None;
    }

    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Refused> {
        let event = self.state().count_read();
        if let Some(event) = event {
            (event.act)();
        }
        let mut state = self.state();
        state.check(at, into.len(), state.failing.reads)?;
        state.bytes_read += into.len() as u64;
        state.get(at, into).map_err(|_| Refused::Failed)
    }

    pub(crate) fn write(&self, at: u64, data: &[u8]) -> Result<(), Refused> {
        let mut state = self.state();
        state.writes += 1;
        state.check(at, data.len(), state.failing.writes)?;
        state.change()?;
        state.hold(at, data).map_err(|_| Refused::Failed)
    }

    pub(crate) fn flush(&self) -> Result<(), Refused> {
        let mut state = self.state();
        state.check(0, 0, state.failing.flushes)?;
        state.change()?;
        let cache = std::mem::take(&mut state.cache);
        let mut pages = cache.iter();
        let put = pages.try_for_each(|(page, content)| state.put(*page, content));
        put.map_err(|_| Refused::Failed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self, at: u64, length: usize, is_failing: bool) -> Result<(), Refused> {
        if !self.has_power {
            return Err(Refused::NoPower);
        }
        let end = u64::try_from(length)
            .ok()
            .and_then(|length| at.checked_add(length));
        let is_within = end.is_some_and(|end| end <= self.bytes);
        match is_within && !is_failing {
            true => Ok(()),
            false => Err(Refused::Failed),
        }
    }

    /// Counts a read; returns the event that is scheduled at this read, if any.
    fn count_read(&mut self) -> Option<Scheduled> {
        self.reads += 1;
        let reads = self.reads;
        self.at_read.take_if(|event| event.at <= reads)
    }

    /// Counts a write or flush; fails if the power is cut at this request.
    fn change(&mut self) -> Result<(), Refused> {
        self.changes += 1;
        let changes = self.changes;
        match self.cut.take_if(|cut| cut.at <= changes) {
            None => Ok(()),
            Some(cut) => {
                self.has_power = false;
                (cut.act)();
                Err(Refused::NoPower)
            }
        }
    }

    /// Reads bytes as the guest sees them: the cache takes precedence over the platter.
    fn get(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.platter.read_exact_at(into, at)?;
        for piece in pieces(at, into.len()) {
            if let Some(content) = self.cache.get(&piece.page) {
                into[piece.of_request].copy_from_slice(&content[piece.of_page]);
            }
        }
        Ok(())
    }

    /// Returns the size of a page in bytes; the last page of the disk may be incomplete.
    fn page_size(&self, page: u64) -> usize {
        let bytes = self.bytes.saturating_sub(page).min(PAGE);
        usize::try_from(bytes).expect("a small number")
    }

    fn hold(&mut self, at: u64, data: &[u8]) -> io::Result<()> {
        for piece in pieces(at, data.len()) {
            let content = match self.cache.remove(&piece.page) {
                Some(content) => {
                    if self.chance.below(WRITTEN_BEFORE) == 0 {
                        self.put(piece.page, &content)?;
                    }
                    Some(content)
                }
                None => None,
            };
            let mut content = match content {
                Some(content) => content,
                None => {
                    let mut content = vec![0; self.page_size(piece.page)];
                    self.platter.read_exact_at(&mut content, piece.page)?;
                    content
                }
            };
            content[piece.of_page].copy_from_slice(&data[piece.of_request]);
            self.cache.insert(piece.page, content);
        }
        while self.cache.len() > CACHE_MAX {
            self.write_back_one()?;
        }
        Ok(())
    }

    /// Writes back a random page of a full cache.
    fn write_back_one(&mut self) -> io::Result<()> {
        let from = self.chance.below(self.bytes.max(1));
        let next = self.cache.range(from..).next();
        let chosen = next.or_else(|| self.cache.iter().next());
        let Some(page) = chosen.map(|(page, _)| *page) else {
            return Ok(());
        };
        match self.cache.remove(&page) {
            Some(content) => self.put(page, &content),
            None => Ok(()),
        }
    }

    fn put(&self, page: u64, content: &[u8]) -> io::Result<()> {
        self.platter.write_all_at(content, page)
    }
}

/// The part of a request that lies in one page.
struct Piece {
    page: u64,
    of_page: std::ops::Range<usize>,
    of_request: std::ops::Range<usize>,
}

fn pieces(at: u64, length: usize) -> impl Iterator<Item = Piece> {
    let page_size = usize::try_from(PAGE).expect("a small number");
    let first = usize::try_from(at % PAGE).expect("a small number");
    let mut done = 0;
    let mut page = at - at % PAGE;
    std::iter::from_fn(move || {
        let start = if done == 0 { first } else { 0 };
        let count = (length - done).min(page_size - start);
        let piece = Piece {
            page,
            of_page: start..start + count,
            of_request: done..done + count,
        };
        done += count;
        page += PAGE;
        (count > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn medium() -> (tempfile::TempDir, Medium) {
        let directory = tempfile::tempdir().unwrap();
        let medium = Medium::new(&directory.path().join("disk"), 1 << 20);
        (directory, medium)
    }

    fn byte(medium: &Medium, at: u64) -> u8 {
        let mut byte = [0];
        medium.read(at, &mut byte).unwrap();
        byte[0]
    }

    #[test]
    fn what_was_written_is_read_across_pages_before_and_after_a_flush() {
        let (_directory, medium) = medium();
        let data: Vec<u8> = (0..10_000_usize).map(|n| n.to_le_bytes()[0] | 1).collect();
        medium.write(4096 - 512, &data).unwrap();
        for _ in 0..2 {
            let mut found = vec![0; data.len()];
            medium.read(4096 - 512, &mut found).unwrap();
            assert_eq!(found, data);
            assert_eq!(byte(&medium, 4096 - 513), 0);
            medium.flush().unwrap();
        }
    }

    #[test]
    fn a_power_cut_loses_what_was_not_flushed_and_nothing_else() {
        let (_directory, medium) = medium();
        medium.write(0, &[1; 512]).unwrap();
        medium.flush().unwrap();
        medium.write(8192, &[2; 512]).unwrap();
        medium.lose_cache(Survival::Everything);
        medium.write(16384, &[3; 512]).unwrap();
        medium.lose_cache(Survival::Nothing);
        assert_eq!([0, 8192, 16384].map(|at| byte(&medium, at)), [1, 2, 0]);
    }

    #[test]
    fn some_pages_survive_as_the_seed_decides() {
        let survivors = |seed| {
            let (_directory, medium) = medium();
            medium.write(0, &[1; 64 << 10]).unwrap();
            medium.lose_cache(Survival::Some(seed));
            let pages = (0..16).map(|page| byte(&medium, page * PAGE));
            pages.collect::<Vec<u8>>()
        };
        assert_eq!(survivors(1), survivors(1));
        assert_ne!(survivors(1), survivors(2));
        assert!(survivors(1).contains(&0) && survivors(1).contains(&1));
    }

    #[test]
    fn a_cut_ends_all_answers_until_the_power_is_back() {
        let (_directory, medium) = medium();
        let is_cut = Arc::new(AtomicBool::new(false));
        let act = Arc::clone(&is_cut);
        medium.cut_at(3, move || act.store(true, Ordering::SeqCst));
        medium.write(0, &[1; 512]).unwrap();
        medium.flush().unwrap();
        assert!(!is_cut.load(Ordering::SeqCst));
        assert_eq!(medium.write(0, &[2; 512]), Err(Refused::NoPower));
        assert!(is_cut.load(Ordering::SeqCst));
        assert_eq!(medium.read(0, &mut [0]), Err(Refused::NoPower));
        medium.lose_cache(Survival::Everything);
        assert_eq!(byte(&medium, 0), 1);
    }

    #[test]
    fn an_event_comes_before_the_answer_of_its_read_and_once() {
        let (_directory, medium) = medium();
        let medium = Arc::new(medium);
        let theirs = Arc::clone(&medium);
        medium.act_at_read(2, move || {
            theirs.fail(Failing {
                reads: true,
                ..Failing::default()
            });
        });
        medium.read(0, &mut [0]).unwrap();
        assert_eq!(medium.read(0, &mut [0]), Err(Refused::Failed));
        medium.fail(Failing::default());
        medium.read(0, &mut [0]).unwrap();
        assert_eq!(medium.reads(), 3);
    }

    #[test]
    fn a_full_cache_writes_back_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let medium = Medium::new(&directory.path().join("disk"), 32 << 20);
        medium.write(0, &vec![1; 32 << 20]).unwrap();
        medium.lose_cache(Survival::Nothing);
        let written = (0..8192)
            .filter(|page| byte(&medium, page * PAGE) == 1)
            .count();
        assert_eq!(written, 8192 - CACHE_MAX);
    }

    #[test]
    fn a_disk_may_end_within_a_page_and_grow_from_there() {
        let directory = tempfile::tempdir().unwrap();
        let medium = Medium::new(&directory.path().join("disk"), 4096 + 512);
        medium.write(4096, &[1; 512]).unwrap();
        assert_eq!(medium.write(4096, &[1; 513]), Err(Refused::Failed));
        medium.resize(8192);
        medium.write(4096 + 512, &[2; 512]).unwrap();
        for _ in 0..2 {
            let bytes = [4096, 4607, 4608, 5119, 5120, 8191].map(|at| byte(&medium, at));
            assert_eq!(bytes, [1, 1, 2, 2, 0, 0]);
            medium.flush().unwrap();
        }
    }

    #[test]
    fn faults_and_requests_beyond_the_end_fail() {
        let (_directory, medium) = medium();
        assert_eq!(
            medium.read((1 << 20) - 1, &mut [0; 2]),
            Err(Refused::Failed)
        );
        assert_eq!(medium.write(u64::MAX, &[0; 2]), Err(Refused::Failed));
        medium.fail(Failing {
            reads: true,
            ..Failing::default()
        });
        assert_eq!(medium.read(0, &mut [0]), Err(Refused::Failed));
        medium.write(0, &[0]).unwrap();
        medium.fail(Failing::default());
        medium.read(0, &mut [0]).unwrap();
    }
}
