//! What an operation is doing at this moment, and how long it does what.
//!
//! An operation says which phase it is in; a thread of the pool shows it to other threads, so that
//! one that hangs can be told by what it hangs in. The time of an operation is split among its
//! phases without a gap and without counting any of it twice. Must not know what a phase does.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use metrics::{Histogram, Unit};

/// How long operations spent in their phases, in seconds, by `operation` and `phase`.
const DURATION: &str = "belay_operation_phase_duration_seconds";

/// What a caller asked for. The label `operation`.
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

    /// In the words of the CSI calls.
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
    /// Looking at paths, mounts and the volume's file; what is in no other phase.
    Look,
    /// Attaching a device for the volume.
    Attach,
    /// Reading what is on the device.
    Probe,
    /// Telling the kernel how to mount; it may load a module first.
    Configure,
    /// mkfs and the proofs around it.
    Format,
    /// The kernel reads the filesystem, replays its log and mounts it.
    Mount,
    /// Proving that the right device is mounted, or that none is any more.
    Check,
    /// Growing device and filesystem.
    Grow,
    /// Cloning a mount, or binding a device node.
    Clone,
    /// Making the mount visible at its path.
    Place,
    /// Thawing and unmounting; what was written goes to the disk here.
    Unmount,
    /// Detaching the device.
    Detach,
    /// Removing the path that the mount was on.
    Remove,
    /// Asking a filesystem how full it is.
    Usage,
}

impl Phase {
    const ALL: [Phase; 14] = [
        Phase::Look,
        Phase::Attach,
        Phase::Probe,
        Phase::Configure,
        Phase::Format,
        Phase::Mount,
        Phase::Check,
        Phase::Grow,
        Phase::Clone,
        Phase::Place,
        Phase::Unmount,
        Phase::Detach,
        Phase::Remove,
        Phase::Usage,
    ];

    /// In one lowercase word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Look => "look",
            Phase::Attach => "attach",
            Phase::Probe => "probe",
            Phase::Configure => "configure",
            Phase::Format => "format",
            Phase::Mount => "mount",
            Phase::Check => "check",
            Phase::Grow => "grow",
            Phase::Clone => "clone",
            Phase::Place => "place",
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

/// What one thread does, for another one to see.
#[derive(Debug, Default)]
pub(crate) struct Progress(
    /// 0 for nothing, else the place in [`Phase::ALL`] plus one.
    AtomicU8,
);

impl Progress {
    /// The phase that the watched thread is in now; `None` before, between and after operations.
    pub(crate) fn now(&self) -> Option<Phase> {
        let place = usize::from(self.0.load(Ordering::Relaxed));
        Phase::ALL.get(place.checked_sub(1)?).copied()
    }

    fn show(&self, phase: Option<Phase>) {
        let place = phase.map_or(0, |phase| phase as u8 + 1);
        self.0.store(place, Ordering::Relaxed);
    }
}

thread_local! {
    static WATCHER: RefCell<Option<Arc<Progress>>> = const { RefCell::new(None) };
    static CURRENT: Cell<Option<Phase>> = const { Cell::new(None) };
    static CLOCK: RefCell<Option<Clock>> = const { RefCell::new(None) };
}

/// Shows in `progress` what this thread does during `work`.
pub(crate) fn watched<T>(progress: &Arc<Progress>, work: impl FnOnce() -> T) -> T {
    let outer = WATCHER.replace(Some(Arc::clone(progress)));
    let _restored = at_end(|| {
        if let Some(progress) = WATCHER.replace(outer) {
            progress.show(None);
        }
    });
    progress.show(CURRENT.get());
    work()
}

/// Runs a whole operation. What of it is in no phase of its own counts as [`Phase::Look`].
pub(crate) fn operation<T>(operation: Operation, work: impl FnOnce() -> T) -> T {
    let outer = CLOCK.replace(Some(Clock::start(operation)));
    let _restored = at_end(|| {
        if let Some(clock) = CLOCK.replace(outer) {
            clock.record(durations());
        }
    });
    phase(Phase::Look, work)
}

/// Runs a part of an operation. Within another phase it takes that one's place as long as it lasts.
pub(crate) fn phase<T>(phase: Phase, work: impl FnOnce() -> T) -> T {
    let outer = enter(Some(phase));
    let _restored = at_end(|| {
        enter(outer);
    });
    work()
}

/// The phase that was left for this one.
fn enter(phase: Option<Phase>) -> Option<Phase> {
    WATCHER.with_borrow(|progress| {
        if let Some(progress) = progress {
            progress.show(phase);
        }
    });
    CLOCK.with_borrow_mut(|clock| {
        if let Some(clock) = clock {
            clock.enter(phase);
        }
    });
    CURRENT.replace(phase)
}

/// Does something when dropped, so also when a panic passes.
struct AtEnd<F: FnOnce()>(Option<F>);

fn at_end<F: FnOnce()>(action: F) -> AtEnd<F> {
    AtEnd(Some(action))
}

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(action) = self.0.take() {
            action();
        }
    }
}

/// Splits the time of one operation among its phases.
struct Clock {
    operation: Operation,
    current: Option<Phase>,
    since: Instant,
    spent: [Option<Duration>; Phase::ALL.len()],
}

impl Clock {
    fn start(operation: Operation) -> Self {
        Clock {
            operation,
            current: None,
            since: Instant::now(),
            spent: [None; Phase::ALL.len()],
        }
    }

    fn enter(&mut self, phase: Option<Phase>) {
        let now = Instant::now();
        if let Some(left) = self.current {
            let spent = &mut self.spent[left as usize];
            *spent = Some(spent.unwrap_or_default() + now.duration_since(self.since));
        }
        self.current = phase;
        self.since = now;
    }

    fn record(&self, durations: &Durations) {
        for (phase, spent) in Phase::ALL.into_iter().zip(self.spent) {
            if let Some(spent) = spent {
                durations.of(self.operation, phase).record(spent);
            }
        }
    }
}

/// One histogram an operation and phase, each looked up by name only once.
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

/// Those of this process.
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

    #[test]
    fn a_watched_thread_shows_its_phase_and_the_outer_one_again_after_an_inner_one() {
        let progress = Arc::new(Progress::default());
        let now = || progress.now();
        phase(Phase::Probe, || assert_eq!(now(), None));
        watched(&progress, || {
            assert_eq!(now(), None);
            operation(Operation::Stage, || {
                assert_eq!(now(), Some(Phase::Look));
                phase(Phase::Mount, || {
                    assert_eq!(now(), Some(Phase::Mount));
                    phase(Phase::Grow, || assert_eq!(now(), Some(Phase::Grow)));
                    assert_eq!(now(), Some(Phase::Mount));
                });
                assert_eq!(now(), Some(Phase::Look));
            });
            assert_eq!(now(), None);
        });
        phase(Phase::Probe, || assert_eq!(now(), None));
    }

    #[test]
    fn another_thread_sees_the_phase_while_it_lasts() {
        let progress = Arc::new(Progress::default());
        let (entered, wait_entered) = std::sync::mpsc::channel();
        let (leave, wait_leave) = std::sync::mpsc::channel::<()>();
        let shown = Arc::clone(&progress);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                watched(&shown, || {
                    phase(Phase::Unmount, || {
                        entered.send(()).unwrap();
                        wait_leave.recv().unwrap();
                    });
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
        let progress = Arc::new(Progress::default());
        let broken = catch_unwind(AssertUnwindSafe(|| {
            watched(&progress, || {
                operation(Operation::Stage, || phase(Phase::Probe, || panic!("bug")))
            })
        }));
        assert!(broken.is_err());
        assert_eq!(progress.now(), None);
        assert_eq!(CURRENT.get(), None);
        assert!(CLOCK.with_borrow(Option::is_none));
        phase(Phase::Mount, || assert_eq!(progress.now(), None));
    }

    #[test]
    fn the_time_of_an_operation_is_split_without_a_gap() {
        let begun = Instant::now();
        let mut clock = Clock::start(Operation::Stage);
        let first = clock.since;
        for entered in [
            Some(Phase::Look),
            Some(Phase::Mount),
            Some(Phase::Grow),
            Some(Phase::Mount),
            Some(Phase::Look),
            None,
        ] {
            clock.enter(entered);
        }
        let visited: Vec<Phase> = Phase::ALL
            .into_iter()
            .filter(|phase| clock.spent[*phase as usize].is_some())
            .collect();
        assert_eq!(visited, [Phase::Look, Phase::Mount, Phase::Grow]);
        let sum: Duration = clock.spent.iter().flatten().sum();
        assert!(sum <= clock.since - first, "nothing counts twice");
        assert!(first >= begun);
    }
}
