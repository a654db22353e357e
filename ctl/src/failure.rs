//! The errors of belayctl, their messages and their exit codes.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitCode;

use belay_proto::code::describe;
use belay_proto::dial::DialError;

/// The exit code of a negative result, such as an unhealthy volume or a driver that is not ready.
pub(crate) const NO: u8 = 2;
/// The exit code of bad usage (EX_USAGE of sysexits.h).
pub(crate) const USAGE: u8 = 64;
/// The exit code if no driver responds on the socket in time (EX_UNAVAILABLE).
pub(crate) const UNAVAILABLE: u8 = 69;

/// An error of belayctl. The user sees the text of the error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line, or a file that it names, is invalid.
    #[error("{0}")]
    Usage(String),
    /// There is no connection to the driver.
    #[error("{}", unreachable(.0))]
    Dial(#[from] DialError),
    /// The driver returned an error.
    #[error("{}", describe(.0))]
    Status(Box<tonic::Status>),
    /// The driver does not serve the call.
    #[error("{}", describe(&.0.status))]
    Unserved(Box<Unserved>),
    /// The response lacks a part that the specification requires.
    #[error("the driver's answer {0}")]
    Answer(&'static str),
    /// The driver did not respond in time.
    #[error("no answer within {seconds} s; use --timeout to wait longer")]
    NoAnswer {
        /// The timeout, in seconds.
        seconds: u64,
    },
    /// A step of a command with several steps failed.
    #[error("{step}: {cause}{advice}")]
    Step {
        /// The name of the step's call.
        step: &'static str,
        /// The failure of the step.
        cause: Box<Self>,
        /// The remedy, preceded by `; `; empty if there is none.
        advice: String,
    },
    /// The driver has no such object, so the call did nothing.
    #[error("{0}")]
    Absent(String),
    /// A file or setting of this machine is not as required.
    #[error("{0}")]
    Machine(String),
    /// The command would be unsafe now, or could not be completed. The message has the reason and
    /// the remedy.
    #[error("{0}")]
    Refused(String),
    /// Reading or writing failed in belayctl itself, such as on standard output.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A call that the driver on a socket does not serve.
#[derive(Debug)]
pub(crate) struct Unserved {
    pub(crate) status: tonic::Status,
    pub(crate) socket: PathBuf,
    /// The service of the call, such as `controller`.
    pub(crate) service: &'static str,
}

/// Describes why a connection to a socket failed, and what to do.
fn unreachable(error: &DialError) -> String {
    let DialError::Connect { path, source } = error else {
        return format!("{error}; `belayctl ls` lists the sockets of this node");
    };
    let why = match fs::metadata(path) {
        Ok(found) if found.is_dir() => "is a directory; name the socket in it",
        Ok(found) if found.is_file() => "is a regular file; name the socket of a driver",
        _ => match source.kind() {
            ErrorKind::NotFound => {
                "does not exist; start the driver, or find its socket by `belayctl ls`"
            }
            ErrorKind::PermissionDenied => "Permission denied; run belayctl as root",
            ErrorKind::ConnectionRefused => {
                "no driver listens on it (connection refused); start it"
            }
            _ => return format!("{error}; `belayctl ls` lists the sockets of this node"),
        },
    };
    format!("{}: {why}", path.display())
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl Failure {
    /// Returns the exit code: 64 for bad usage, 69 if no driver responds, else 1.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(USAGE),
            Self::Dial(_) | Self::NoAnswer { .. } => ExitCode::from(UNAVAILABLE),
            Self::Step { cause, .. } => cause.exit_code(),
            _ => ExitCode::FAILURE,
        }
    }

    /// Returns the innermost failure: the cause of a failed step, or else the failure itself.
    pub(crate) fn cause_mut(&mut self) -> &mut Self {
        match self {
            Self::Step { cause, .. } => cause.cause_mut(),
            failure => failure,
        }
    }

    /// Whether the process that reads the output has exited (`belayctl ... | head -1`), which is
    /// not an error.
    pub(crate) fn is_closed_pipe(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_sysexits() {
        for (failure, code) in [
            (Failure::Usage("no".to_owned()), 64),
            (Failure::NoAnswer { seconds: 1 }, 69),
            (Failure::Answer("is empty"), 1),
        ] {
            let step = Failure::Step {
                step: "NodeStageVolume",
                cause: Box::new(failure),
                advice: String::new(),
            };
            assert_eq!(step.exit_code(), ExitCode::from(code));
        }
    }

    #[test]
    fn only_a_closed_pipe_is_ignored() {
        assert!(Failure::Io(io::ErrorKind::BrokenPipe.into()).is_closed_pipe());
        assert!(!Failure::Io(io::ErrorKind::PermissionDenied.into()).is_closed_pipe());
    }
}
