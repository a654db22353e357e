//! Why belayctl ends without success, and with which exit code. Knows gRPC codes by name.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use belay_proto::code;

/// Exit code of bad usage (EX_USAGE of sysexits.h).
pub(crate) const USAGE: u8 = 64;

/// What went wrong; the text is all that the user sees.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line cannot be followed.
    #[error("{0}")]
    Usage(String),
    /// Nobody listens on the socket.
    #[error("{}: cannot connect: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What connect(2) said.
        source: io::Error,
    },
    /// Somebody listens, but does not speak HTTP/2.
    #[error("{}: connected, but no gRPC is spoken there: {message}", path.display())]
    NotGrpc {
        /// The socket.
        path: PathBuf,
        /// What the handshake said.
        message: String,
    },
    /// The driver answered with an error.
    #[error("{}", told(.0))]
    Status(Box<tonic::Status>),
    /// The answer says less than the specification demands.
    #[error("the driver's answer {0}")]
    Answer(&'static str),
    /// The driver did not answer.
    #[error("no answer within {seconds} s; --timeout waits longer")]
    NoAnswer {
        /// How long we waited.
        seconds: u64,
    },
    /// Our own reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The demo did not come to a good end; it has printed why.
    #[error("{0}")]
    Demo(String),
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

    /// The reader of our output went away (`belayctl ... | head -1`): no reason to complain.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Code and message of an answer.
pub(crate) fn told(status: &tonic::Status) -> String {
    match status.message() {
        "" => format!("{}, without a message", code::name(status.code())),
        message => format!("{}: {message}", code::name(status.code())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_printed_as_code_and_message() {
        let failure = Failure::from(tonic::Status::not_found("volume v-1 does not exist"));
        assert_eq!(failure.to_string(), "NOT_FOUND: volume v-1 does not exist");
        assert_eq!(failure.exit_code(), ExitCode::FAILURE);
        let silent = Failure::from(tonic::Status::unimplemented(""));
        assert_eq!(silent.to_string(), "UNIMPLEMENTED, without a message");
    }

    #[test]
    fn bad_usage_exits_64() {
        assert_eq!(
            Failure::Usage("no".to_owned()).exit_code(),
            ExitCode::from(64)
        );
    }

    #[test]
    fn only_a_closed_pipe_is_passed_over() {
        assert!(Failure::Io(io::ErrorKind::BrokenPipe.into()).is_closed_pipe());
        assert!(!Failure::Io(io::ErrorKind::PermissionDenied.into()).is_closed_pipe());
    }
}
