//! A claim, and the names of its files. Makes no calls.

use super::super::id::OnDelete;
use super::layout::nonce;
use belay_server::call::Failure;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The record of a volume, which never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// The directory of the volume.
    pub(super) dir: String,
    /// The name of the volume.
    pub(super) name: String,
    pub(super) on_delete: OnDelete,
    /// The requested size, in bytes.
    pub(super) bytes: u64,
    /// The nonce of the volume's claim, in the record of an archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) archive_of: Option<String>,
    /// The ID of the copied volume, or of the snapshot after `snapshot `, in the record of a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<String>,
}

/// The claim of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) of: Record,
    /// A number that no other claim has.
    pub(super) nonce: String,
    pub(super) state: State,
}

/// The state of a claim, which is the suffix of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The volume is being created, and no caller knows it.
    Creating,
    /// A copy is being made in the trash of the claim, from where it gets its name. No caller knows
    /// it.
    Copying,
    /// A copy that was withdrawn is being removed. Any call may continue the removal.
    Dropping,
    /// The volume exists.
    Ready,
    /// The directory of the volume is being removed.
    Deleting,
    /// The directory of the volume is being archived.
    Archiving,
    /// The directory of the volume was removed or archived.
    Gone,
    /// The volume was deleted, and its directory was not.
    Retained,
    /// An archive is being moved here.
    Placing,
    /// The archive of a volume.
    Archived,
    /// An archive that a newer one replaces; its directory was moved away.
    Replaced,
}

impl Claim {
    /// Creates a claim with a new nonce.
    ///
    /// # Errors
    /// Returns an error if [`nonce`] does.
    pub(super) fn new(of: Record, state: State) -> Result<Self, Failure> {
        Ok(Self {
            of,
            nonce: nonce()?,
            state,
        })
    }

    /// Returns the name of its file.
    pub(super) fn file(&self) -> String {
        format!("{}.{}", self.nonce, self.state.word())
    }

    /// Whether this is the claim of the archive of the volume with the claim `of`.
    pub(super) fn is_archive_of(&self, of: &Self) -> bool {
        self.of.archive_of.as_ref() == Some(&of.nonce)
    }

    /// Whether this is the claim of a copy that no caller knows.
    pub(super) fn is_copy_in_progress(&self) -> bool {
        matches!(self.state, State::Copying | State::Dropping)
    }

    /// Describes the directory, for messages.
    pub(super) fn describe(&self) -> impl fmt::Display {
        let what = match self.state {
            State::Retained => "was retained when its volume was deleted: that of",
            State::Placing | State::Archived | State::Replaced => "is the archive of",
            _ => "is the directory of",
        };
        format!("{what} volume {:?}", self.of.name)
    }
}

impl State {
    const ALL: [Self; 11] = [
        Self::Creating,
        Self::Copying,
        Self::Dropping,
        Self::Ready,
        Self::Deleting,
        Self::Archiving,
        Self::Gone,
        Self::Retained,
        Self::Placing,
        Self::Archived,
        Self::Replaced,
    ];

    /// Returns the state with this suffix.
    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }

    /// Whether no caller knows the volume.
    pub(super) fn is_unknown(self) -> bool {
        matches!(self, Self::Creating | Self::Copying)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Copying => "copying",
            Self::Dropping => "dropping",
            Self::Ready => "ready",
            Self::Deleting => "deleting",
            Self::Archiving => "archiving",
            Self::Gone => "gone",
            Self::Retained => "retained",
            Self::Placing => "placing",
            Self::Archived => "archived",
            Self::Replaced => "replaced",
        }
    }
}
