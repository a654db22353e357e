//! The mounts of a namespace, as proc_pid_mountinfo(5) lists them.

use std::fs;
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    id: u64,
    parent: u64,
    /// Where it is.
    pub(crate) point: PathBuf,
    /// Its line in the table, for people.
    pub(crate) line: String,
}

/// Every mount in the namespace of that process (`self`, or its id), in the order in which they
/// were made. Blanks in a path, which the kernel writes as `\040`, are not undone: no path of a
/// test has any.
pub(crate) fn mounts_of(pid: &str) -> Vec<Mount> {
    // A process that was killed has no table any more.
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    table.lines().filter_map(parse).collect()
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

fn parse(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ');
    Some(Mount {
        id: fields.next()?.parse().ok()?,
        parent: fields.next()?.parse().ok()?,
        point: PathBuf::from(fields.nth(2)?),
        line: line.to_owned(),
    })
}
