//! The bytes that may be provisioned. With overcommit 1 every provisioned byte can be written: the
//! sizes of all volumes and snapshots together never exceed the filesystem less foreign files and
//! its own metadata. Shared blocks count for each file: any of them may be rewritten.

use super::files::Files;
use super::ledger::Ledger;
use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::collections::HashSet;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// For so long after its end, a scan of all files says enough.
const RECENT: Duration = Duration::from_secs(60);

/// Queries scan no sooner than after this many times the duration of the last scan, or [`RECENT`]:
/// they spend at most 1 % of the time on it, or with a scan of more than 0.6 s, its duration in
/// each minute. Beyond that, they may scan once after each removal of a file.
const PAUSE: u32 = 100;

/// The maximum number of bytes of all volumes and snapshots together. Foreign space, which is used
/// but not by their files, cannot be provisioned. Shared blocks seem to be used once per file, so
/// they can hide foreign files; a dedicated filesystem has none.
///
/// Which space is foreign is known from a scan of all files, 18 ms for 10,000 of them. Between two
/// scans the maximum is estimated: all that was taken since counts as foreign, so it is too small
/// by what volumes wrote. What volumes discarded since, and foreign files took instead, is not
/// noticed before the next scan: until then it is too large by that, for creates, too.
#[derive(Debug)]
pub(super) struct Ceiling {
    overcommit: Overcommit,
    /// Never held during a scan: a disk may not answer, and a delete needs it.
    known: Lock<Known>,
    #[cfg(test)]
    scans: std::sync::atomic::AtomicU32,
}

#[derive(Debug, Default)]
struct Known {
    last: Option<Scan>,
    removed: Removed,
    /// A query scans.
    is_asked: bool,
}

/// Files that were removed since the start.
#[derive(Clone, Copy, Debug, Default)]
struct Removed {
    /// Of those with blocks.
    files: u64,
    /// Their allocated bytes.
    bytes: u64,
}

/// A scan of all files.
#[derive(Clone, Copy, Debug)]
struct Scan {
    /// When it ended.
    at: Instant,
    took: Duration,
    /// The used space of the filesystem, just before.
    taken: u64,
    /// Of this, by files of volumes and snapshots.
    ours: u64,
    /// A file was removed since. It may have shared blocks, which are taken still.
    is_off: bool,
}

/// What gives a maximum.
#[derive(Debug)]
enum Query<'a> {
    Use(Scan),
    Scan(Option<Turn<'a>>),
}

/// The scan of a query, until this is dropped.
#[derive(Debug)]
struct Turn<'a>(&'a Ceiling);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.known.lock().is_asked = false;
    }
}

impl Ceiling {
    pub(super) fn new(overcommit: Overcommit) -> Self {
        Self {
            overcommit,
            known: Lock::default(),
            #[cfg(test)]
            scans: std::sync::atomic::AtomicU32::default(),
        }
    }

    /// The exact maximum. Scans unless the filesystem is as full as at the last scan.
    pub(super) fn exact(
        &self,
        volumes: &Files,
        snapshots: &Files,
        ledger: &Ledger,
    ) -> Result<u64, Failure> {
        self.maximum(volumes, snapshots, ledger, |taken| {
            let last = self.known.lock().last.filter(Scan::is_recent);
            let same = last.filter(|scan| scan.taken == taken);
            same.map_or(Query::Scan(None), Query::Use)
        })
    }

    /// For queries: the maximum as [`Ceiling::exact`], or as [`Ceiling::estimate`] just after a
    /// scan, and while another query scans.
    pub(super) fn shortly(
        &self,
        volumes: &Files,
        snapshots: &Files,
        ledger: &Ledger,
    ) -> Result<u64, Failure> {
        self.maximum(volumes, snapshots, ledger, |taken| self.query(taken))
    }

    /// The maximum by the scan that `decide` selects for the used space, or by a new one.
    fn maximum<'a>(
        &'a self,
        volumes: &Files,
        snapshots: &Files,
        ledger: &Ledger,
        decide: impl FnOnce(u64) -> Query<'a>,
    ) -> Result<u64, Failure> {
        let before = self.known.lock().removed;
        let room = volumes.room()?;
        let scan = match decide(room.taken) {
            Query::Use(scan) => scan,
            Query::Scan(_turn) => self.scan(volumes, snapshots, ledger, (room.taken, before))?,
        };
        Ok(self.shown(room.total, scan.foreign(room.taken)))
    }

    /// One query at a time scans again; the others use the last scan, whatever its age. Before the
    /// first scan each of them scans, so that none waits for another whose disk does not answer.
    fn query(&self, taken: u64) -> Query<'_> {
        let mut known = self.known.lock();
        match known.last {
            Some(scan) if known.is_asked || scan.says_enough(taken) => Query::Use(scan),
            None if known.is_asked => Query::Scan(None),
            _ => {
                known.is_asked = true;
                Query::Scan(Some(Turn(self)))
            }
        }
    }

    /// Scans all files. `before` it: the used space, and before that, the removed files.
    fn scan(
        &self,
        volumes: &Files,
        snapshots: &Files,
        ledger: &Ledger,
        (taken, before): (u64, Removed),
    ) -> Result<Scan, Failure> {
        #[cfg(test)]
        self.scans
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let began = Instant::now();
        let of_volumes = ours(volumes, &ledger.ids()?)?;
        let of_snapshots = ours(snapshots, &ledger.snapshot_ids()?)?;
        let mut scan = Scan {
            at: Instant::now(),
            took: began.elapsed(),
            taken,
            ours: of_volumes.saturating_add(of_snapshots),
            is_off: false,
        };
        let mut known = self.known.lock();
        // Some of them may have been scanned before they were removed.
        if known.removed.files > before.files {
            scan.free(known.removed.bytes - before.bytes);
        }
        known.last = Some(scan);
        Ok(scan)
    }

    /// A maximum that is not above the exact one as far as a recent scan shows; `None` without one.
    pub(super) fn estimate(&self, volumes: &Files) -> Result<Option<u64>, Failure> {
        let Some(scan) = self.known.lock().last.filter(Scan::is_recent) else {
            return Ok(None);
        };
        let room = volumes.room()?;
        Ok(Some(self.shown(room.total, scan.foreign(room.taken))))
    }

    fn shown(&self, total: u64, foreign: u64) -> u64 {
        let ceiling = self.overcommit.of(total, foreign);
        metrics::gauge!("belay_controller_capacity_bytes").set(ceiling as f64);
        ceiling
    }

    /// A file of ours with so many allocated bytes was removed: what is taken instead is foreign,
    /// unless it shared them.
    pub(super) fn freed(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut known = self.known.lock();
        known.removed.files += 1;
        known.removed.bytes += bytes;
        if let Some(scan) = &mut known.last {
            scan.free(bytes);
        }
    }

    /// As if the last scan had found foreign files everywhere.
    #[cfg(test)]
    pub(super) fn seem_full(&self) {
        self.known.lock().last = Some(Scan {
            at: Instant::now(),
            took: Duration::ZERO,
            taken: u64::MAX,
            ours: 0,
            is_off: false,
        });
    }

    /// As if the last scan had taken that long, and the used space had changed since: other users
    /// of the filesystem may free what a test has written.
    #[cfg(test)]
    pub(super) fn seem_slow(&self, took: Duration) {
        if let Some(scan) = &mut self.known.lock().last {
            scan.took = took;
            // No filesystem has an odd number of bytes in use.
            scan.taken |= 1;
        }
    }

    /// Bytes of removed files.
    #[cfg(test)]
    pub(super) fn freed_bytes(&self) -> u64 {
        self.known.lock().removed.bytes
    }

    /// The number of scans.
    #[cfg(test)]
    pub(super) fn scans(&self) -> u32 {
        self.scans.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Scan {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < RECENT
    }

    /// For a query, while so much is taken.
    fn says_enough(&self, taken: u64) -> bool {
        let is_fresh = !self.is_off && self.at.elapsed() < self.took.saturating_mul(PAUSE);
        self.is_recent() && (self.taken == taken || is_fresh)
    }

    fn free(&mut self, bytes: u64) {
        self.is_off = true;
        self.taken = self.taken.saturating_sub(bytes);
        self.ours = self.ours.saturating_sub(bytes);
    }

    /// Space that may be foreign while so much is taken.
    fn foreign(&self, taken: u64) -> u64 {
        taken.max(self.taken).saturating_sub(self.ours)
    }
}

/// Bytes allocated to files with these IDs. Stray files are foreign, whatever their names, and so,
/// for once, is a file that was created after the IDs were read.
pub(super) fn ours(files: &Files, ids: &HashSet<String>) -> Result<u64, Failure> {
    let mut ours = 0_u64;
    files.each(|name, allocated| {
        if ids.contains(name) {
            ours = ours.saturating_add(allocated);
        }
    })?;
    Ok(ours)
}

/// How many times over the space may be provisioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit {
    permille: u64,
}

/// Bounds of the factor: below, almost no volume fits; above, the limit is meaningless.
const FACTOR_MIN: f64 = 0.1;
const FACTOR_MAX: f64 = 1_000_000.0;

/// An invalid factor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("overcommit {0:?}: not a number from {FACTOR_MIN} to {FACTOR_MAX}, such as 1 or 2.5")]
pub struct OvercommitError(String);

impl Default for Overcommit {
    fn default() -> Self {
        Self { permille: 1000 }
    }
}

impl FromStr for Overcommit {
    type Err = OvercommitError;

    fn from_str(text: &str) -> Result<Self, OvercommitError> {
        let factor: f64 = text.parse().map_err(|_| OvercommitError(text.to_owned()))?;
        if !(FACTOR_MIN..=FACTOR_MAX).contains(&factor) {
            return Err(OvercommitError(text.to_owned()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the bounds above keep it positive and small"
        )]
        let permille = (factor * 1000.0).round() as u64;
        Ok(Self { permille })
    }
}

impl Overcommit {
    /// The bytes that may be provisioned, of a filesystem of which foreign files take so many.
    pub(super) fn of(self, total: u64, foreign: u64) -> u64 {
        let usable = u128::from(total.saturating_sub(foreign));
        let ceiling = usable * u128::from(self.permille) / 1000;
        u64::try_from(ceiling).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_are_not_promised_and_ours_do_not_count_twice() {
        let cases = [
            // total, taken, ours, factor -> ceiling
            ((1000, 0, 0, "1"), 1000),
            ((1000, 300, 0, "1"), 700),
            ((1000, 300, 300, "1"), 1000),
            ((1000, 300, 100, "1.0"), 800),
            ((1000, 300, 100, "2.5"), 2000),
            ((1000, 0, 0, "0.5"), 500),
            // Compressed or shared blocks: more seems allocated than is used.
            ((1000, 100, 400, "1"), 1000),
            ((u64::MAX, 0, 0, "1000"), u64::MAX),
        ];
        for ((total, taken, ours, factor), ceiling) in cases {
            let overcommit: Overcommit = factor.parse().unwrap();
            let foreign = scan(taken, ours).foreign(taken);
            assert_eq!(overcommit.of(total, foreign), ceiling, "{factor}");
        }
    }

    fn scan(taken: u64, ours: u64) -> Scan {
        Scan {
            at: Instant::now(),
            took: Duration::ZERO,
            taken,
            ours,
            is_off: false,
        }
    }

    /// A query while so much is taken scans, and those after it are not its turn.
    fn scans(ceiling: &Ceiling, taken: u64) -> bool {
        matches!(ceiling.query(taken), Query::Scan(Some(_)))
    }

    #[test]
    fn one_query_at_a_time_scans_again_and_the_others_use_the_last_scan() {
        let ceiling = Ceiling::new(Overcommit::default());
        ceiling.known.lock().last = Some(scan(300, 200));
        let turn = ceiling.query(301);
        assert!(matches!(turn, Query::Scan(Some(_))), "{turn:?}");
        for taken in [300, 301, 900] {
            let other = ceiling.query(taken);
            assert!(matches!(other, Query::Use(_)), "{taken}: {other:?}");
        }
        // Its scan failed, too.
        drop(turn);
        assert!(scans(&ceiling, 301));
        assert!(!scans(&ceiling, 300), "nothing was written");
    }

    #[test]
    fn before_the_first_scan_no_query_waits_for_another() {
        let ceiling = Ceiling::new(Overcommit::default());
        let first = ceiling.query(300);
        assert!(matches!(first, Query::Scan(Some(_))), "{first:?}");
        let second = ceiling.query(300);
        assert!(matches!(second, Query::Scan(None)), "{second:?}");
        // The end of the second one is not that of the first.
        drop(second);
        ceiling.known.lock().last = Some(scan(300, 200));
        assert!(matches!(ceiling.query(301), Query::Use(_)));
        drop(first);
        assert!(scans(&ceiling, 301));
    }

    #[test]
    fn a_file_that_may_have_shared_its_blocks_makes_a_query_scan() {
        let ceiling = Ceiling::new(Overcommit::default());
        let last = scan(300, 200);
        ceiling.known.lock().last = Some(Scan {
            took: RECENT,
            ..last
        });
        assert!(!scans(&ceiling, 301));
        // Never written, so it shared nothing.
        ceiling.freed(0);
        assert!(!scans(&ceiling, 301));
        ceiling.freed(50);
        assert!(!scans(&ceiling, 250), "it shared nothing");
        assert!(scans(&ceiling, 300), "it shared all");
    }

    #[test]
    fn what_is_taken_or_freed_after_a_scan_makes_no_room() {
        let scan = scan(300, 200);
        for (taken, foreign) in [(300, 100), (301, 101), (900, 700), (299, 100), (0, 100)] {
            assert_eq!(scan.foreign(taken), foreign, "{taken}");
        }
        let ceiling = Ceiling::new(Overcommit::default());
        ceiling.known.lock().last = Some(scan);
        // Ours was removed, and a foreign file of that size was created.
        ceiling.freed(50);
        let after = |taken| ceiling.known.lock().last.unwrap().foreign(taken);
        assert_eq!([after(250), after(300)], [100, 150]);
    }

    #[test]
    fn a_factor_that_is_no_sane_number_is_refused() {
        for text in [
            "",
            "0",
            "-1",
            "0.05",
            "0.0999",
            "1000000.5",
            "NaN",
            "inf",
            "1e9",
            "two",
        ] {
            assert!(text.parse::<Overcommit>().is_err(), "{text:?}");
        }
        assert_eq!("1".parse(), Ok(Overcommit::default()));
        for (text, permille) in [("0.1", 100), ("1000000", 1_000_000_000)] {
            assert_eq!(text.parse(), Ok(Overcommit { permille }), "{text}");
        }
    }
}
