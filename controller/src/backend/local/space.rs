//! The maximum number of bytes that may be provisioned. With an overcommit factor of 1, every
//! provisioned byte can be written: the sizes of all volumes and snapshots together never exceed
//! the size of the filesystem minus its metadata and foreign files. Shared blocks count once for
//! each file, since each file may be overwritten.

use super::files::Files;
use super::ledger::Ledger;
use belay_server::call::Failure;
use belay_server::lock::Lock;
use std::collections::HashSet;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// The time for which the result of a scan of all files may be used again.
const RECENT: Duration = Duration::from_secs(60);

/// After a scan, queries use its result for this multiple of the scan's duration, but at most for
/// [`RECENT`]. So scans for queries take at most 1 % of the time; only if a scan takes more than
/// 0.6 s, they take more, with one scan per minute. In addition, queries may scan once after each
/// removal of a file.
const PAUSE: u32 = 100;

/// Determines the maximum number of bytes of all volumes and snapshots together (the "ceiling").
/// Foreign space is all used space that does not belong to volumes and snapshots: other files, the
/// state, and metadata of the filesystem. It cannot be provisioned. Blocks that several files share
/// are counted once per file, so they can hide foreign files. On a filesystem that only Belay uses,
/// there are no foreign files.
///
/// A scan of all files determines the foreign space. A scan of 10,000 files takes 18 ms. Between
/// two scans, the maximum is estimated: all space allocated since the last scan counts as foreign,
/// so the estimate is too small by the data that volumes have written. But if volumes have
/// discarded space and foreign files have used that space since, the estimate is too large by that
/// space until the next scan, also for creations.
#[derive(Debug)]
pub(super) struct Ceiling {
    overcommit: Overcommit,
    /// The state of scans. The lock must not be held during a scan, since a disk may not respond,
    /// and deletions need the lock.
    known: Lock<Known>,
    #[cfg(test)]
    scans: std::sync::atomic::AtomicU32,
}

/// The maximum number of bytes that may be provisioned, and the space that reduces it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limit {
    /// The maximum number of bytes of all volumes and snapshots together.
    pub(super) bytes: u64,
    /// The foreign space of the filesystem, in bytes.
    pub(super) foreign: u64,
}

#[derive(Debug, Default)]
struct Known {
    last: Option<Scan>,
    removed: Removed,
    /// Whether a query is scanning.
    is_asked: bool,
}

/// Counters of the files that were removed since the start of the process.
#[derive(Clone, Copy, Debug, Default)]
struct Removed {
    /// The number of removed files that had allocated blocks.
    files: u64,
    /// The number of bytes that were allocated to removed files.
    bytes: u64,
}

/// The result of a scan of all files.
#[derive(Clone, Copy, Debug)]
struct Scan {
    /// The time at which the scan ended.
    at: Instant,
    took: Duration,
    /// The used space of the filesystem just before the scan, in bytes.
    taken: u64,
    /// The space that the files of volumes and snapshots used during the scan, in bytes.
    ours: u64,
    /// Whether a file was removed since the scan. The values of the scan may then be wrong, since
    /// the file may have shared blocks that are still in use.
    is_off: bool,
}

/// The scan from which the maximum is determined: an earlier scan, or a new one.
#[derive(Debug)]
enum Query<'a> {
    Use(Scan),
    Scan(Option<Turn<'a>>),
}

/// The exclusive right of a query to scan all files, which ends when this value is dropped.
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

    /// Returns the exact limit. Scans all files, unless there is a recent scan and the used space
    /// has not changed since.
    pub(super) fn exact(
        &self,
        volumes: &Files,
        snapshots: &Files,
        ledger: &Ledger,
    ) -> Result<Limit, Failure> {
        self.maximum(volumes, snapshots, ledger, |taken| {
            let last = self.known.lock().last.filter(Scan::is_recent);
            let same = last.filter(|scan| scan.taken == taken);
            same.map_or(Query::Scan(None), Query::Use)
        })
    }

    /// Returns the limit for a query. Unlike [`Ceiling::exact`], uses the last scan if that scan is
    /// recent or another query is scanning.
    pub(super) fn shortly(
        &self,
        volumes: &Files,
        snapshots: &Files,
        ledger: &Ledger,
    ) -> Result<Limit, Failure> {
        self.maximum(volumes, snapshots, ledger, |taken| self.query(taken))
    }

    /// Returns the limit, from the scan that `decide` selects by the used space, or from a new
    /// scan.
    fn maximum<'a>(
        &'a self,
        volumes: &Files,
        snapshots: &Files,
        ledger: &Ledger,
        decide: impl FnOnce(u64) -> Query<'a>,
    ) -> Result<Limit, Failure> {
        let before = self.known.lock().removed;
        let room = volumes.room()?;
        let scan = match decide(room.taken) {
            Query::Use(scan) => scan,
            Query::Scan(_turn) => self.scan(volumes, snapshots, ledger, (room.taken, before))?,
        };
        Ok(self.shown(room.total, scan.foreign(room.taken)))
    }

    /// Decides whether a query scans. Only one query at a time scans; all other queries use the
    /// last scan, whatever its age is. Before the first scan, each query scans, since it must not
    /// wait for another query's scan on a disk that does not respond.
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

    /// Scans all files. `before` contains the files that were removed before the scan, and `taken`
    /// the used space before it.
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
        // The scan may have counted files that were removed during the scan.
        if known.removed.files > before.files {
            scan.free(known.removed.bytes - before.bytes);
        }
        known.last = Some(scan);
        Ok(scan)
    }

    /// Returns an estimate that does not exceed the exact limit, according to the last scan.
    /// Returns `None` if there is no recent scan.
    pub(super) fn estimate(&self, volumes: &Files) -> Result<Option<Limit>, Failure> {
        let Some(scan) = self.known.lock().last.filter(Scan::is_recent) else {
            return Ok(None);
        };
        let room = volumes.room()?;
        Ok(Some(self.shown(room.total, scan.foreign(room.taken))))
    }

    fn shown(&self, total: u64, foreign: u64) -> Limit {
        let bytes = self.overcommit.of(total, foreign);
        metrics::gauge!("belay_controller_capacity_bytes").set(bytes as f64);
        Limit { bytes, foreign }
    }

    /// Records that the file of a volume or snapshot, with `bytes` allocated, was removed. If the
    /// freed space is used again later, that space counts as foreign, unless the removed file had
    /// shared it.
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

    /// Sets the state as if the last scan had found only foreign files.
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

    /// Sets the state as if the last scan had taken this time, and the used space had changed
    /// since. A test cannot change the used space itself, since other users of the filesystem may
    /// free space.
    #[cfg(test)]
    pub(super) fn seem_slow(&self, took: Duration) {
        if let Some(scan) = &mut self.known.lock().last {
            scan.took = took;
            // The number of used bytes of a real filesystem is never odd.
            scan.taken |= 1;
        }
    }

    /// Returns the number of bytes that were allocated to removed files.
    #[cfg(test)]
    pub(super) fn freed_bytes(&self) -> u64 {
        self.known.lock().removed.bytes
    }

    /// Returns the number of scans.
    #[cfg(test)]
    pub(super) fn scans(&self) -> u32 {
        self.scans.load(std::sync::atomic::Ordering::Relaxed)
    }
}

impl Scan {
    fn is_recent(&self) -> bool {
        self.at.elapsed() < RECENT
    }

    /// Whether the scan is recent enough for a query, given the current used space.
    fn says_enough(&self, taken: u64) -> bool {
        let is_fresh = !self.is_off && self.at.elapsed() < self.took.saturating_mul(PAUSE);
        self.is_recent() && (self.taken == taken || is_fresh)
    }

    fn free(&mut self, bytes: u64) {
        self.is_off = true;
        self.taken = self.taken.saturating_sub(bytes);
        self.ours = self.ours.saturating_sub(bytes);
    }

    /// Returns the maximum foreign space, given the current used space.
    fn foreign(&self, taken: u64) -> u64 {
        taken.max(self.taken).saturating_sub(self.ours)
    }
}

/// Returns the number of bytes allocated to the files with these IDs. All other files count as
/// foreign, whatever their names are. A file that was created after the IDs were read also counts
/// as foreign until the next scan.
pub(super) fn ours(files: &Files, ids: &HashSet<String>) -> Result<u64, Failure> {
    let mut ours = 0_u64;
    files.each(|name, allocated| {
        if ids.contains(name) {
            ours = ours.saturating_add(allocated);
        }
    })?;
    Ok(ours)
}

/// The maximum ratio of provisioned space to actual space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit {
    permille: u64,
}

/// The minimum factor: with a smaller one, almost no volume would fit.
const FACTOR_MIN: f64 = 0.1;
/// The maximum factor: with a larger one, the limit would have no effect.
const FACTOR_MAX: f64 = 1_000_000.0;

/// The error for an invalid overcommit factor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a number from {FACTOR_MIN} to {FACTOR_MAX}, such as 1 or 2.5")]
pub struct OvercommitError;

impl Default for Overcommit {
    fn default() -> Self {
        Self { permille: 1000 }
    }
}

impl FromStr for Overcommit {
    type Err = OvercommitError;

    fn from_str(text: &str) -> Result<Self, OvercommitError> {
        let factor: f64 = text.parse().map_err(|_| OvercommitError)?;
        if !(FACTOR_MIN..=FACTOR_MAX).contains(&factor) {
            return Err(OvercommitError);
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
    /// Returns the number of bytes that may be provisioned on a filesystem of `total` bytes, if
    /// foreign files use `foreign` bytes.
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
            // The values are total, taken, ours, factor and the expected ceiling.
            ((1000, 0, 0, "1"), 1000),
            ((1000, 300, 0, "1"), 700),
            ((1000, 300, 300, "1"), 1000),
            ((1000, 300, 100, "1.0"), 800),
            ((1000, 300, 100, "2.5"), 2000),
            ((1000, 0, 0, "0.5"), 500),
            // With compressed or shared blocks, more space seems allocated than is used.
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

    /// Whether a query with this used space scans. The function ends the query at once.
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
        // The query ends without a scan result, so the next query must be able to scan.
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
        // The end of the second query does not end the first.
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
        // The file was never written, so it shared nothing.
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
        // A file of a volume was removed, and a foreign file of the same size was created.
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
