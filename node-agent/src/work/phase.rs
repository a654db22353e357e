//! The current phase of an operation, and the time spent in each.
//!
//! An operation records its phase, and other threads can read it: so an error about a hung
//! operation names the phase. The time of an operation is split among its phases without gaps or
//! overlaps. Must not know the work of a phase.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belay_server::call::Failure;
use belay_server::work::Amount;
use metrics::{Histogram, Unit};

/// How long operations spent in their phases, in seconds, by `operation` and `phase`.
const DURATION: &str = "belay_operation_phase_duration_seconds";

/// The call. The label `operation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Stage,
    Unstage,
    Publish,
    Unpublish,
    Expand,
    Stats,
    Health,
    StorageHealth,
}

impl Operation {
    const ALL: [Operation; 8] = [
        Operation::Stage,
        Operation::Unstage,
        Operation::Publish,
        Operation::Unpublish,
        Operation::Expand,
        Operation::Stats,
        Operation::Health,
        Operation::StorageHealth,
    ];

    /// The name of the operation, like that of the CSI call.
    fn name(self) -> &'static str {
        match self {
            Operation::Stage => "stage",
            Operation::Unstage => "unstage",
            Operation::Publish => "publish",
            Operation::Unpublish => "unpublish",
            Operation::Expand => "expand",
            Operation::Stats => "stats",
            Operation::Health => "health",
            Operation::StorageHealth => "storage_health",
        }
    }
}

/// A part of an operation. The label `phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Inspecting paths, mounts and the volume's file; and work in no other phase.
    Inspect,
    /// Attaching a device for the volume.
    Attach,
    /// Probing the device.
    Probe,
    /// Configuring the mount; may load a kernel module first.
    Configure,
    /// mkfs and the proofs around it.
    Format,
    /// e2fsck of an ext4 whose superblock asks for it.
    Repair,
    /// The kernel reads the filesystem, replays its log and mounts it.
    Mount,
    /// Checking that the right device is mounted, or that none is still mounted.
    Check,
    /// Growing device and filesystem.
    Grow,
    /// Cloning a mount, or binding a device node.
    Clone,
    /// Making the mount visible at its path.
    Place,
    /// Writing a volume to its disk before an unmount.
    Flush,
    /// Thawing and unmounting; this writes back dirty data.
    Unmount,
    /// Detaching the device.
    Detach,
    /// Removing the path that the mount was on.
    Remove,
    /// Reading the usage of a filesystem.
    Usage,
}

impl Phase {
    const ALL: [Phase; 16] = [
        Phase::Inspect,
        Phase::Attach,
        Phase::Probe,
        Phase::Configure,
        Phase::Format,
        Phase::Repair,
        Phase::Mount,
        Phase::Check,
        Phase::Grow,
        Phase::Clone,
        Phase::Place,
        Phase::Flush,
        Phase::Unmount,
        Phase::Detach,
        Phase::Remove,
        Phase::Usage,
    ];

    /// The name of the phase, in one lowercase word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Inspect => "inspect",
            Phase::Attach => "attach",
            Phase::Probe => "probe",
            Phase::Configure => "configure",
            Phase::Format => "format",
            Phase::Repair => "repair",
            Phase::Mount => "mount",
            Phase::Check => "check",
            Phase::Grow => "grow",
            Phase::Clone => "clone",
            Phase::Place => "place",
            Phase::Flush => "flush",
            Phase::Unmount => "unmount",
            Phase::Detach => "detach",
            Phase::Remove => "remove",
            Phase::Usage => "usage",
        }
    }
}

/// Describes the histogram.
pub(super) fn announce() {
    metrics::describe_histogram!(
        DURATION,
        Unit::Seconds,
        "How long node operations spent in each of their phases."
    );
}

/// An operation's current phase, readable by other threads.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// 0 for none, else the index in [`Phase::ALL`] plus one.
    phase: AtomicU8,
    done: AtomicU64,
    /// 0 unless the phase knows its total.
    total: AtomicU64,
    is_given_up: AtomicBool,
}

impl Progress {
    /// The current phase of the operation; `None` before and after it.
    pub(crate) fn now(&self) -> Option<Phase> {
        let place = usize::from(self.phase.load(Ordering::Relaxed));
        Phase::ALL.get(place.checked_sub(1)?).copied()
    }

    /// The amount of the phase that is done, if the phase knows it.
    pub(crate) fn amount(&self) -> Option<Amount> {
        let [done, total] = [&self.done, &self.total].map(|part| part.load(Ordering::Relaxed));
        (total > 0).then_some(Amount { done, total })
    }

    /// Shows that the current phase has completed `done` of `total` bytes. Its parts may end in any
    /// order: the last part counts.
    pub(crate) fn advance(&self, done: u64, total: u64) {
        self.done.fetch_max(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Asks a phase of known amount, or a check, to end; returns `false` in any other phase.
    pub(crate) fn give_up(&self) -> bool {
        let ends = self.amount().is_some() || self.now() == Some(Phase::Repair);
        self.is_given_up.fetch_or(ends, Ordering::Relaxed);
        ends
    }

    /// Refuses to continue once the volume is being unstaged.
    ///
    /// # Errors
    /// Returns `ABORTED` once the volume is being unstaged.
    pub(crate) fn refuse_given_up(&self) -> Result<(), Failure> {
        match self.is_given_up.load(Ordering::Relaxed) {
            true => Err(Failure::busy(
                "the volume is being unstaged, so its disk is neither read, checked nor \
                 formatted any longer; retry if needed",
            )),
            false => Ok(()),
        }
    }

    fn show(&self, phase: Option<Phase>) {
        let place = phase.map_or(0, |phase| phase as u8 + 1);
        self.phase.store(place, Ordering::Relaxed);
        self.total.store(0, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }
}

/// Splits the time of one operation among its phases, and shows the phase to other threads. Records
/// the times when dropped, even after a panic.
pub(crate) struct Clock<'a> {
    operation: Operation,
    progress: &'a Progress,
    current: Cell<Option<Phase>>,
    since: Cell<Instant>,
    spent: Cell<[Option<Duration>; Phase::ALL.len()]>,
}

impl<'a> Clock<'a> {
    pub(crate) fn start(operation: Operation, progress: &'a Progress) -> Self {
        Clock {
            operation,
            progress,
            current: Cell::new(None),
            since: Cell::new(Instant::now()),
            spent: Cell::new([None; Phase::ALL.len()]),
        }
    }

    pub(crate) fn progress(&self) -> &'a Progress {
        self.progress
    }

    /// Runs `work` as this phase, and returns to the outer one afterwards, even if it panics.
    pub(crate) fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let _outer = Outer {
            clock: self,
            phase: self.enter(Some(phase)),
        };
        work()
    }

    /// Enters a phase, and returns the phase before it.
    fn enter(&self, phase: Option<Phase>) -> Option<Phase> {
        self.progress.show(phase);
        let now = Instant::now();
        let left = self.current.replace(phase);
        let since = self.since.replace(now);
        if let Some(left) = left {
            let mut spent = self.spent.get();
            let before = spent[left as usize].unwrap_or_default();
            spent[left as usize] = Some(before + now.duration_since(since));
            self.spent.set(spent);
        }
        left
    }
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        for (phase, spent) in Phase::ALL.into_iter().zip(self.spent.get()) {
            if let Some(spent) = spent {
                durations().of(self.operation, phase).record(spent);
            }
        }
    }
}

/// The phase to return to when dropped.
struct Outer<'a> {
    clock: &'a Clock<'a>,
    phase: Option<Phase>,
}

impl Drop for Outer<'_> {
    fn drop(&mut self) {
        self.clock.enter(self.phase);
    }
}

/// A histogram per operation and phase; each is looked up by name only once.
struct Durations([[OnceLock<Histogram>; Phase::ALL.len()]; Operation::ALL.len()]);

impl Durations {
    const fn new() -> Self {
        Durations([const { [const { OnceLock::new() }; Phase::ALL.len()] }; Operation::ALL.len()])
    }

    fn of(&self, operation: Operation, phase: Phase) -> &Histogram {
        self.0[operation as usize][phase as usize].get_or_init(|| {
            metrics::histogram!(DURATION, "operation" => operation.name(), "phase" => phase.name())
        })
    }
}

/// The histograms of this process.
fn durations() -> &'static Durations {
    static DURATIONS: Durations = Durations::new();
    &DURATIONS
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const DOCUMENTATION: &str = include_str!("../../../docs/metrics.md");

    #[test]
    fn every_phase_and_operation_has_its_place_and_a_name_of_its_own() {
        for (place, phase) in Phase::ALL.into_iter().enumerate() {
            assert_eq!(phase as usize, place);
            let same = Phase::ALL.iter().filter(|p| p.name() == phase.name());
            assert_eq!(same.count(), 1, "{phase:?}");
            let row = format!("\n| {} | ", phase.name());
            assert!(DOCUMENTATION.contains(&row), "{row}");
        }
        for (place, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(operation as usize, place);
            let word = format!("`{}`", operation.name());
            assert!(DOCUMENTATION.contains(&word), "{word}");
        }
    }

    /// Otherwise an unstage would wait for the check for up to an hour.
    #[test]
    fn a_check_can_be_given_up_and_a_mount_cannot() {
        for (phase, expected) in [(Phase::Mount, false), (Phase::Repair, true)] {
            let progress = Progress::default();
            let clock = Clock::start(Operation::Stage, &progress);
            assert_eq!(clock.phase(phase, || progress.give_up()), expected);
            assert_eq!(progress.refuse_given_up().is_err(), expected);
        }
    }

    #[test]
    fn progress_shows_the_phase_and_the_outer_one_again_after_an_inner_one() {
        let progress = Progress::default();
        let now = || progress.now();
        let clock = Clock::start(Operation::Stage, &progress);
        assert_eq!(now(), None);
        clock.phase(Phase::Inspect, || {
            assert_eq!(now(), Some(Phase::Inspect));
            clock.phase(Phase::Mount, || {
                assert_eq!(now(), Some(Phase::Mount));
                clock.phase(Phase::Grow, || assert_eq!(now(), Some(Phase::Grow)));
                assert_eq!(now(), Some(Phase::Mount));
            });
            assert_eq!(now(), Some(Phase::Inspect));
        });
        assert_eq!(now(), None);
    }

    #[test]
    fn another_thread_sees_the_phase_while_it_lasts() {
        let progress = Progress::default();
        let (entered, wait_entered) = std::sync::mpsc::channel();
        let (leave, wait_leave) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                Clock::start(Operation::Unstage, &progress).phase(Phase::Unmount, move || {
                    entered.send(()).unwrap();
                    wait_leave.recv().unwrap();
                });
            });
            wait_entered.recv().unwrap();
            assert_eq!(progress.now(), Some(Phase::Unmount));
            leave.send(()).unwrap();
        });
        assert_eq!(progress.now(), None);
    }

    #[test]
    fn a_panic_leaves_nothing_behind() {
        let progress = Progress::default();
        let clock = Clock::start(Operation::Stage, &progress);
        let broken = catch_unwind(AssertUnwindSafe(|| {
            clock.phase(Phase::Inspect, || {
                clock.phase(Phase::Probe, || panic!("bug"))
            })
        }));
        assert!(broken.is_err());
        assert_eq!(progress.now(), None);
        clock.phase(Phase::Mount, || {
            assert_eq!(progress.now(), Some(Phase::Mount));
        });
    }

    #[test]
    fn the_time_of_an_operation_is_split_without_a_gap() {
        let begun = Instant::now();
        let progress = Progress::default();
        let clock = Clock::start(Operation::Stage, &progress);
        let first = clock.phase(Phase::Inspect, || {
            let first = clock.since.get();
            clock.phase(Phase::Mount, || clock.phase(Phase::Grow, || ()));
            first
        });
        let spent = clock.spent.get();
        let visited: Vec<Phase> = Phase::ALL
            .into_iter()
            .filter(|phase| spent[*phase as usize].is_some())
            .collect();
        assert_eq!(visited, [Phase::Inspect, Phase::Mount, Phase::Grow]);
        let sum: Duration = spent.iter().flatten().sum();
        assert_eq!(sum, clock.since.get() - first);
        assert!(first >= begun);
    }
}
