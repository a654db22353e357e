//! A claim: a file that records that a directory belongs to a volume, and the state of the volume.
//! Makes no system calls.

use super::super::id::OnDelete;
use super::layout::nonce;
use belay_server::call::Failure;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The immutable record of a volume in its claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The directory of the volume.
    pub(super) dir: String,
    /// The name in the request that created the volume.
    pub(super) name: String,
    pub(super) on_delete: OnDelete,
    /// The requested size, in bytes.
    pub(super) bytes: u64,
    /// The nonce of the archived volume's own claim. `None` unless the directory is an archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) archive_of: Option<String>,
    /// The source of a copy: the ID of a volume, or the ID of a snapshot after `snapshot `. `None`
    /// if the volume was created empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
}

/// The claim of a volume on its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) of: Record,
    /// Random hexadecimal digits that identify the claim.
    pub(super) nonce: String,
    pub(super) state: State,
}

/// The state of a claim, which is the suffix of its file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The volume is being created, and no caller knows the volume yet. A copy is written to the
    /// trash directory of the claim, and renamed to the directory of the volume when it is
    /// complete.
    Creating,
    /// The volume exists.
    Ready,
    /// The directory of the volume is being removed or archived.
    Deleting,
    /// The directory of the volume was removed or archived, or the creation of the volume was
    /// cancelled. Any call may remove the remaining files and the claim file.
    Gone,
    /// The volume was deleted, but its directory was kept.
    Retained,
    /// The directory is the archive of a volume. The claim is created before the volume is moved to
    /// the directory.
    Archived,
}

impl Claim {
    /// Creates a claim with a new nonce.
    ///
    /// # Errors
    /// Returns `System` if the kernel returns no random bits.
    pub(super) fn new(of: Record, state: State) -> Result<Self, Failure> {
        Ok(Self {
            of,
            nonce: nonce()?,
            state,
        })
    }

    /// Returns the name of the claim's file.
    pub(super) fn file(&self) -> String {
        format!("{}.{}", self.nonce, self.state.word())
    }

    /// Whether this is the claim of the archive of the volume with the claim `of`.
    pub(super) fn is_archive_of(&self, of: &Self) -> bool {
        self.of.archive_of.as_ref() == Some(&of.nonce)
    }

    /// Describes the directory and its volume, for messages.
    pub(super) fn describe(&self) -> impl fmt::Display {
        let what = match self.state {
            State::Retained => "was retained when its volume was deleted: that of",
            State::Archived => "is the archive of",
            _ => "is the directory of",
        };
        format!("{what} volume {:?}", self.of.name)
    }
}

impl State {
    const ALL: [Self; 6] = [
        Self::Creating,
        Self::Ready,
        Self::Deleting,
        Self::Gone,
        Self::Retained,
        Self::Archived,
    ];

    /// Returns the state with this suffix, or `None` if the suffix is unknown.
    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
            Self::Gone => "gone",
            Self::Retained => "retained",
            Self::Archived => "archived",
        }
    }
}
