//! The errors of a step. The caller knows the step.

use std::io;

use tonic::Status;

use belay_proto::code::describe;
use belay_proto::dial::DialError;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// A program returned an error.
    #[error("{rpc} answered {}", describe(.status))]
    Call {
        /// Name of the RPC.
        rpc: &'static str,
        /// The error.
        status: Box<Status>,
    },
    /// No connection, so no response.
    #[error("{rpc}: {failure}")]
    Dial {
        /// Name of the intended RPC.
        rpc: &'static str,
        /// Why there is no connection.
        failure: DialError,
    },
    /// The response was OK, but the kernel shows otherwise.
    #[error("{0}")]
    Untrue(String),
    /// A program exited unexpectedly.
    #[error("{0}")]
    Ended(String),
    /// The demo's own files, mounts or children failed.
    #[error("error in the demo itself: {0}")]
    Own(#[from] io::Error),
}

impl Trouble {
    /// A system call of the demo that failed, with its path or purpose.
    pub(crate) fn own(what: impl std::fmt::Display, error: impl Into<io::Error>) -> Self {
        Self::Own(io::Error::other(format!("{what}: {}", error.into())))
    }
}
