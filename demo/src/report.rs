//! The results of the demo so far: the times of all steps, with Belay and with direct system calls,
//! and facts. Independent of the terminal.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;

/// The name of a step.
pub(crate) type Step = &'static str;

/// The step with the first NodeStageVolume call for a volume, which formats the filesystem.
pub(crate) const STAGE_FIRST: Step = "stage (first)";
/// The step with a later NodeStageVolume call for a volume, which already contains data.
pub(crate) const STAGE_AGAIN: Step = "stage (again)";
pub(crate) const PUBLISH: Step = "publish";
pub(crate) const READ_ONLY: Step = "publish read-only";
pub(crate) const WRITE: Step = "write 4MiB, fsync";
pub(crate) const READ: Step = "read 4MiB, compare";
/// A node call that does nothing, which measures the overhead of a call.
pub(crate) const PROBE: Step = "probe";
pub(crate) const NODE_EXPAND: Step = "expand, node";
pub(crate) const UNPUBLISH: Step = "unpublish";
pub(crate) const UNSTAGE: Step = "unstage";

/// Maximum number of kinds of volumes for which the screen shows bars, which compare Belay's times
/// with the times of direct system calls.
const BARS_KINDS_MAX: usize = 2;

/// The kinds of volumes, in the order in which the demo uses them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Kind {
    /// A filesystem, ext4
    Ext4,
    /// A filesystem, xfs
    Xfs,
    /// A filesystem, btrfs
    Btrfs,
    /// A raw block device
    Block,
}

impl Kind {
    /// Returns the filesystem type, or `block`.
    pub(crate) fn name(self) -> &'static str {
        ["ext4", "xfs", "btrfs", "block"][self as usize]
    }

    pub(crate) fn is_block(self) -> bool {
        self == Self::Block
    }
}

/// The side whose time was measured: Belay, or the kernel by direct system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Belay,
    Kernel,
}

/// The contents of the demo's screen.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) rounds: u32,
    /// The kinds of volumes, in the order of the demo.
    pub(crate) kinds: Vec<Kind>,
    times: BTreeMap<(Kind, Step, Side), Vec<Duration>>,
    /// Whether this machine cannot grow a mounted ext4, because CAP_SYS_RESOURCE is missing.
    pub(crate) cannot_grow_ext4: bool,
    /// The lines with facts on the screen, each with the name of its section.
    facts: Vec<(&'static str, String)>,
    /// The number of filesystem volumes that were blank when they were staged, each of which needs
    /// one mkfs.
    pub(crate) blank_stages: u32,
}

impl Report {
    pub(crate) fn new(rounds: u32, kinds: &[Kind]) -> Self {
        Self {
            rounds,
            kinds: kinds.to_vec(),
            ..Self::default()
        }
    }

    pub(crate) fn add(&mut self, kind: Kind, step: Step, side: Side, took: Duration) {
        self.times.entry((kind, step, side)).or_default().push(took);
    }

    /// Returns a percentile of the times of a step (nearest rank): the smallest time that at least
    /// 1/`part` of the times do not exceed. The result is always one of the measured times. Returns
    /// `None` if the step was never measured. benches/BUDGET.md compares the 25th percentile.
    pub(crate) fn rank(&self, kind: Kind, step: Step, side: Side, part: usize) -> Option<Duration> {
        let mut sorted = self.times.get(&(kind, step, side))?.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len().checked_sub(1)? / part).copied()
    }

    /// Returns the kinds of volumes for which the screen shows bars. A raw device has no bars:
    /// NodeStageVolume makes only ioctls for it, which are not measured separately.
    pub(crate) fn kinds_with_bars(&self) -> impl Iterator<Item = Kind> {
        let filesystems = self.kinds.iter().copied().filter(|kind| !kind.is_block());
        filesystems.take(BARS_KINDS_MAX)
    }

    /// Adds a line to a section of the screen.
    pub(crate) fn fact(&mut self, topic: &'static str, text: &str) {
        self.facts.push((topic, text.to_owned()));
    }

    /// Returns the lines of a section so far.
    pub(crate) fn facts(&self, topic: &str) -> Vec<String> {
        let of_topic = self.facts.iter().filter(|(of, _)| *of == topic);
        of_topic.map(|(_, text)| text.clone()).collect()
    }
}

/// Formats a time in a suitable unit.
pub(crate) fn show(time: Duration) -> String {
    let us = time.as_micros();
    match us {
        // Show enough digits for users to compute the displayed ratios by hand.
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
            let mut report = Report::default();
            for took in us(times) {
                report.add(Kind::Xfs, "stats", Side::Belay, took);
            }
            let median = report.rank(Kind::Xfs, "stats", Side::Belay, 2);
            assert_eq!(median, expected.map(Duration::from_micros), "{times:?}");
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
    fn belay_and_kernel_are_kept_apart() {
        let mut report = Report::new(1, &[]);
        report.add(Kind::Xfs, "stats", Side::Belay, Duration::from_micros(9));
        let p25 = |kind, side| report.rank(kind, "stats", side, 4);
        let expected = Some(Duration::from_micros(9));
        assert_eq!(p25(Kind::Xfs, Side::Belay), expected);
        assert_eq!(p25(Kind::Xfs, Side::Kernel), None);
        assert_eq!(p25(Kind::Ext4, Side::Belay), None);
    }
}
