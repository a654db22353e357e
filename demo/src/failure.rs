//! The errors of the demo.

use std::io;

/// What went wrong; the text is shown to the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The demo cannot start, or has failed.
    #[error("{0}")]
    Demo(String),
    /// Our own input or output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Failure {
    /// The reader of our output has exited (`belay-demo | head -1`): not an error.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
