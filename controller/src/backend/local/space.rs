//! The bytes that may be provisioned. With overcommit 1 every provisioned byte can be written: the
//! sizes of all volumes and snapshots together never exceed the filesystem less foreign files and
//! its own metadata. Shared blocks count for each file: any of them may be rewritten.

use super::files::{Files, Room};
use super::ledger::Ledger;
use belay_server::call::Failure;
use std::collections::HashSet;
use std::str::FromStr;

/// How many times over the space may be provisioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overcommit {
    permille: u64,
}

/// Bounds of the factor: below, almost no volume fits; above, the limit is meaningless.
const FACTOR_MIN: f64 = 0.1;
const FACTOR_MAX: f64 = 1_000_000.0;

/// An invalid factor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("overcommit {0:?}: not a number from {FACTOR_MIN} to {FACTOR_MAX}, such as 1 or 2.5")]
pub struct OvercommitError(String);

impl Default for Overcommit {
    fn default() -> Self {
        Self { permille: 1000 }
    }
}

impl FromStr for Overcommit {
    type Err = OvercommitError;

    fn from_str(text: &str) -> Result<Self, OvercommitError> {
        let factor: f64 = text.parse().map_err(|_| OvercommitError(text.to_owned()))?;
        if !(FACTOR_MIN..=FACTOR_MAX).contains(&factor) {
            return Err(OvercommitError(text.to_owned()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the bounds above keep it positive and small"
        )]
        let permille = (factor * 1000.0).round() as u64;
        Ok(Self { permille })
    }
}

impl Overcommit {
    /// Maximum number of bytes of all volumes and snapshots together. Foreign space, which is used
    /// but not by their files, cannot be provisioned. Shared blocks seem to be used once per file,
    /// so they can hide foreign files; a dedicated filesystem has none.
    pub(super) fn ceiling(
        self,
        volumes: &Files,
        snapshots: &Files,
        ledger: &Ledger,
    ) -> Result<u64, Failure> {
        let room = volumes.room()?;
        let of_volumes = ours(volumes, &ledger.ids()?)?;
        let of_snapshots = ours(snapshots, &ledger.snapshot_ids()?)?;
        let ceiling = self.of(room, of_volumes.saturating_add(of_snapshots));
        metrics::gauge!("belay_controller_capacity_bytes").set(ceiling as f64);
        Ok(ceiling)
    }

    fn of(self, room: Room, ours: u64) -> u64 {
        let foreign = room.taken.saturating_sub(ours);
        let usable = u128::from(room.total.saturating_sub(foreign));
        let ceiling = usable * u128::from(self.permille) / 1000;
        u64::try_from(ceiling).unwrap_or(u64::MAX)
    }
}

/// Bytes allocated to files with these IDs. Stray files are foreign, whatever their names, and so,
/// for once, is a file that was created after the IDs were read.
pub(super) fn ours(files: &Files, ids: &HashSet<String>) -> Result<u64, Failure> {
    let mut ours = 0_u64;
    files.each(|name, allocated| {
        if ids.contains(name) {
            ours = ours.saturating_add(allocated);
        }
    })?;
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_are_not_promised_and_ours_do_not_count_twice() {
        let cases = [
            // total, taken, ours, factor -> ceiling
            ((1000, 0, 0, "1"), 1000),
            ((1000, 300, 0, "1"), 700),
            ((1000, 300, 300, "1"), 1000),
            ((1000, 300, 100, "1.0"), 800),
            ((1000, 300, 100, "2.5"), 2000),
            ((1000, 0, 0, "0.5"), 500),
            // Compressed or shared blocks: more seems allocated than is used.
            ((1000, 100, 400, "1"), 1000),
            ((u64::MAX, 0, 0, "1000"), u64::MAX),
        ];
        for ((total, taken, ours, factor), ceiling) in cases {
            let overcommit: Overcommit = factor.parse().unwrap();
            assert_eq!(
                overcommit.of(Room { total, taken }, ours),
                ceiling,
                "{factor}"
            );
        }
    }

    #[test]
    fn a_factor_that_is_no_sane_number_is_refused() {
        for text in [
            "",
            "0",
            "-1",
            "0.05",
            "0.0999",
            "1000000.5",
            "NaN",
            "inf",
            "1e9",
            "two",
        ] {
            assert!(text.parse::<Overcommit>().is_err(), "{text:?}");
        }
        assert_eq!("1".parse(), Ok(Overcommit::default()));
        for (text, permille) in [("0.1", 100), ("1000000", 1_000_000_000)] {
            assert_eq!(text.parse(), Ok(Overcommit { permille }), "{text}");
        }
    }
}
