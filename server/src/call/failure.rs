//! The failure of an operation: its kind, and the certainty about the state that the operation
//! leaves. This module must not depend on gRPC codes: only [`super::code`] converts failures to
//! codes.

use super::Rpc;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// Maximum length of a message that is sent to another process, in bytes. Escaping for JSON makes a
/// message at most six times as long.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// The kind of a failure, in terms of storage. The kind alone does not determine the caller's
/// reaction, which also depends on the call and on the [`Certainty`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// The request is invalid, and can never succeed without a change.
    Invalid,
    /// The volume, node, snapshot or path does not exist.
    NotFound,
    /// The object exists already, but differs from the request.
    Incompatible,
    /// Another operation on the same object is running.
    Busy,
    /// The object is not in the state that this call needs, e.g. it is in use elsewhere.
    Precondition,
    /// The requested size or offset is not possible.
    Range,
    /// A quota, a limit or a pool is exhausted.
    Quota,
    /// A dependency of this driver does not respond.
    Unreachable,
    /// The driver does not support the request.
    Unsupported,
    /// The operation took too long.
    Timeout,
    /// The page token was not issued by this driver, or has expired.
    BadToken,
    /// The storage does not accept the driver's credentials.
    Unauthenticated,
    /// The storage accepts the driver's credentials, but not for this operation.
    Denied,
    /// The operating system refused a call that should have worked.
    System,
    /// An internal error.
    Bug,
}

impl Kind {
    /// All kinds of failures.
    pub const ALL: &[Kind] = &[
        Kind::Invalid,
        Kind::NotFound,
        Kind::Incompatible,
        Kind::Busy,
        Kind::Precondition,
        Kind::Range,
        Kind::Quota,
        Kind::Unreachable,
        Kind::Unsupported,
        Kind::Timeout,
        Kind::BadToken,
        Kind::Unauthenticated,
        Kind::Denied,
        Kind::System,
        Kind::Bug,
    ];
}

/// The certainty about the state that a failed operation leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Certainty {
    /// Nothing was changed.
    NothingHappened,
    /// All changes were undone.
    RolledBack,
    /// Some changes may be done or still in progress; only a retry of the same call can find out.
    MayBeRunning,
}

impl Certainty {
    /// All values of [`Certainty`].
    pub const ALL: &[Certainty] = &[
        Certainty::NothingHappened,
        Certainty::RolledBack,
        Certainty::MayBeRunning,
    ];
}

/// A failed operation. The message is a lowercase fragment that names the field, path or errno, and
/// the remedy. The message is shown to users, and never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind of the failure.
    pub kind: Kind,
    /// The certainty about the state.
    pub certainty: Certainty,
    /// The message for users.
    #[serde(serialize_with = "shorten")]
    pub message: String,
}

/// Constructors of failures. All constructors set [`Certainty::NothingHappened`].
impl Failure {
    /// Creates a failure of this kind for an operation that has changed nothing.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            certainty: Certainty::NothingHappened,
            message: message.into(),
        }
    }

    /// Creates a [`Kind::Invalid`] failure, for a request that can never succeed. `field` is the
    /// protocol's name of the invalid field.
    pub fn invalid(field: &str, why: impl fmt::Display) -> Self {
        Self::new(Kind::Invalid, format!("{field}: {why}"))
    }

    /// Creates a [`Kind::NotFound`] failure.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// Creates a [`Kind::Incompatible`] failure.
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self::new(Kind::Incompatible, message)
    }

    /// Creates a [`Kind::Busy`] failure.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(Kind::Busy, message)
    }

    /// Creates a [`Kind::Precondition`] failure.
    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(Kind::Precondition, message)
    }

    /// Creates a [`Kind::Range`] failure.
    pub fn range(message: impl Into<String>) -> Self {
        Self::new(Kind::Range, message)
    }

    /// Creates a [`Kind::Quota`] failure.
    pub fn quota(message: impl Into<String>) -> Self {
        Self::new(Kind::Quota, message)
    }

    /// Creates a [`Kind::Unsupported`] failure.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// Creates a [`Kind::Timeout`] failure.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(Kind::Timeout, message)
    }

    /// Creates a [`Kind::Bug`] failure.
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(Kind::Bug, message)
    }

    /// Creates a [`Kind::Bug`] failure for a call that panicked. If `rpc` changes state, the
    /// failure has [`Certainty::MayBeRunning`].
    pub(crate) fn panicked(rpc: Rpc) -> Self {
        let failure = Self::bug(format!("{} panicked; please report the log", rpc.name()));
        if rpc.changes_state() {
            failure.may_be_running()
        } else {
            failure
        }
    }

    /// Returns the failure with [`Certainty::NothingHappened`], for a call that only reads.
    #[must_use]
    pub fn nothing_happened(self) -> Self {
        Self {
            certainty: Certainty::NothingHappened,
            ..self
        }
    }

    /// Returns the failure with [`Certainty::RolledBack`].
    #[must_use]
    pub fn rolled_back(self) -> Self {
        Self {
            certainty: Certainty::RolledBack,
            ..self
        }
    }

    /// Returns the failure with [`Certainty::MayBeRunning`].
    #[must_use]
    pub fn may_be_running(self) -> Self {
        Self {
            certainty: Certainty::MayBeRunning,
            ..self
        }
    }
}

/// Returns the text, or only its start and end if the text is longer than `bytes_max`. Lines that
/// are sent between processes have a maximum length, but users can choose long names.
#[must_use]
pub fn shortened(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let half = bytes_max / 2;
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    let begin = (0..=half).rfind(is_boundary).unwrap_or_default();
    let end = (text.len() - half..).find(is_boundary).unwrap_or_default();
    format!("{}...{}", &text[..begin], &text[end..])
}

fn shorten<S: Serializer>(message: &str, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&shortened(message, MESSAGE_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_field_is_named_first() {
        let failure = Failure::invalid("volume_id", "must not be empty");
        assert_eq!(failure.to_string(), "volume_id: must not be empty");
        assert_eq!(failure.kind, Kind::Invalid);
        assert_eq!(failure.certainty, Certainty::NothingHappened);
    }

    #[test]
    fn certainty_changes_and_the_rest_stays() {
        let failure = Failure::timeout("no disk with serial abc").may_be_running();
        assert_eq!(failure.certainty, Certainty::MayBeRunning);
        let failure = failure.rolled_back();
        assert_eq!(failure.certainty, Certainty::RolledBack);
        assert_eq!(failure.kind, Kind::Timeout);
        assert_eq!(failure.message, "no disk with serial abc");
    }

    #[test]
    fn each_constructor_makes_its_kind_and_begins_with_nothing_happened() {
        use Kind::*;
        for (failure, kind) in [
            (Failure::not_found(""), NotFound),
            (Failure::incompatible(""), Incompatible),
            (Failure::busy(""), Busy),
            (Failure::precondition(""), Precondition),
            (Failure::range(""), Range),
            (Failure::quota(""), Quota),
            (Failure::unsupported(""), Unsupported),
            (Failure::timeout(""), Timeout),
            (Failure::bug(""), Bug),
        ] {
            assert_eq!(failure.kind, kind);
            assert_eq!(failure.certainty, Certainty::NothingHappened);
        }
    }
}
