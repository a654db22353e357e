//! The current phase of an operation, and the time spent in each phase.
//!
//! Each operation stores its current phase, and other threads can read this phase, so that an error
//! about a hung operation names the phase. At each moment, an operation is in exactly one phase.
//! This module must not depend on the work of a phase.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belay_server::call::Failure;
use belay_server::work::Amount;
use metrics::{Histogram, Unit};

/// Histogram: the time that operations spent in each phase, in seconds, by `operation` and `phase`.
const DURATION: &str = "belay_operation_phase_duration_seconds";

/// An operation of the node agent, which is the value of the metric's label `operation`.
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

    /// Returns the name of the operation, derived from the name of its CSI call.
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

/// A part of an operation, which is the value of the metric's label `phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Inspecting paths, mounts and the volume's file. This phase also includes all work that does
    /// not belong to any other phase.
    Inspect,
    /// Attaching a device to the volume's file, or opening the volume's disk.
    Attach,
    /// Reading the device to determine its filesystem or other content.
    Probe,
    /// Configuring the filesystem context with fsopen(2) and fsconfig(2), which may load the kernel
    /// module of the filesystem.
    Configure,
    /// Running mkfs, and checking before and afterwards that no data is overwritten.
    Format,
    /// Creating the LUKS header of an encrypted volume (`cryptsetup luksFormat`).
    Encrypt,
    /// Opening an encrypted volume (`cryptsetup open`), and replacing its passphrase.
    Unlock,
    /// Running e2fsck on an ext4 whose superblock requests a check.
    Repair,
    /// Mounting the filesystem, which includes reading it and replaying its journal.
    Mount,
    /// Checking that the right device is mounted or, after an unmount, that the device is no longer
    /// mounted.
    Check,
    /// Growing the device and the filesystem on it.
    Grow,
    /// Cloning a mount, or binding a device node.
    Clone,
    /// Attaching the detached mount to its path, which makes it visible.
    Place,
    /// Writing the data of a volume to its disk before an unmount.
    Flush,
    /// Thawing and unmounting the filesystem, which includes writing dirty data to the disk.
    Unmount,
    /// Detaching the device.
    Detach,
    /// Removing the directory or file on which the volume was mounted.
    Remove,
    /// Reading the usage of a filesystem.
    Usage,
}

impl Phase {
    const ALL: [Phase; 18] = [
        Phase::Inspect,
        Phase::Attach,
        Phase::Probe,
        Phase::Configure,
        Phase::Format,
        Phase::Encrypt,
        Phase::Unlock,
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

    /// Returns the name of the phase, which is a single lowercase word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Inspect => "inspect",
            Phase::Attach => "attach",
            Phase::Probe => "probe",
            Phase::Configure => "configure",
            Phase::Format => "format",
            Phase::Encrypt => "encrypt",
            Phase::Unlock => "unlock",
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

/// Registers the descriptions of this module's metrics.
pub(super) fn announce() {
    metrics::describe_histogram!(
        DURATION,
        Unit::Seconds,
        "How long node operations spent in each of their phases."
    );
}

/// The current phase of an operation and the progress of this phase, which other threads can read.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The index of the current phase in [`Phase::ALL`] plus one; 0 before and after the operation.
    phase: AtomicU8,
    done: AtomicU64,
    /// The total amount of work in the phase; 0 if unknown.
    total: AtomicU64,
    is_given_up: AtomicBool,
}

impl Progress {
    /// Returns the current phase; `None` before and after the operation.
    pub(crate) fn now(&self) -> Option<Phase> {
        let place = usize::from(self.phase.load(Ordering::Relaxed));
        Phase::ALL.get(place.checked_sub(1)?).copied()
    }

    /// Returns the completed and the total amount of work in the current phase; `None` if the total
    /// is unknown.
    pub(crate) fn amount(&self) -> Option<Amount> {
        let [done, total] = [&self.done, &self.total].map(|part| part.load(Ordering::Relaxed));
        (total > 0).then_some(Amount { done, total })
    }

    /// Records that the current phase has completed `done` of `total` bytes. Keeps the highest
    /// `done` of all calls, because parts may complete in any order.
    pub(crate) fn advance(&self, done: u64, total: u64) {
        self.done.fetch_max(done, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Requests that the current phase stop early. Returns `false`, and has no effect, unless the
    /// phase can be stopped. Only e2fsck and phases with a known total can be stopped.
    pub(crate) fn give_up(&self) -> bool {
        let ends = self.amount().is_some() || self.now() == Some(Phase::Repair);
        self.is_given_up.fetch_or(ends, Ordering::Relaxed);
        ends
    }

    /// Checks that the operation was not cancelled.
    ///
    /// # Errors
    /// Returns `ABORTED` if NodeUnstageVolume has cancelled the operation.
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

/// Measures how long an operation spends in each phase, and stores the current phase for other
/// threads. When dropped, even after a panic, records these times in the histograms.
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

    /// Runs `work` in this phase. Afterwards returns to the outer phase, even if `work` panics.
    pub(crate) fn phase<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let _outer = Outer {
            clock: self,
            phase: self.enter(Some(phase)),
        };
        work()
    }

    /// Enters a phase, and returns the previous phase.
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

/// Returns to an outer phase when dropped.
struct Outer<'a> {
    clock: &'a Clock<'a>,
    phase: Option<Phase>,
}

impl Drop for Outer<'_> {
    fn drop(&mut self) {
        self.clock.enter(self.phase);
    }
}

/// A histogram for each operation and phase. Each histogram is looked up by name only once.
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

    /// If e2fsck could not be stopped, NodeUnstageVolume would wait up to an hour for its end.
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
