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
    /// The nonce of the volume's claim, in the record of its archive.
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
    /// The volume is being created, and no caller knows it. A copy is made in the trash of the
    /// claim, from where it gets its name.
    Creating,
    /// The volume exists.
    Ready,
    /// The directory of the volume is being removed or archived.
    Deleting,
    /// The directory of the volume was removed or archived, or its creation was withdrawn. Any call
    /// may remove the rest.
    Gone,
    /// The volume was deleted, and its directory was not.
    Retained,
    /// The archive of a volume, from before it is moved here.
    Archived,
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

    /// Describes the directory, for messages.
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

    /// Returns the state with this suffix.
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
