//! The mounts of a namespace, and which of them lie upon each other.

use std::path::Path;

use belay_bed::mounts;
pub(crate) use belay_bed::mounts::Mount;

/// [`mounts::mounts_of`] that process; one that was killed has none any more.
pub(crate) fn mounts_of(pid: &str) -> Vec<Mount> {
    mounts::mounts_of(pid).unwrap_or_default()
}

/// Those that lie upon another one at the very same place. The parent tells it: the table is read
/// piece by piece, so that a mount that is gone by now and its successor may both be in it.
pub(crate) fn stacked(mounts: &[Mount], beneath: &Path) -> Vec<Mount> {
    let lies_upon = |upper: &Mount, lower: &Mount| {
        upper.parent == lower.id && upper.point == lower.point && upper.id != lower.id
    };
    let is_stacked = |upper: &&Mount| {
        upper.point.starts_with(beneath) && mounts.iter().any(|lower| lies_upon(upper, lower))
    };
    mounts.iter().filter(is_stacked).cloned().collect()
}
