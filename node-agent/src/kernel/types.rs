//! The types of the kernel interface. Plain values; no calls.

use std::fmt;
use std::path::PathBuf;

/// A device number, as in `st_dev` and `st_rdev`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Dev {
    /// The number of the driver.
    pub(crate) major: u32,
    /// The number of the device among the driver's devices.
    pub(crate) minor: u32,
}

impl Dev {
    /// Whether the number does not identify a device: the filesystem has no device, or is btrfs.
    pub(crate) const fn is_anonymous(self) -> bool {
        self.major == 0
    }
}

impl fmt::Display for Dev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A file's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A block device node.
    BlockDevice,
    /// A symbolic link.
    Symlink,
    /// Any other type.
    Other,
}

/// The result of statx(2), without a request to the filesystem's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// The type of the file.
    pub(crate) kind: FileKind,
    /// The device number of the filesystem that contains the file. Anonymous on btrfs.
    pub(crate) dev: Dev,
    /// The device number of the device, if the file is a device node.
    pub(crate) rdev: Dev,
    /// The inode number.
    pub(crate) ino: u64,
    /// The size of the file in bytes.
    pub(crate) bytes: u64,
    /// The number of allocated bytes (`stx_blocks`), which excludes holes.
    pub(crate) allocated: u64,
    /// The number of hard links; 0 for a deleted file that is still open.
    pub(crate) links: u32,
    /// Whether the file is the root of a mount (`STATX_ATTR_MOUNT_ROOT`).
    pub(crate) mount_root: bool,
    /// The ID of the file's mount (`STATX_MNT_ID_UNIQUE`); 0 before Linux 6.8.
    pub(crate) mount_id: u64,
}

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    /// The device number of the filesystem that contains the file.
    pub(crate) dev: Dev,
    /// The inode number in that filesystem.
    pub(crate) ino: u64,
}

impl Stat {
    /// Returns the identity of the file.
    pub(crate) fn inode(&self) -> Inode {
        Inode {
            dev: self.dev,
            ino: self.ino,
        }
    }

    /// Whether both objects are the same file or, for device nodes, the same device.
    pub(crate) fn is_same_root(&self, other: &Stat) -> bool {
        self.kind == other.kind
            && match self.kind {
                FileKind::BlockDevice => self.rdev == other.rdev,
                _ => self.dev == other.dev && self.ino == other.ino,
            }
    }
}

/// The flags of open(2). `O_CLOEXEC` is always added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Open {
    /// `O_RDONLY | O_DIRECT | O_NONBLOCK`: for probing a device without the page cache.
    DeviceRead,
    /// `O_RDWR | O_DIRECT | O_NONBLOCK`.
    DeviceWrite,
    /// `O_RDONLY | O_EXCL | O_NONBLOCK`: fails with EBUSY if the device is mounted or claimed.
    DeviceExclusive,
    /// `O_RDWR`.
    FileWrite,
    /// `O_RDONLY`.
    FileRead,
    /// `O_PATH`: inspects a file without counting as an opener.
    Name,
    /// [`Open::Name`], but [`super::Kernel::open_beneath`] fails instead of waiting for a disk.
    NameCached,
    /// `O_RDONLY | O_DIRECTORY`.
    Directory,
}

/// Whether other open file descriptions refer to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Openers {
    /// No other open file description on this machine refers to the file.
    None,
    /// Another process or a loop device has the file open.
    Others,
    /// The filesystem does not report to this process whether others have the file open.
    Unknown,
}

/// The flags of a bound loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopMode {
    /// `LO_FLAGS_READ_ONLY`: writes fail with EPERM.
    pub(crate) read_only: bool,
    /// `LO_FLAGS_AUTOCLEAR`: the last close unbinds the device.
    pub(crate) autoclear: bool,
}

/// The status of a bound loop device (`LOOP_GET_STATUS64`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoopStatus {
    /// The name that was set when the device was bound (`lo_file_name`), at most 63 bytes.
    pub(crate) name: String,
    /// The device number of the filesystem that contains the backing file.
    pub(crate) backing_dev: Dev,
    /// The backing file's inode number.
    pub(crate) backing_ino: u64,
    /// The flags of the device.
    pub(crate) mode: LoopMode,
}

impl LoopStatus {
    /// Returns the identity of the backing file.
    pub(crate) fn inode(&self) -> Inode {
        Inode {
            dev: self.backing_dev,
            ino: self.backing_ino,
        }
    }
}

/// The backing file of a loop device, read from sysfs without a query to the file's filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoopFile {
    /// The file's path as the binding process saw it; ends in ` (deleted)` for a deleted file.
    pub(crate) path: PathBuf,
    /// Whether the device has AUTOCLEAR, so that the last close unbinds the device.
    pub(crate) autoclear: bool,
}

/// Attributes of a mount, as opposed to attributes of its filesystem (mount_setattr(2)).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize,
)]
pub(crate) struct MountAttrs(u64);

impl MountAttrs {
    /// `MOUNT_ATTR_RDONLY`.
    pub(crate) const READ_ONLY: MountAttrs = MountAttrs(0x01);
    /// `MOUNT_ATTR_NOSUID`.
    pub(crate) const NO_SUID: MountAttrs = MountAttrs(0x02);
    /// `MOUNT_ATTR_NODEV`.
    pub(crate) const NO_DEV: MountAttrs = MountAttrs(0x04);
    /// `MOUNT_ATTR_NOEXEC`.
    pub(crate) const NO_EXEC: MountAttrs = MountAttrs(0x08);
    /// `MOUNT_ATTR_NOATIME`.
    pub(crate) const NO_ATIME: MountAttrs = MountAttrs(0x10);
    /// `MOUNT_ATTR_STRICTATIME`.
    pub(crate) const STRICT_ATIME: MountAttrs = MountAttrs(0x20);
    /// `MOUNT_ATTR_NODIRATIME`.
    pub(crate) const NO_DIR_ATIME: MountAttrs = MountAttrs(0x80);
    /// `MOUNT_ATTR_NOSYMFOLLOW`.
    pub(crate) const NO_SYMFOLLOW: MountAttrs = MountAttrs(0x0020_0000);
    /// `MOUNT_ATTR__ATIME`: the mask of the access-time mode, which is not a set of flags.
    pub(crate) const ATIME_CHOICE: MountAttrs = MountAttrs(0x70);

    /// Returns the bits with the kernel's values (include/uapi/linux/mount.h).
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Converts bits with the kernel's values. Unknown bits are kept.
    pub(crate) const fn from_bits(bits: u64) -> Self {
        MountAttrs(bits)
    }

    /// Whether all attributes of `other` are set.
    pub(crate) const fn contains(self, other: MountAttrs) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether both sets agree in all attributes that the agent's mount flags can set.
    pub(crate) const fn is_like(self, other: MountAttrs) -> bool {
        let ours = MountAttrs::READ_ONLY
            .with(MountAttrs::NO_SUID)
            .with(MountAttrs::NO_DEV)
            .with(MountAttrs::NO_EXEC)
            .with(MountAttrs::ATIME_CHOICE)
            .with(MountAttrs::NO_DIR_ATIME)
            .with(MountAttrs::NO_SYMFOLLOW);
        (self.0 ^ other.0) & ours.0 == 0
    }

    /// Returns the attributes that are set in either.
    #[must_use]
    pub(crate) const fn with(self, other: MountAttrs) -> Self {
        MountAttrs(self.0 | other.0)
    }

    /// Returns the attributes that are set in `self` and not in `other`.
    #[must_use]
    pub(crate) const fn without(self, other: MountAttrs) -> Self {
        MountAttrs(self.0 & !other.0)
    }
}

/// The state of a mount and its filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountFacts {
    /// The filesystem type, as in /proc/filesystems.
    pub(crate) fs_type: String,
    /// The attributes of the mount.
    pub(crate) attrs: MountAttrs,
    /// Whether the filesystem itself is read-only, or refuses writes after an error.
    pub(crate) superblock_read_only: bool,
    /// Whether the filesystem has shut down after an error: reads and writes fail.
    pub(crate) shut_down: bool,
    /// Whether statfs(2) does not block, judged by the project quotas in the mount's options.
    pub(crate) counts_in_memory: bool,
    /// The number of the group of mounts that propagate to each other; 0 for a private mount.
    pub(crate) peer_group: u64,
    /// The SELinux label of all files (`context=`). In statmount(2) since Linux 6.13.
    pub(crate) label: Option<String>,
}

/// A line of mountinfo, reduced to the fields that the agent uses (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MountEntry {
    /// The mount's ID in mountinfo, and in `STATX_MNT_ID`. The kernel reuses it.
    pub(crate) id: u64,
    /// The ID of the parent mount, which mountinfo need not contain.
    pub(crate) parent: u64,
    /// `st_dev` of files on this mount.
    pub(crate) dev: Dev,
    /// The directory of the filesystem that is mounted, relative to the filesystem's root.
    pub(crate) root: PathBuf,
    /// The mount point.
    pub(crate) point: PathBuf,
    /// The filesystem type.
    pub(crate) fs_type: String,
    /// The source that the mounting process passed; only a name.
    pub(crate) source: PathBuf,
    /// The peer group, as in [`MountFacts::peer_group`].
    pub(crate) peer_group: u64,
}

/// The result of statfs(2), in bytes and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Usage {
    /// The size of the filesystem.
    pub(crate) total_bytes: u64,
    /// Used bytes.
    pub(crate) used_bytes: u64,
    /// Bytes that an ordinary user may still allocate.
    pub(crate) available_bytes: u64,
    /// The total number of inodes; 0 on a filesystem that allocates inodes as needed.
    pub(crate) total_inodes: u64,
    /// Inodes in use.
    pub(crate) used_inodes: u64,
    /// Free inodes.
    pub(crate) free_inodes: u64,
}

/// The fields of `struct xfs_fsop_geom` that growing needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct XfsGeometry {
    /// The size of a filesystem block in bytes.
    pub(crate) block_bytes: u32,
    /// The number of data blocks.
    pub(crate) blocks: u64,
    /// The number of allocation groups.
    pub(crate) groups: u32,
    /// The share of space that inodes may use, in per cent; passed unchanged to the grow ioctl.
    pub(crate) imaxpct: u32,
}

/// The block device of a mounted btrfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BtrfsDevice {
    /// The filesystem is on a single block device.
    One(Dev),
    /// The filesystem is on several block devices.
    Several,
    /// The disk was removed, and the kernel no longer shows its device number.
    Removed,
}

/// The number and size of the devices of a btrfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BtrfsGeometry {
    /// The number of devices.
    pub(crate) devices: u64,
    /// The highest device ID in the filesystem.
    pub(crate) last_id: u64,
    /// The number of bytes of the device `last_id` that the filesystem uses.
    pub(crate) last_bytes: u64,
    /// The size of a filesystem block in bytes; `last_bytes` is a multiple of it.
    pub(crate) block_bytes: u32,
}

/// The errors that an ext4 has counted since its last fsck, and the warnings since its mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ext4Errors {
    /// The number of warnings since the mount, such as failed writes and full directories.
    pub(crate) warnings: u64,
    /// The number of errors since the last fsck.
    pub(crate) count: u64,
    /// The oldest error; `None` if no error is recorded.
    pub(crate) first: Option<Ext4Error>,
    /// The latest error; `None` if no error is recorded.
    pub(crate) last: Option<Ext4Error>,
}

/// An error that an ext4 has recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ext4Error {
    /// The time of the error in seconds since 1970; 0 if unknown.
    pub(crate) seconds: u64,
    /// The function in the kernel's source that reported the error.
    pub(crate) function: String,
    /// The line in the kernel's source that reported the error.
    pub(crate) line: u64,
    /// The cause: an `EXT4_ERR_` constant of fs/ext4/ext4.h; 0 if unknown.
    pub(crate) code: u64,
}

/// The errors that a btrfs has counted on its device. The counters persist until reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BtrfsErrors {
    /// Failed writes.
    pub(crate) write: u64,
    /// Failed reads.
    pub(crate) read: u64,
    /// Failed flushes.
    pub(crate) flush: u64,
    /// Blocks with a wrong checksum.
    pub(crate) corruption: u64,
    /// Blocks with an outdated generation, because an earlier write was lost.
    pub(crate) generation: u64,
}

/// Memory aligned as `O_DIRECT` requires (open(2)), in whole pages that contain no other data.
/// Before Linux 6.5, if a fork (for mkfs) and a write to the same page happen during a direct read,
/// the process gets a copy of the page, and the disk's bytes arrive only in the old page.
pub(crate) struct AlignedBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// Allocates `len` zero bytes.
    pub(crate) fn new(len: usize) -> Self {
        // At least 4096 bytes, enough for every logical block size that filesystems accept.
        let page = rustix::param::page_size();
        let bytes = vec![0; len.next_multiple_of(page) + page];
        let start = bytes.as_ptr().align_offset(page);
        AlignedBuf { bytes, start, len }
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}
