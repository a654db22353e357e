//! The steps of a lifecycle and their durations: Belay's and the kernel's, round by round.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::kind::{Kind, Scene};

/// A step of a volume's lifecycle, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    Create,
    Attach,
    StageBlank,
    Publish,
    Write,
    Stats,
    PublishReadOnly,
    ControllerExpand,
    NodeExpand,
    Unpublish,
    Unstage,
    StageAgain,
    Read,
    Detach,
    Delete,
    Snapshot,
    Overwrite,
    Restore,
    StageRestored,
    ReadOld,
    Clone,
    StageClone,
    ReadNew,
    DeleteRestored,
    DeleteClone,
    DeleteSource,
    DeleteSnapshot,
}

impl Step {
    /// The name shown to the user.
    pub(crate) fn label(self, kind: Kind) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Attach => "attach",
            Self::StageBlank if kind.is_block() => "stage (first)",
            Self::StageBlank => "stage (blank)",
            Self::Publish => "publish",
            Self::Write => "write 4MiB, fsync",
            Self::Stats => "stats",
            Self::PublishReadOnly => "publish read-only",
            Self::ControllerExpand => "expand, controller",
            Self::NodeExpand => "expand, node",
            Self::Unpublish => "unpublish",
            Self::Unstage => "unstage",
            Self::StageAgain => "stage (again)",
            Self::Read => "read 4MiB, compare",
            Self::Detach => "detach",
            Self::Delete => "delete",
            Self::Snapshot => "snapshot",
            Self::Overwrite => "overwrite, fsync",
            Self::Restore => "restore, larger",
            Self::StageRestored => "stage (restored)",
            Self::ReadOld | Self::ReadNew => "read, compare",
            Self::Clone => "clone",
            Self::StageClone => "stage (clone)",
            Self::DeleteRestored => "delete restored",
            Self::DeleteClone => "delete clone",
            Self::DeleteSource => "delete source",
            Self::DeleteSnapshot => "delete snapshot",
        }
    }
}

/// Whose time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Belay,
    Kernel,
}

/// All times of one run.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    times: BTreeMap<(Scene, Step, Who), Vec<Duration>>,
    empty_calls: Vec<Duration>,
}

impl Samples {
    pub(crate) fn add(&mut self, scene: Scene, step: Step, who: Who, took: Duration) {
        self.times.entry((scene, step, who)).or_default().push(took);
    }

    /// A call that does nothing: the cost of a call itself.
    pub(crate) fn add_empty_call(&mut self, took: Duration) {
        self.empty_calls.push(took);
    }

    /// The median of a step, `None` if it was never measured.
    pub(crate) fn p50(&self, scene: Scene, step: Step, who: Who) -> Option<Duration> {
        median(self.times.get(&(scene, step, who))?)
    }

    /// The 25th percentile of a step, which benches/BUDGET.md compares.
    pub(crate) fn p25(&self, scene: Scene, step: Step, who: Who) -> Option<Duration> {
        nth(self.times.get(&(scene, step, who))?, 4)
    }

    /// The 25th percentile of an empty call.
    pub(crate) fn empty_call_p25(&self) -> Option<Duration> {
        nth(&self.empty_calls, 4)
    }
}

/// The lower median: a time that really occurred (nearest rank).
pub(crate) fn median(times: &[Duration]) -> Option<Duration> {
    nth(times, 2)
}

/// The time that one in `part` of all does not exceed.
fn nth(times: &[Duration], part: usize) -> Option<Duration> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len().checked_sub(1)? / part).copied()
}

/// Formats a time in a suitable unit.
pub(crate) fn show(time: Duration) -> String {
    let us = time.as_micros();
    match us {
        // Enough digits to compute the same ratios by hand.
        0..100 => format!("{}.{} µs", us, time.as_nanos() % 1_000 / 100),
        100..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{}.{:02} ms", us / 1_000, us % 1_000 / 10),
        _ => format!("{}.{:02} s", us / 1_000_000, us % 1_000_000 / 10_000),
    }
}

/// Formats a time in at most six characters.
pub(crate) fn show_short(time: Duration) -> String {
    let us = time.as_micros();
    match us {
        0..1_000 => format!("{us}µs"),
        1_000..10_000 => format!("{}.{}ms", us / 1_000, us % 1_000 / 100),
        10_000..1_000_000 => format!("{}ms", us / 1_000),
        _ => format!("{}.{}s", us / 1_000_000, us % 1_000_000 / 100_000),
    }
}

/// `whole / part` with one decimal.
pub(crate) fn ratio(whole: Duration, part: Duration) -> String {
    let tenths = whole.as_nanos() * 10 / part.as_nanos().max(1);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(times: &[u64]) -> Vec<Duration> {
        times.iter().map(|us| Duration::from_micros(*us)).collect()
    }

    #[test]
    fn the_median_is_a_time_that_occurred() {
        for (times, expected) in [
            (&[5][..], Some(5)),
            (&[9, 1], Some(1)),
            (&[9, 1, 5], Some(5)),
            (&[4, 3, 2, 1], Some(2)),
            (&[1_000, 1, 1, 1, 1_000], Some(1)),
            (&[], None),
        ] {
            assert_eq!(
                median(&us(times)),
                expected.map(Duration::from_micros),
                "{times:?}"
            );
        }
    }

    #[test]
    fn times_are_shown_in_a_suitable_unit() {
        for (us, text) in [
            (0, "0.0 µs"),
            (99, "99.0 µs"),
            (100, "100 µs"),
            (999, "999 µs"),
            (1_000, "1.00 ms"),
            (12_345, "12.34 ms"),
            (999_999, "999.99 ms"),
            (1_500_000, "1.50 s"),
        ] {
            assert_eq!(show(Duration::from_micros(us)), text);
            assert!(show_short(Duration::from_micros(us)).chars().count() <= 6);
        }
        assert_eq!(show_short(Duration::from_micros(1_960)), "1.9ms");
    }

    #[test]
    fn the_ratio_has_one_decimal_and_survives_a_zero() {
        let us = Duration::from_micros;
        for (whole, part, text) in [(15, 10, "1.5"), (5, 10, "0.5"), (200, 1, "200.0")] {
            assert_eq!(ratio(us(whole), us(part)), text);
        }
        assert_eq!(ratio(us(1), us(0)), "1000.0");
    }

    #[test]
    fn belay_and_kernel_are_kept_apart() {
        let [xfs, ext4] = [Kind::Xfs, Kind::Ext4].map(Scene::Life);
        let mut samples = Samples::default();
        samples.add(xfs, Step::Stats, Who::Belay, Duration::from_micros(9));
        assert_eq!(
            samples.p50(xfs, Step::Stats, Who::Belay),
            Some(Duration::from_micros(9))
        );
        assert_eq!(samples.p50(xfs, Step::Stats, Who::Kernel), None);
        assert_eq!(samples.p50(ext4, Step::Stats, Who::Belay), None);
    }
}
