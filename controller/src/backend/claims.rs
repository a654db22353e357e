//! Marks of volumes and snapshots, for storage that accepts a name twice: the attempt that created
//! one, and whether it is *the* one of its name. Knows no rules; those are in `operation/engine`.

use super::Answer;
use belay_server::request::{Secrets, VolumeId};
use std::fmt;

/// A backend that accepts a name twice, and stores marks with its volumes.
pub trait Claims: Send + Sync {
    /// Claims a volume as the one of its name. The mark contains the volume's ID, so that a copy of
    /// it is recognised. Fails with [`belay_server::call::Kind::NotFound`] if there is no such
    /// volume. Any controller may claim any volume; a repeated claim changes nothing.
    fn claim(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()>;
}

/// The marks of a volume or a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// None of ours: names are unique, or another program created it.
    None,
    /// Created by that attempt, and not claimed; where names are unique: not usable since.
    Open(Attempt),
    /// Claimed.
    Claimed,
    /// It has the claim of another one: the storage copied the marks with the data.
    Copied,
}

/// One attempt to create a volume or a snapshot: the process of the controller, and a number in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt(String);

impl Attempt {
    /// An attempt of that process.
    #[must_use]
    pub fn new(process: u64, number: u64) -> Self {
        Self(format!("{process:016x}-{number}"))
    }

    /// The attempt that a mark in the storage names. Any text is accepted: it is only compared.
    #[must_use]
    pub fn of_mark(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text of the mark.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether both belong to one process.
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
