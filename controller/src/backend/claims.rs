//! Marks of volumes and snapshots, for storage that accepts several objects with one name. A mark
//! contains the attempt that created the object, or a claim, which records that the name refers to
//! this object. The rules for marks are in `operation/engine`.

use super::Answer;
use belay_server::request::{Secrets, VolumeId};
use std::fmt;

/// A backend that accepts several volumes with one name, and stores marks with them.
pub trait Claims: Send + Sync {
    /// Claims a volume as the one to which its name refers. The mark contains the volume's ID, so
    /// that a copy of the mark is recognised. Fails with [`belay_server::call::Kind::NotFound`] if
    /// the volume does not exist. Any controller may claim any volume; a repeated claim changes
    /// nothing.
    fn claim(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()>;
}

/// The marks of a volume or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// No mark of Belay: names are unique, or another program created the object.
    None,
    /// The attempt that created the object, which is not claimed; if names are unique, the object
    /// has not been usable since.
    Open(Attempt),
    /// The object is claimed.
    Claimed,
    /// The object has another object's claim, since the storage copied the marks with the data.
    Copied,
}

/// An attempt to create a volume or a snapshot: identifies the controller's process, and contains a
/// number that is unique in this process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt(String);

impl Attempt {
    /// Returns the attempt with this number of a process.
    #[must_use]
    pub fn new(process: u64, number: u64) -> Self {
        Self(format!("{process:016x}-{number}"))
    }

    /// Returns the attempt in a mark. Accepts any text, since attempts are only compared.
    #[must_use]
    pub fn of_mark(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Returns the text of the mark.
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
