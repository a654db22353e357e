//! What can go wrong in the middle of the demo. Says what happened; the caller says at which step.

use std::io;

use tonic::Status;

use belay_proto::code::told;
use belay_proto::dial::DialError;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// A binary answered with an error.
    #[error("{rpc} answered {}", told(.status))]
    Call {
        /// Name of the RPC.
        rpc: &'static str,
        /// The answer.
        status: Box<Status>,
    },
    /// No connection, so no answer.
    #[error("{rpc}: {failure}")]
    Dial {
        /// Name of the RPC that was to be called.
        rpc: &'static str,
        /// Why there is no connection.
        failure: DialError,
    },
    /// The answer was OK, but what the kernel shows is something else.
    #[error("{0}")]
    Untrue(String),
    /// A binary ended in the middle.
    #[error("{0}")]
    Ended(String),
    /// The demo's own files, mounts or children failed.
    #[error("the demo's own doing: {0}")]
    Own(#[from] io::Error),
}

impl Trouble {
    /// A system call of the demo that failed, with its path or purpose.
    pub(crate) fn own(what: impl std::fmt::Display, error: impl Into<io::Error>) -> Self {
        Self::Own(io::Error::other(format!("{what}: {}", error.into())))
    }
}
