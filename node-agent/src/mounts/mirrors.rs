//! Detects mirrors. A mirror is a copy of a mount that mount propagation has created, and that the
//! kernel unmounts together with its original.
//!
//! A bind mount joins the peer group of its source as well, for example the target path of a driver
//! that binds the staged mount with mount(2). The kernel does not unmount a bind mount together
//! with its source. Only a mirror has the same path as its original, relative to a peer of the
//! original's parent mount.

use std::path::{Path, PathBuf};

use super::without_links;
use crate::kernel::{Cause, Kernel, MountEntry, Result, Stat};

/// Whether the mount at `path` is also visible at a path of `except`, or is a mirror of a mount at
/// such a path. Reads the mount table if the mount is in the peer group of a mount at `except`.
///
/// # Errors
/// Returns an error if a path cannot be inspected, or the table cannot be read.
pub(super) fn mirrors<K: Kernel>(
    kernel: &K,
    path: &Path,
    stat: &Stat,
    except: &[&Path],
) -> Result<bool> {
    for known in except {
        let known_stat = match kernel.look(known) {
            // Skip a filesystem that has shut itself down, because it cannot be inspected.
            Err(error) if error.cause() == Cause::Io => continue,
            found => found?.filter(|known| known.mount_root),
        };
        let Some(known_stat) = known_stat else {
            continue;
        };
        if known_stat.mount_id != 0 && known_stat.mount_id == stat.mount_id {
            return Ok(true);
        }
        let group = |path| Ok(kernel.statmount(path)?.map_or(0, |facts| facts.peer_group));
        let known_group = group(known)?;
        if known_group != 0
            && known_group == group(path)?
            && are_at_one_place(kernel, path, known, known_group)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a mount at path `one` is a mirror of a mount at path `other`; both mounts are in the
/// peer group `group`.
fn are_at_one_place<K: Kernel>(kernel: &K, one: &Path, other: &Path, group: u64) -> Result<bool> {
    let table = kernel.mounts()?;
    // The mount table contains paths without symlinks.
    let points = [without_links(kernel, one)?, without_links(kernel, other)?];
    let [ones, others] = points.each_ref().map(|point| {
        let lines = table.iter();
        lines.filter(move |line| line.point == *point && line.peer_group == group)
    });
    Ok(ones
        .into_iter()
        .any(|one| others.clone().any(|other| is_mirror(&table, one, other))))
}

/// Whether two lines of the mount table are the same mount, or mount propagation has created one of
/// the two mounts as a copy of the other.
pub(super) fn is_mirror(table: &[MountEntry], one: &MountEntry, other: &MountEntry) -> bool {
    let is_at_same_place = || place(table, one).is_some_and(|at| Some(at) == place(table, other));
    one.id == other.id
        || one.peer_group != 0 && one.peer_group == other.peer_group && is_at_same_place()
}

/// Returns the peer group of the parent mount, and the path of the mount point in the parent's
/// filesystem. Returns `None` if the parent mount does not propagate mounts.
fn place(table: &[MountEntry], line: &MountEntry) -> Option<(u64, PathBuf)> {
    let below = table.iter().find(|below| below.id == line.parent)?;
    let path = below.root.join(line.point.strip_prefix(&below.point).ok()?);
    (below.peer_group != 0).then_some((below.peer_group, path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Dev;

    fn line(ids: [u64; 2], root: &str, point: &str, peer_group: u64) -> MountEntry {
        MountEntry {
            id: ids[0],
            parent: ids[1],
            dev: Dev { major: 7, minor: 0 },
            root: root.into(),
            point: point.into(),
            fs_type: "ext4".to_owned(),
            source: "/dev/loop0".into(),
            peer_group,
        }
    }

    #[test]
    fn a_mirror_is_a_peer_at_the_same_place_of_a_peer() {
        let table = [
            line([1, 0], "/", "/", 1),
            line([2, 1], "/kubelet", "/data", 1),
            line([3, 1], "/kubelet", "/private", 0),
            line([10, 1], "/", "/kubelet/staging", 2),
            line([11, 2], "/", "/data/staging", 2),
            // Bind mounts of the staged mount; one of these has the same name.
            line([12, 1], "/", "/kubelet/target", 2),
            line([13, 2], "/", "/data/target", 2),
            line([14, 3], "/", "/private/staging", 2),
            line([15, 1], "/", "/elsewhere/staging", 2),
            // Another mount on top of the staged mount, which propagation has copied as well.
            line([16, 10], "/", "/kubelet/staging", 3),
            line([17, 11], "/", "/data/staging", 3),
            // A private mount, and a mount whose parent is not in the mount table.
            line([18, 1], "/", "/kubelet/staging", 0),
            line([19, 99], "/", "/kubelet/staging", 2),
        ];
        let mirrors_of = |id: u64| {
            let of = table.iter().find(|line| line.id == id).unwrap();
            let all = table.iter().filter(|line| is_mirror(&table, line, of));
            all.map(|line| line.id).collect::<Vec<_>>()
        };
        for (id, mirrors) in [
            (10, &[10, 11][..]),
            (12, &[12, 13]),
            (14, &[14]),
            (15, &[15]),
            (16, &[16, 17]),
            (18, &[18]),
            (19, &[19]),
        ] {
            assert_eq!(mirrors_of(id), mirrors, "{id}");
        }
    }
}
