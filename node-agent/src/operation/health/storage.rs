//! `NodeGetStorageHealth` of `local`: the folder of the volumes' files and its filesystem.

use std::path::Path;

use belay_contract::reason::storage;
use belay_server::call::Failure;
use belay_server::health::{Complaint, StorageSeverity};
use belay_server::request::VolumeId;

use super::super::Node;
use super::super::context::operation;
use super::super::pending::pending;
use super::super::phase::{Operation, Progress};
use crate::kernel::{Cause, Kernel, MountAttrs, MountFacts, Usage};

/// One volume that hangs may be its own fault; more share a disk.
const HUNG_MIN: usize = 2;
/// Of what is free, this part should stay so: 5 %.
const RESERVE_PART: u64 = 20;
/// On large filesystems, this many bytes will do: 10 GiB.
const RESERVE_BYTES_MAX: u64 = 10 << 30;

/// One thing that is wrong with the storage.
pub(crate) type StorageComplaint = Complaint<StorageSeverity>;

/// What is wrong with the storage behind all volumes. May wait for a disk.
///
/// # Errors
/// What the kernel refused.
pub(crate) fn storage_health<K: Kernel>(
    node: &Node<K>,
    progress: &Progress,
) -> Result<Vec<StorageComplaint>, Failure> {
    operation(node, progress, Operation::StorageHealth, |cx| run(cx))
}

fn run<K: Kernel>(node: &Node<K>) -> Result<Vec<StorageComplaint>, Failure> {
    let mut complaints = Vec::new();
    // Disks have no storage in common that this node could see.
    let Some(dir) = node.transport.folder() else {
        return Ok(complaints);
    };
    let kernel = &node.kernel;
    let path = dir.path();
    let looks = kernel.look(path).and_then(|named| {
        let held = kernel.stat(dir.fd())?;
        Ok((named, held))
    });
    let (named, held) = match looks {
        Err(error) if error.cause() == Cause::Io => {
            complaints.push(Complaint::new(
                storage::STORAGE_UNREADABLE,
                format!(
                    "{error}: the disk fails, or its filesystem has shut itself down; see the \
                     kernel's log, mend it, mount it again, and restart belay-node"
                ),
            ));
            return Ok(complaints);
        }
        looks => looks?,
    };
    match named {
        None => complaints.push(Complaint::new(
            storage::STORAGE_MISSING,
            format!(
                "{} is not there; mount the filesystem that holds it, and restart belay-node",
                path.display()
            ),
        )),
        Some(named) if !named.is_same_root(&held) => complaints.push(Complaint::new(
            storage::STORAGE_REPLACED,
            format!(
                "{} is another folder than at the start: something was mounted over it, unmounted \
                 or moved; put that right and restart belay-node",
                path.display()
            ),
        )),
        Some(named) => {
            let facts = match kernel.statmount_of(named.mount_id)? {
                Some(facts) => Some(facts),
                None => kernel.statmount(path)?,
            };
            complaints.extend(facts.and_then(|facts| stopped(&facts, path)));
            complaints.extend(full(&kernel.statfs(path)?, path));
        }
    }
    let pending = pending(node)?.into_iter();
    complaints.extend(pending.map(|(volume, path)| detach_pending(&volume, &path)));
    Ok(complaints)
}

/// A raw device at its target is not told from one that a pod has: nobody but a person unmounts it.
fn detach_pending(volume: &VolumeId, path: &Path) -> StorageComplaint {
    let path = path.display();
    Complaint::new(
        storage::DETACH_PENDING,
        format!(
            "volume {volume} is to be detached and is still mounted at {path}: if no pod on this \
             node uses it, a kubelet that was killed has forgotten it; then run `umount {path}`"
        ),
    )
}

/// What is wrong with storage at which the look itself hangs.
pub(crate) fn storage_hangs(why: &str) -> StorageComplaint {
    Complaint::new(
        storage::STORAGE_HANGS,
        format!("--loop-dir does not answer: {why}; see the kernel's log, and mend its disk"),
    )
}

/// What is wrong with storage of which so many volumes have a hung operation.
pub(crate) fn volumes_hang(volumes: usize) -> Option<StorageComplaint> {
    (volumes >= HUNG_MIN).then(|| {
        let message = format!(
            "operations on {volumes} volumes do not come back; see the kernel's log for hung \
             tasks and I/O errors, and mend the disk of --loop-dir"
        );
        Complaint::new(storage::OPERATIONS_HUNG, message)
    })
}

fn stopped(facts: &MountFacts, path: &Path) -> Option<StorageComplaint> {
    let (fs_type, path) = (&facts.fs_type, path.display());
    if facts.shut_down {
        let message = format!(
            "the {fs_type} of {path} was shut down; mount it again, and restart belay-node"
        );
        return Some(Complaint::new(storage::STORAGE_UNREADABLE, message));
    }
    let is_read_only = facts.superblock_read_only || facts.attrs.contains(MountAttrs::READ_ONLY);
    is_read_only.then(|| {
        let message = format!(
            "the {fs_type} of {path} is read-only: no volume can be written; see the kernel's \
             log, check it, and mount it for writing"
        );
        Complaint::new(storage::STORAGE_READ_ONLY, message)
    })
}

fn full(usage: &Usage, path: &Path) -> Option<StorageComplaint> {
    let total = usage.total_bytes;
    let free = total.saturating_sub(usage.used_bytes);
    let reserve = (total / RESERVE_PART).min(RESERVE_BYTES_MAX);
    (free < reserve).then(|| {
        let message = format!(
            "{} has {free} of {total} bytes left, and should have {reserve}: volumes are sparse \
             files, and writes into them fail with EIO when none is left; free some volumes or \
             snapshots, or enlarge the filesystem",
            path.display()
        );
        Complaint::new(storage::STORAGE_NEARLY_FULL, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(total_bytes: u64, used_bytes: u64) -> Usage {
        Usage {
            total_bytes,
            used_bytes,
            // What only root may use is not available, but free for volumes.
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
        let full = full(&usage(1000, 1000), Path::new("/volumes")).unwrap();
        assert!(
            full.message.contains("has 0 of 1000 bytes left"),
            "{full:?}"
        );
    }

    #[test]
    fn one_hung_volume_is_not_the_fault_of_the_storage() {
        assert_eq!(volumes_hang(1), None);
        let hung = volumes_hang(2).unwrap();
        assert_eq!(hung.reason, storage::OPERATIONS_HUNG);
        assert!(hung.message.starts_with("operations on 2 volumes "));
    }
}
