//! Why the demo ends without success.

use std::io;

/// What went wrong; the text is all that the user sees.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// It cannot start, or did not come to a good end.
    #[error("{0}")]
    Demo(String),
    /// Our own reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Failure {
    /// The reader of our output went away (`belay-demo | head -1`): no reason to complain.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
