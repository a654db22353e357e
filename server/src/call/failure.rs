//! How an operation fails: the kind of failure, and how certain the state is that it leaves. Must
//! not know gRPC codes: only [`super::code`] converts.

use super::Rpc;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// The longest message that another process gets, in bytes. JSON makes at most six times as many.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// What went wrong, in terms of storage. It does not say what the caller must do: that also depends
/// on the call and on the [`Certainty`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// The request can never succeed as it is.
    Invalid,
    /// The volume, node, snapshot or path does not exist.
    NotFound,
    /// It exists already, but differs from the request.
    Incompatible,
    /// Another operation on the same object is running.
    Busy,
    /// The object is not in the state that this call needs, e.g. it is in use elsewhere.
    Precondition,
    /// The requested size or offset is not possible.
    Range,
    /// A quota, a limit or a pool is exhausted.
    Quota,
    /// A dependency of this driver does not answer.
    Unreachable,
    /// This driver cannot do that.
    Unsupported,
    /// It took too long.
    Timeout,
    /// A page token that this driver did not issue, or that has expired.
    BadToken,
    /// The storage does not accept the driver's credentials.
    Unauthenticated,
    /// The storage accepts the driver's credentials, but not for this.
    Denied,
    /// The operating system refused a call that should have worked.
    System,
    /// An internal error.
    Bug,
}

impl Kind {
    /// Every kind.
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

/// What is known about the state that a failed operation leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Certainty {
    /// Nothing was changed.
    NothingHappened,
    /// What was changed has been undone.
    RolledBack,
    /// Some changes may be done or still in progress; only a retry of the same call can find out.
    MayBeRunning,
}

impl Certainty {
    /// Every certainty.
    pub const ALL: &[Certainty] = &[
        Certainty::NothingHappened,
        Certainty::RolledBack,
        Certainty::MayBeRunning,
    ];
}

/// A failed operation. The message is a lowercase fragment that names the field, path or errno and
/// says what to do about it; it is shown to users and never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What went wrong.
    pub kind: Kind,
    /// What is known about the state.
    pub certainty: Certainty,
    /// For users.
    #[serde(serialize_with = "shorten")]
    pub message: String,
}

/// One constructor per kind; all start with [`Certainty::NothingHappened`].
impl Failure {
    /// A failure of this kind that changed nothing.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            certainty: Certainty::NothingHappened,
            message: message.into(),
        }
    }

    /// A request that can never succeed; `field` is its name in the protocol.
    pub fn invalid(field: &str, why: impl fmt::Display) -> Self {
        Self::new(Kind::Invalid, format!("{field}: {why}"))
    }

    /// See [`Kind::NotFound`].
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Kind::NotFound, message)
    }

    /// See [`Kind::Incompatible`].
    pub fn incompatible(message: impl Into<String>) -> Self {
        Self::new(Kind::Incompatible, message)
    }

    /// See [`Kind::Busy`].
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(Kind::Busy, message)
    }

    /// See [`Kind::Precondition`].
    pub fn precondition(message: impl Into<String>) -> Self {
        Self::new(Kind::Precondition, message)
    }

    /// See [`Kind::Range`].
    pub fn range(message: impl Into<String>) -> Self {
        Self::new(Kind::Range, message)
    }

    /// See [`Kind::Quota`].
    pub fn quota(message: impl Into<String>) -> Self {
        Self::new(Kind::Quota, message)
    }

    /// See [`Kind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// See [`Kind::Timeout`].
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(Kind::Timeout, message)
    }

    /// See [`Kind::Bug`].
    pub fn bug(message: impl Into<String>) -> Self {
        Self::new(Kind::Bug, message)
    }

    /// A panic in `rpc`: its progress is unknown.
    pub(crate) fn panicked(rpc: Rpc) -> Self {
        let failure = Self::bug(format!("{} panicked; please report the log", rpc.name()));
        if rpc.changes_state() {
            failure.may_be_running()
        } else {
            failure
        }
    }

    /// The same failure, of a call that only reads: nothing was changed.
    #[must_use]
    pub fn nothing_happened(self) -> Self {
        Self {
            certainty: Certainty::NothingHappened,
            ..self
        }
    }

    /// The same failure, with all changes undone.
    #[must_use]
    pub fn rolled_back(self) -> Self {
        Self {
            certainty: Certainty::RolledBack,
            ..self
        }
    }

    /// The same failure, with an unknown state.
    #[must_use]
    pub fn may_be_running(self) -> Self {
        Self {
            certainty: Certainty::MayBeRunning,
            ..self
        }
    }
}

/// Returns the text, or its first and last bytes: a line between processes is bounded, and tenants
/// choose names.
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
