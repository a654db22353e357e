//! The calls of a volume's lifecycle on a node, and a trait for ways to make them.

use std::io;
use std::time::Duration;

/// One call of a volume's lifecycle, or a Probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Does nothing: the floor of every other call.
    Probe,
    /// Mounts the volume's filesystem, once per node.
    Stage,
    /// Mounts it at a pod's path.
    Publish,
    /// Reads its usage.
    Stats,
    /// Unmounts it from the pod's path.
    Unpublish,
    /// Unmounts it and frees its device.
    Unstage,
}

impl Call {
    /// In the order of a lifecycle.
    pub const ALL: [Call; 6] = [
        Call::Probe,
        Call::Stage,
        Call::Publish,
        Call::Stats,
        Call::Unpublish,
        Call::Unstage,
    ];

    /// The name in the specification.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Call::Probe => "probe",
            Call::Stage => "stage",
            Call::Publish => "publish",
            Call::Stats => "stats",
            Call::Unpublish => "unpublish",
            Call::Unstage => "unstage",
        }
    }

    /// The calls before this one, those that undo it before it is repeated, and those that bring
    /// the volume down afterwards.
    fn surroundings(self) -> (&'static [Call], &'static [Call], &'static [Call]) {
        use Call::{Publish, Stage, Stats, Unpublish, Unstage};
        match self {
            Call::Probe => (&[], &[], &[]),
            Call::Stage => (&[], &[Unstage], &[]),
            Call::Publish => (&[Stage], &[Unpublish], &[Unstage]),
            // The first one after a publish is slower.
            Call::Stats => (&[Stage, Publish, Stats], &[], &[Unpublish, Unstage]),
            Call::Unpublish => (&[Stage, Publish], &[Publish], &[Unpublish, Unstage]),
            Call::Unstage => (&[Stage], &[Stage], &[Unstage]),
        }
    }
}

/// One way to make the calls, on its own volume.
pub trait Side {
    /// Makes the call. Returns its time, without that of its preparation.
    ///
    /// # Errors
    /// If the call fails, which ends the run.
    fn run(&mut self, call: Call) -> io::Result<Duration>;
}

/// Makes one call `times` times, starting and ending with a volume that is not staged. Returns the
/// total time of these calls alone.
///
/// # Errors
/// Those of the side.
pub fn total(side: &mut impl Side, call: Call, times: u64) -> io::Result<Duration> {
    let (before, between, after) = call.surroundings();
    let mut all = |calls: &[Call]| calls.iter().try_for_each(|c| side.run(*c).map(|_| ()));
    all(before)?;
    let mut sum = Duration::ZERO;
    for _ in 0..times {
        sum += side.run(call)?;
        between.iter().try_for_each(|c| side.run(*c).map(|_| ()))?;
    }
    after.iter().try_for_each(|c| side.run(*c).map(|_| ()))?;
    Ok(sum)
}
