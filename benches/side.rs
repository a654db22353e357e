//! The calls of a volume's life on a node, and who can make them. Knows no way of making them.

use std::io;
use std::time::Duration;

/// One call of a volume's life, or beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Does nothing: the floor of every other call.
    Probe,
    /// The volume's filesystem gets mounted, once a node.
    Stage,
    /// It is shown at a pod's path.
    Publish,
    /// How full it is.
    Stats,
    /// It is taken away from the pod's path.
    Unpublish,
    /// It is unmounted, and its device freed.
    Unstage,
}

impl Call {
    /// In the order of a life.
    pub const ALL: [Call; 6] = [
        Call::Probe,
        Call::Stage,
        Call::Publish,
        Call::Stats,
        Call::Unpublish,
        Call::Unstage,
    ];

    /// The spec's verb.
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

    /// What a volume must have been through, what undoes this call before it is made again, and
    /// what brings the volume down afterwards.
    fn surroundings(self) -> (&'static [Call], &'static [Call], &'static [Call]) {
        use Call::{Publish, Stage, Unpublish, Unstage};
        match self {
            Call::Probe => (&[], &[], &[]),
            Call::Stage => (&[], &[Unstage], &[]),
            Call::Publish => (&[Stage], &[Unpublish], &[Unstage]),
            Call::Stats => (&[Stage, Publish], &[], &[Unpublish, Unstage]),
            Call::Unpublish => (&[Stage, Publish], &[Publish], &[Unpublish, Unstage]),
            Call::Unstage => (&[Stage], &[Stage], &[Unstage]),
        }
    }
}

/// One way to make the calls, on one volume of its own.
pub trait Side {
    /// Makes the call; how long it took, without what only makes it possible.
    ///
    /// # Errors
    /// When it fails, which ends the run.
    fn run(&mut self, call: Call) -> io::Result<Duration>;
}

/// Makes one call so many times, beginning and ending with a volume that is not staged; the time
/// of these calls alone, in sum.
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
