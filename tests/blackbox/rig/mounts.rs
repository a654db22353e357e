//! The mounts of a namespace, and stacked mounts.

use std::path::Path;

use belay_bed::mounts;
pub(crate) use belay_bed::mounts::Mount;

/// Returns the mounts of a process, like [`mounts::mounts_of`]; a killed process has none.
pub(crate) fn mounts_of(pid: &str) -> Vec<Mount> {
    mounts::mounts_of(pid).unwrap_or_default()
}

/// Returns the mounts that are stacked on another mount at the same mount point. The parent shows
/// this: the table is read in pieces, so a removed mount and its successor may both be in it.
pub(crate) fn stacked(mounts: &[Mount], beneath: &Path) -> Vec<Mount> {
    let lies_upon = |upper: &Mount, lower: &Mount| {
        upper.parent == lower.id && upper.point == lower.point && upper.id != lower.id
    };
    let is_stacked = |upper: &&Mount| {
        upper.point.starts_with(beneath) && mounts.iter().any(|lower| lies_upon(upper, lower))
    };
    mounts.iter().filter(is_stacked).cloned().collect()
}
