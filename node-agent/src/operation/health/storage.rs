//! `NodeGetStorageHealth` of the driver `local`: the health of the directory with the volumes'
//! files, and of its filesystem.

use std::path::Path;

use belay_contract::drivers::local::reserve_bytes;
use belay_contract::reason::storage;
use belay_server::call::Failure;
use belay_server::health::{Condition, StorageSeverity};
use belay_server::request::VolumeId;
use belay_server::size::Rounded;

use super::super::pending::pending;
use crate::kernel::{Cause, Kernel, MountAttrs, MountFacts, Usage};
use crate::operation::Context;

/// Minimum number of volumes with hung operations before the storage is reported unhealthy. A
/// single hung volume may have a separate cause, but several volumes share the same disk.
const HUNG_MIN: usize = 2;

/// A health reason of the storage behind all volumes.
pub(crate) type StorageCondition = Condition<StorageSeverity>;

/// Returns the health of the storage behind all volumes of a disk. May block on the disk.
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn storage_health<K: Kernel>(
    cx: &Context<'_, K>,
    disk: usize,
) -> Result<Vec<StorageCondition>, Failure> {
    let (kernel, mut conditions) = (&cx.kernel, Vec::new());
    // Volumes that are disks have no common storage that this node could inspect.
    let Some(dirs) = cx.folders() else {
        return Ok(conditions);
    };
    let dir = match dirs.dir(disk) {
        Ok(dir) => dir,
        // The node does not have the disk.
        Err(_) if dirs.is_absent(disk) => return Ok(conditions),
        Err(closed) => {
            conditions.push(Condition::new(storage::STORAGE_UNREADABLE, closed.message));
            return Ok(conditions);
        }
    };
    let path = dir.path();
    let looks = kernel.look(path).and_then(|named| {
        let held = kernel.stat(dir.fd())?;
        Ok((named, held))
    });
    let (named, held) = match looks {
        Err(error) if error.cause() == Cause::Io => {
            conditions.push(Condition::new(
                storage::STORAGE_UNREADABLE,
                format!(
                    "{error}: the disk fails, or its filesystem has shut itself down; see the \
                     kernel's log, repair it, mount it again, and restart belay-node"
                ),
            ));
            return Ok(conditions);
        }
        looks => looks?,
    };
    match named {
        None => conditions.push(Condition::new(
            storage::STORAGE_MISSING,
            format!(
                "{} does not exist; mount the filesystem that contains it, and restart belay-node",
                path.display()
            ),
        )),
        Some(named) if !named.is_same_root(&held) => conditions.push(Condition::new(
            storage::STORAGE_REPLACED,
            format!(
                "the directory at {} is not the one that belay-node opened at its start: \
                 something was mounted over it, unmounted or moved; undo \
                 that and restart belay-node",
                path.display()
            ),
        )),
        Some(named) => {
            let facts = match kernel.statmount_of(named.mount_id)? {
                Some(facts) => Some(facts),
                None => kernel.statmount(path)?,
            };
            conditions.extend(facts.and_then(|facts| stopped(&facts, path)));
            conditions.extend(full(&kernel.statfs(path)?, path));
        }
    }
    let pending = pending(cx, dir)?.into_iter();
    conditions.extend(pending.map(|(volume, path)| unstage_pending(&volume, &path)));
    Ok(conditions)
}

/// Returns the condition of a volume that is being deleted but is still mounted. The agent does not
/// unmount the volume, because a pod may use the raw device at its target path; the operator must
/// decide.
fn unstage_pending(volume: &VolumeId, path: &Path) -> StorageCondition {
    let path = path.display();
    Condition::new(
        storage::UNSTAGE_PENDING,
        format!(
            "volume {volume}: it is being deleted, but {path} is still mounted: if no pod on \
             this node uses it, a killed kubelet left it mounted; then run `umount {path}`"
        ),
    )
}

/// Returns the condition that is reported if the health check of a disk with this directory hangs.
pub(crate) fn storage_hangs(dir: &Path, why: &str) -> StorageCondition {
    let dir = dir.display();
    Condition::new(
        storage::STORAGE_HANGS,
        format!(
            "--loop-dir {dir} does not answer: {why}; see the kernel's log, and repair its disk"
        ),
    )
}

/// Returns the condition that is reported if operations hang on this number of volumes; `None` for
/// fewer than [`HUNG_MIN`] volumes.
pub(crate) fn volumes_hang(volumes: usize) -> Option<StorageCondition> {
    (volumes >= HUNG_MIN).then(|| {
        let message = format!(
            "operations on {volumes} volumes hang; see the kernel's log for hung tasks and I/O \
             errors, and repair the disk that it names"
        );
        Condition::new(storage::OPERATIONS_HUNG, message)
    })
}

fn stopped(facts: &MountFacts, path: &Path) -> Option<StorageCondition> {
    let (fs_type, path) = (&facts.fs_type, path.display());
    if facts.shut_down {
        let message = format!(
            "the {fs_type} of {path} was shut down; mount it again, and restart belay-node"
        );
        return Some(Condition::new(storage::STORAGE_UNREADABLE, message));
    }
    let is_read_only = facts.superblock_read_only || facts.attrs.contains(MountAttrs::READ_ONLY);
    is_read_only.then(|| {
        let message = format!(
            "the {fs_type} of {path} is read-only: no volume can be written; see the kernel's \
             log, check it, and mount it for writing"
        );
        Condition::new(storage::STORAGE_READ_ONLY, message)
    })
}

/// Returns the number of free bytes, and the number of bytes that should be free. Includes the
/// blocks that the filesystem reserves for root in the free bytes, because loop devices write as
/// root.
pub(super) fn room(usage: &Usage) -> (u64, u64) {
    let free = usage.total_bytes.saturating_sub(usage.used_bytes);
    (free, reserve_bytes(usage.total_bytes))
}

fn full(usage: &Usage, path: &Path) -> Option<StorageCondition> {
    let (free, reserve) = room(usage);
    (free < reserve).then(|| {
        let message = format!(
            "{} has {} of {} left, and should have {}: volumes are sparse files, and writes to \
             them fail with ENOSPC or EIO on a full filesystem; delete some volumes or snapshots, \
             or enlarge the filesystem",
            path.display(),
            Rounded(free),
            Rounded(usage.total_bytes),
            Rounded(reserve)
        );
        Condition::new(storage::STORAGE_NEARLY_FULL, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(total_bytes: u64, used_bytes: u64) -> Usage {
        Usage {
            total_bytes,
            used_bytes,
            // Volumes may use the space that the filesystem reserves for root.
            available_bytes: 0,
            total_inodes: 0,
            used_inodes: 0,
            free_inodes: 0,
        }
    }

    #[test]
    fn room_is_short_below_a_twentieth_or_ten_gibibytes() {
        const GIB: u64 = 1 << 30;
        let is_short = |total, used| full(&usage(total, used), Path::new("/volumes")).is_some();
        assert!(!is_short(100 * GIB, 95 * GIB));
        assert!(is_short(100 * GIB, 95 * GIB + 1));
        assert!(!is_short(1000 * GIB, 990 * GIB));
        assert!(is_short(1000 * GIB, 990 * GIB + 1));
        let full = full(&usage(101 * GIB, 96 * GIB), Path::new("/volumes")).unwrap();
        let sizes = "has 5 GiB of 101 GiB left, and should have 5.0 GiB:";
        assert!(full.message.contains(sizes), "{full:?}");
    }

    #[test]
    fn one_hung_volume_is_not_the_fault_of_the_storage() {
        assert_eq!(volumes_hang(1), None);
        let hung = volumes_hang(2).unwrap();
        assert_eq!(hung.reason, storage::OPERATIONS_HUNG);
        assert!(hung.message.starts_with("operations on 2 volumes hang"));
    }
}
