//! The errors of belayctl, and their exit codes. Knows gRPC codes by name.

use std::io;
use std::process::ExitCode;

use belay_proto::code::describe;
use belay_proto::dial::DialError;

/// Exit code of bad usage (EX_USAGE of sysexits.h).
pub(crate) const USAGE: u8 = 64;

/// What went wrong; the text is shown to the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line is invalid.
    #[error("{0}")]
    Usage(String),
    /// There is no connection to the driver.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The driver answered with an error.
    #[error("{}", describe(.0))]
    Status(Box<tonic::Status>),
    /// The response lacks a part that the specification requires.
    #[error("the driver's answer {0}")]
    Answer(&'static str),
    /// The driver did not answer.
    #[error("no answer within {seconds} s; use --timeout to wait longer")]
    NoAnswer {
        /// The timeout.
        seconds: u64,
    },
    /// Our own input or output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl Failure {
    /// 64 for bad usage, else 1.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(USAGE),
            _ => ExitCode::FAILURE,
        }
    }

    /// The reader of our output has exited (`belayctl ... | head -1`): not an error.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_usage_exits_64() {
        assert_eq!(
            Failure::Usage("no".to_owned()).exit_code(),
            ExitCode::from(64)
        );
    }

    #[test]
    fn only_a_closed_pipe_is_ignored() {
        assert!(Failure::Io(io::ErrorKind::BrokenPipe.into()).is_closed_pipe());
        assert!(!Failure::Io(io::ErrorKind::PermissionDenied.into()).is_closed_pipe());
    }
}
