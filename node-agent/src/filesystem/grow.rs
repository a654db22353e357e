//! Grows a mounted filesystem to the size of its device, by an ioctl of the filesystem.
//!
//! If the device has no space to add, the ioctl is skipped. Since ext4 requires a capability for
//! the ioctl, staging a volume that needs no growth would otherwise fail without the capability.

use belay_server::call::{Failure, Kind};
use belay_server::size::Exact;

use super::FsType;
use super::probe::ext4::Superblock;
use super::probe::ext4_superblock;
use crate::kernel::{BtrfsGeometry, Cause, Kernel, XfsGeometry};

/// The result of growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grown {
    /// The filesystem already had the size of the device.
    AlreadyThere,
    /// The filesystem has grown.
    Grew {
        /// The former size of the filesystem in bytes.
        from_bytes: u64,
        /// The new size of the filesystem in bytes.
        to_bytes: u64,
    },
    /// The filesystem has the size of the device, and is an xfs with this number of allocation
    /// groups, which exceeds [`XFS_GROUPS_MANY`].
    InManyGroups(u32),
}

/// The number of allocation groups above which mounts are slow. A mount of an xfs reads four blocks
/// of each allocation group, one after another, which takes seconds with this number of groups on a
/// cloud's disk.
const XFS_GROUPS_MANY: u32 = 1000;

/// The reason why a filesystem did not grow.
#[derive(Debug)]
pub(crate) enum GrowError {
    /// ext4 requires `CAP_SYS_RESOURCE`, which this process does not have.
    NeedsCapability {
        /// The size of the filesystem in bytes.
        has_bytes: u64,
        /// The size of the filesystem's device in bytes.
        device_bytes: u64,
    },
    /// Any other failure.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for GrowError {
    fn from(error: E) -> GrowError {
        GrowError::Failed(error.into())
    }
}

/// Grows the mounted filesystem that contains the directory `root` to the size of `device`, and
/// then checks the new size.
///
/// # Errors
///
/// Returns [`GrowError::NeedsCapability`] for ext4 without `CAP_SYS_RESOURCE`; otherwise the
/// kernel's error.
pub(crate) fn grow<K: Kernel>(
    kernel: &K,
    root: &K::Fd,
    device: &K::Fd,
    fs: FsType,
) -> Result<Grown, GrowError> {
    match fs {
        FsType::Ext4 => grow_ext4(kernel, root, device),
        FsType::Xfs => grow_xfs(kernel, root, device),
        FsType::Btrfs => grow_btrfs(kernel, root, device),
    }
}

fn grow_ext4<K: Kernel>(kernel: &K, root: &K::Fd, device: &K::Fd) -> Result<Grown, GrowError> {
    let bytes = kernel.device_bytes(device)?;
    let before = ext4_superblock(kernel, device, bytes)?;
    let Some(target) = ext4_target(&before, bytes) else {
        return Ok(Grown::AlreadyThere);
    };
    match kernel.ext4_resize(root, target) {
        Err(error) if error.cause() == Cause::Denied => {
            return Err(GrowError::NeedsCapability {
                has_bytes: before.blocks.saturating_mul(before.block_bytes),
                device_bytes: bytes,
            });
        }
        result => result?,
    }
    let after = ext4_superblock(kernel, device, bytes)?;
    grown(
        FsType::Ext4,
        before.block_bytes,
        before.blocks,
        after.blocks,
        is_ext4_grown(&before, &after, target),
    )
}

fn is_ext4_grown(before: &Superblock, after: &Superblock, target: u64) -> bool {
    // The kernel may omit a last group that is too small for the group's tables.
    after.blocks > before.blocks && after.blocks + after.group_blocks > target
}

/// Returns the number of blocks to grow to; `None` if the device has no space that ext4 could use.
fn ext4_target(superblock: &Superblock, device_bytes: u64) -> Option<u64> {
    let blocks = device_bytes / superblock.block_bytes;
    let target = blocks - blocks % superblock.cluster_blocks;
    let more = target.checked_sub(superblock.blocks)?;
    // mke2fs omits a last group that is too small for its tables and 50 more blocks. The tables are
    // two bitmaps, the inode table, and possibly a copy of superblock and descriptors.
    let ends_with_a_group =
        (superblock.blocks - superblock.first_block).is_multiple_of(superblock.group_blocks);
    let smallest_group = superblock.inode_blocks + superblock.copy_blocks + 2 + 50;
    let is_usable = more > 0 && (!ends_with_a_group || more >= smallest_group);
    is_usable.then_some(target)
}

/// `XFS_MIN_AG_BLOCKS`: mkfs and the grow ioctl omit a last allocation group that is smaller.
const XFS_GROUP_BLOCKS_MIN: u64 = 64;

fn grow_xfs<K: Kernel>(kernel: &K, root: &K::Fd, device: &K::Fd) -> Result<Grown, GrowError> {
    let bytes = kernel.device_bytes(device)?;
    let before = kernel.xfs_geometry(root)?;
    let Some(target) = xfs_target(&before, bytes) else {
        return Ok(unless_many_groups(&before, Grown::AlreadyThere));
    };
    kernel.xfs_grow(root, target, before.imaxpct)?;
    let after = kernel.xfs_geometry(root)?;
    let grown = grown(
        FsType::Xfs,
        u64::from(before.block_bytes),
        before.blocks,
        after.blocks,
        is_xfs_grown(&after, target),
    )?;
    Ok(unless_many_groups(&after, grown))
}

fn unless_many_groups(xfs: &XfsGeometry, grown: Grown) -> Grown {
    match xfs.groups {
        many if many > XFS_GROUPS_MANY => Grown::InManyGroups(many),
        _ => grown,
    }
}

/// Returns the number of blocks to grow to; `None` if the device has no space that xfs could use.
fn xfs_target(before: &XfsGeometry, device_bytes: u64) -> Option<u64> {
    let target = device_bytes.checked_div(u64::from(before.block_bytes))?;
    (target >= before.blocks.saturating_add(XFS_GROUP_BLOCKS_MIN)).then_some(target)
}

fn is_xfs_grown(after: &XfsGeometry, target: u64) -> bool {
    after.blocks.saturating_add(XFS_GROUP_BLOCKS_MIN) > target
}

/// The minimum size in bytes to which the kernel resizes a btrfs (Linux: fs/btrfs/ioctl.c).
const BTRFS_BYTES_MIN: u64 = 256 << 20;

fn grow_btrfs<K: Kernel>(kernel: &K, root: &K::Fd, device: &K::Fd) -> Result<Grown, GrowError> {
    let bytes = kernel.device_bytes(device)?;
    let before = kernel.btrfs_geometry(root)?;
    if before.devices != 1 {
        let text = "a device was added to this btrfs; remove that device before growing";
        return Err(Failure::precondition(text).into());
    }
    let Some(target) = btrfs_target(&before, bytes) else {
        return Ok(Grown::AlreadyThere);
    };
    kernel.btrfs_grow(root, before.last_id)?;
    let after = kernel.btrfs_geometry(root)?;
    grown(
        FsType::Btrfs,
        1,
        before.last_bytes,
        after.last_bytes,
        after.last_bytes == target,
    )
}

/// Returns the number of bytes to grow to; `None` if the device has no space that btrfs could use.
fn btrfs_target(before: &BtrfsGeometry, device_bytes: u64) -> Option<u64> {
    let target = device_bytes - device_bytes % u64::from(before.block_bytes.max(1));
    (target > before.last_bytes && target >= BTRFS_BYTES_MIN).then_some(target)
}

fn grown(
    fs: FsType,
    block_bytes: u64,
    before: u64,
    after: u64,
    is_done: bool,
) -> Result<Grown, GrowError> {
    let (from_bytes, to_bytes) = (
        before.saturating_mul(block_bytes),
        after.saturating_mul(block_bytes),
    );
    if is_done {
        return Ok(Grown::Grew {
            from_bytes,
            to_bytes,
        });
    }
    let (from, to) = (Exact(from_bytes), Exact(to_bytes));
    let text = format!("growing {fs} succeeded, but its size is {to}, and was {from}");
    Err(GrowError::Failed(Failure::new(Kind::System, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB_BLOCKS: u64 = 1 << 18;

    fn superblock(blocks: u64) -> Superblock {
        Superblock {
            block_bytes: 4096,
            blocks,
            first_block: 0,
            group_blocks: 32_768,
            cluster_blocks: 1,
            inode_blocks: 512,
            copy_blocks: 129,
            has_projects: false,
            wants_check: false,
            needs_recovery: false,
            panics: false,
            refused_options: None,
        }
    }

    #[test]
    fn a_device_with_no_usable_room_is_left_alone() {
        let full = superblock(GIB_BLOCKS);
        let smallest = 512 + 129 + 2 + 50;
        for more_bytes in [0, 512, 4095, 4096, (smallest - 1) * 4096] {
            assert_eq!(
                ext4_target(&full, (1 << 30) + more_bytes),
                None,
                "{more_bytes}"
            );
        }
        let enough = (1 << 30) + smallest * 4096;
        assert_eq!(ext4_target(&full, enough), Some(GIB_BLOCKS + smallest));
        assert_eq!(ext4_target(&full, 1 << 29), None, "a smaller device");
    }

    #[test]
    fn a_begun_last_group_is_filled_up() {
        let begun = superblock(GIB_BLOCKS - 1000);
        assert_eq!(ext4_target(&begun, 1 << 30), Some(GIB_BLOCKS));
        assert_eq!(ext4_target(&begun, (GIB_BLOCKS - 1000) * 4096), None);
    }

    #[test]
    fn with_clusters_a_part_of_one_is_no_room() {
        let mut clustered = superblock(GIB_BLOCKS - 1000);
        clustered.cluster_blocks = 16;
        let target = ext4_target(&clustered, (1 << 30) + 15 * 4096);
        assert_eq!(target, Some(GIB_BLOCKS));
    }

    #[test]
    fn with_small_blocks_the_first_group_begins_at_block_one() {
        let mut small = superblock((1 << 20) + 1);
        (small.block_bytes, small.first_block) = (1024, 1);
        let smallest = 512 + 129 + 2 + 50;
        let device_bytes = |more: u64| ((1 << 20) + 1 + more) * 1024;
        assert_eq!(ext4_target(&small, device_bytes(smallest - 1)), None);
        let target = ext4_target(&small, device_bytes(smallest));
        assert_eq!(target, Some((1 << 20) + 1 + smallest));
    }

    #[test]
    fn an_ext4_is_grown_if_it_lacks_less_than_a_group() {
        let (before, target) = (superblock(GIB_BLOCKS), 2 * GIB_BLOCKS);
        let is_grown = |blocks| is_ext4_grown(&before, &superblock(blocks), target);
        assert!(is_grown(target) && is_grown(target - 32_767));
        assert!(!is_grown(target - 32_768) && !is_grown(GIB_BLOCKS));
        // The space is smaller than a group, so the kernel adds nothing.
        assert!(!is_ext4_grown(&before, &before, GIB_BLOCKS + 1000));
    }

    #[test]
    fn an_xfs_grows_by_what_makes_a_group() {
        let of = |blocks| XfsGeometry {
            block_bytes: 4096,
            blocks,
            groups: 4,
            imaxpct: 25,
        };
        let bytes = |more_blocks| (GIB_BLOCKS + more_blocks) * 4096;
        let target = |more_blocks| xfs_target(&of(GIB_BLOCKS), bytes(more_blocks));
        assert_eq!((target(0), target(63)), (None, None));
        assert_eq!(target(64), Some(GIB_BLOCKS + 64));
        assert_eq!(xfs_target(&of(GIB_BLOCKS), 1 << 29), None);
        assert!(is_xfs_grown(&of(GIB_BLOCKS + 1), GIB_BLOCKS + 64));
        assert!(!is_xfs_grown(&of(GIB_BLOCKS), GIB_BLOCKS + 64));
    }

    #[test]
    fn an_xfs_of_many_groups_is_named_whether_it_grew_or_not() {
        let grew = Grown::Grew {
            from_bytes: 1,
            to_bytes: 2,
        };
        for (groups, grown, expected) in [
            (XFS_GROUPS_MANY, grew, grew),
            (XFS_GROUPS_MANY, Grown::AlreadyThere, Grown::AlreadyThere),
            (1001, grew, Grown::InManyGroups(1001)),
            (69_906, Grown::AlreadyThere, Grown::InManyGroups(69_906)),
        ] {
            let xfs = XfsGeometry {
                block_bytes: 4096,
                blocks: 1,
                groups,
                imaxpct: 25,
            };
            assert_eq!(unless_many_groups(&xfs, grown), expected);
        }
    }

    #[test]
    fn a_btrfs_grows_by_whole_blocks_and_never_shrinks() {
        let before = |last_bytes| BtrfsGeometry {
            devices: 1,
            last_id: 1,
            last_bytes,
            block_bytes: 4096,
        };
        let full = before(1 << 30);
        for more in [0, 1, 4095] {
            assert_eq!(btrfs_target(&full, (1 << 30) + more), None, "{more}");
        }
        let target = Some((1 << 30) + 4096);
        assert_eq!(btrfs_target(&full, (1 << 30) + 4096 + 512), target);
        assert_eq!(btrfs_target(&full, 1 << 29), None);
        let small = before(BTRFS_BYTES_MIN - (1 << 20));
        assert_eq!(btrfs_target(&small, BTRFS_BYTES_MIN - 4096), None);
        assert_eq!(btrfs_target(&small, BTRFS_BYTES_MIN), Some(BTRFS_BYTES_MIN));
    }

    #[test]
    fn a_growth_that_did_not_happen_is_an_error() {
        assert!(grown(FsType::Ext4, 4096, 10, 10, false).is_err());
        let grew = Grown::Grew {
            from_bytes: 40_960,
            to_bytes: 81_920,
        };
        assert_eq!(grown(FsType::Ext4, 4096, 10, 20, true).unwrap(), grew);
    }
}
