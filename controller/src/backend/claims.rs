//! Marks of volumes and snapshots, for storage that accepts several objects with one name. A mark
//! is a text that is stored with an object. A mark either contains the ID of the attempt that
//! created the object, or is a claim: a record that the name refers to this object and no other.
//! `operation/engine` contains the rules for marks.

use super::Answer;
use belay_server::request::{Secrets, VolumeId};
use std::fmt;

/// A backend whose storage accepts several volumes with one name, and stores a mark with each.
pub trait Claims: Send + Sync {
    /// Claims a volume: records that its name refers to this volume. The mark contains the volume's
    /// ID, so that a copy of the mark on another volume is recognised. Any controller may claim any
    /// volume, and a repeated claim changes nothing. Fails with
    /// [`belay_server::call::Kind::NotFound`] if the volume does not exist.
    fn claim(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()>;
}

/// The mark of a volume or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// The object has no mark of Belay: the storage enforces unique names, or another program
    /// created the object.
    None,
    /// The object is not claimed yet; the mark contains the ID of the attempt that created the
    /// object. If the storage enforces unique names, this value means that no read has reported the
    /// object as usable since its creation.
    Open(Attempt),
    /// The object is claimed: its name refers to this object and no other.
    Claimed,
    /// The object has the claim of another object, because the storage copied the mark along with
    /// the data.
    Copied,
}

/// One attempt to create a volume or a snapshot. An attempt is identified by the ID of the
/// controller process and a number that is unique within that process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt(String);

impl Attempt {
    /// Creates an attempt from the random ID of a controller process and a number within that
    /// process.
    #[must_use]
    pub fn new(process: u64, number: u64) -> Self {
        Self(format!("{process:016x}-{number}"))
    }

    /// Creates an attempt from the text of a mark. Any text is valid, since attempts are only
    /// compared.
    #[must_use]
    pub fn of_mark(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns the text that a mark stores for the attempt.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether both attempts belong to the same process.
    #[must_use]
    pub fn is_of_the_process_of(&self, other: &Self) -> bool {
        let process = |attempt: &Self| attempt.0.split_once('-').map(|(process, _)| process.len());
        match process(other) {
            Some(length) => self.0.get(..=length) == other.0.get(..=length),
            None => false,
        }
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_belongs_to_its_process_alone() {
        let own = Attempt::new(7, 1);
        for (other, same) in [
            (Attempt::new(7, 12), true),
            (Attempt::new(8, 1), false),
            (Attempt::of_mark(Attempt::new(7, 3).as_str()), true),
            (Attempt::of_mark("0000000000000007"), false),
            (Attempt::of_mark("x"), false),
            (Attempt::of_mark(""), false),
        ] {
            assert_eq!(other.is_of_the_process_of(&own), same, "{other}");
            assert_eq!(own.is_of_the_process_of(&other), same, "{other}");
        }
    }
}
