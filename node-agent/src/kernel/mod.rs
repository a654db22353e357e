//! The kernel as the agent sees it: one trait of synchronous verbs, named as in the man pages.
//!
//! Other modules use only [`Kernel`] and never see an errno, a raw descriptor or a libc type.
//! Only [`linux`] has unsafe code. Nothing here knows volumes.

mod disks;
mod error;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod linux;
mod remote;
mod types;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use disks::{Disk, DiskAt, DiskFacts, Disks, NvmeFacts, ScsiFacts};
pub(crate) use error::{Cause, Error, Result};
pub(crate) use remote::{Answer, Answered, Helper, MountSource, RemoteCall, RemoteMount, Remotes};
pub(crate) use types::{
    AlignedBuf, BtrfsDevice, BtrfsErrors, BtrfsGeometry, Dev, Ext4Error, Ext4Errors, FileKind,
    Inode, LoopFile, LoopMode, LoopStatus, MountAttrs, MountEntry, MountFacts, Open, Openers, Stat,
    Usage, XfsGeometry,
};

/// Descriptors.
pub(crate) trait Descriptors {
    /// An open file description. Dropping it closes it, so a held device is dropped on the pool.
    type Fd: Send + Sync + 'static;
}

/// Mounted filesystems.
pub(crate) trait Filesystems: Descriptors {
    /// `FITHAW`: thaws a frozen filesystem; while frozen, unmounting does not release its device.
    /// Succeeds if it is not frozen.
    fn thaw(&self, root: &Self::Fd) -> Result<()>;
    /// `EXT4_IOC_RESIZE_FS` to a number of filesystem blocks. Needs `CAP_SYS_RESOURCE`.
    fn ext4_resize(&self, root: &Self::Fd, blocks: u64) -> Result<()>;
    /// The error counters of the ext4 mounted from a device, from sysfs; `None` if there is no such
    /// filesystem. Quick.
    fn ext4_errors(&self, dev: Dev) -> Result<Option<Ext4Errors>>;
    /// `XFS_IOC_FSGEOMETRY`.
    fn xfs_geometry(&self, root: &Self::Fd) -> Result<XfsGeometry>;
    /// `XFS_IOC_FSGROWFSDATA` to a number of filesystem blocks, with the inode share unchanged.
    fn xfs_grow(&self, root: &Self::Fd, blocks: u64, imaxpct: u32) -> Result<()>;
    /// `BTRFS_IOC_FS_INFO` and the list in sysfs: the block device of a mounted btrfs.
    fn btrfs_device(&self, root: &Self::Fd) -> Result<BtrfsDevice>;
    /// `BTRFS_IOC_FS_INFO` and `BTRFS_IOC_DEV_INFO`.
    fn btrfs_geometry(&self, root: &Self::Fd) -> Result<BtrfsGeometry>;
    /// `BTRFS_IOC_GET_DEV_STATS`.
    fn btrfs_errors(&self, root: &Self::Fd) -> Result<BtrfsErrors>;
    /// `BTRFS_IOC_RESIZE` of the filesystem's device `id` to the size of its block device.
    fn btrfs_grow(&self, root: &Self::Fd, id: u64) -> Result<()>;
    /// syncfs(2): writes all of the filesystem that `root` is in to its disk.
    fn syncfs(&self, root: &Self::Fd) -> Result<()>;
}

/// State of a loop device that belongs to its number: it outlives the binding to a file, and
/// applies to the next file.
pub(crate) trait Leftovers: Descriptors {
    /// The names of a loop device's partitions, from sysfs. `LOOP_CLR_FD` removes only those that
    /// the kernel has found itself, and no agent binds with `LO_FLAGS_PARTSCAN`. One statx of a
    /// device without partitions, where `is_bound` is right. Quick.
    fn loop_partitions(&self, number: u32, is_bound: bool) -> Result<Vec<String>>;
    /// `LOOP_CTL_REMOVE`: removes the device with all such state; `LOOP_CTL_GET_FREE` makes it
    /// again. `false` while it is bound, or while it or a partition of it is open. Takes some
    /// 50 ms.
    fn loop_remove(&self, number: u32) -> Result<bool>;
    /// fstat(2): whether only root, and a group that root owns it with, may open the node of the
    /// device. A bind mount of a raw volume shows the node itself, so its users may change it.
    fn is_private(&self, device: &Self::Fd) -> Result<bool>;
    /// `BLKROSET` with 0: ends the refusal of writes that `BLKROSET` with 1 began. A device that is
    /// bound read-only stays read-only.
    fn allow_writes(&self, device: &Self::Fd) -> Result<()>;
    /// `BLKROGET`: whether the device refuses writes, for either reason.
    fn refuses_writes(&self, device: &Self::Fd) -> Result<bool>;
    /// `queue/write_cache` in sysfs, which is "write back" for a device that is bound for writing.
    /// Since Linux 6.11, "write through" stays with the number: the kernel then drops the flushes
    /// of an fsync. Restores it.
    fn loop_allow_flushes(&self, number: u32) -> Result<()>;
}

/// The agent's namespace and clock.
pub(crate) trait Surroundings {
    /// Whether this mount namespace belongs to process 1 in /proc, and this process is not process
    /// 1. Quick.
    fn is_beside_first_process(&self) -> bool;
    /// The wall clock, in seconds since 1970: clock_gettime(2) of CLOCK_REALTIME, no system call.
    fn realtime(&self) -> u64;
}

/// The ranges to read, and the receiver of their bytes.
pub(crate) trait Reads {
    /// The next range: offset and length in bytes, multiples of what `O_DIRECT` requires; `None`
    /// from then on, if nothing more is wanted.
    fn next(&mut self) -> Option<(u64, usize)>;
    /// The bytes of a range, fewer if the read was short. The ranges come in any order.
    fn take(&mut self, range: (u64, usize), bytes: &[u8]);
}

/// The system calls that the agent uses.
///
/// Verbs marked *quick* never wait for a disk or a server (measured on a mount whose server never
/// answers) and may run on the agent's one thread; all others belong on the pool. Verbs that take a
/// path are quick if the path is in memory, which [`Kernel::open_path_cached`] finds out.
pub(crate) trait Kernel:
    Filesystems + Leftovers + Surroundings + Disks + Remotes + Send + Sync + 'static
{
    /// statx(2) of the path itself: does not follow the last component, triggers no automount,
    /// sends no request to a server. `None` if the path does not exist. A filesystem that has shut
    /// itself down refuses statx; its root is then described from mountinfo, without a mount id.
    /// Quick.
    fn look(&self, path: &Path) -> Result<Option<Stat>>;
    /// statx(2) of an open descriptor, like [`Kernel::look`]. Quick.
    fn stat(&self, fd: &Self::Fd) -> Result<Stat>;
    /// open(2) with `O_PATH`, then readlink(2) of its link in /proc: the path with all symlinks
    /// resolved. `None` if it does not exist. Quick.
    fn real(&self, path: &Path) -> Result<Option<PathBuf>>;
    /// openat2(2) with `O_PATH` and `RESOLVE_NO_SYMLINKS`: whether the path has no symlink in any
    /// component. `None` if it does not exist. Quick.
    fn has_no_links(&self, path: &Path) -> Result<Option<bool>>;
    /// statfs(2): queries the filesystem, so a hung filesystem blocks the caller. It cannot block
    /// if the kernel [counts the space in memory](MountFacts::counts_in_memory) and the filesystem
    /// has no project quotas.
    fn statfs(&self, path: &Path) -> Result<Usage>;
    /// statfs(2) of the filesystem that an open descriptor refers to, like [`Kernel::statfs`].
    fn fstatfs(&self, fd: &Self::Fd) -> Result<Usage>;

    /// open(2) with `O_PATH | O_NOFOLLOW`: refers to the name, not to its content. Queries each
    /// filesystem on the way whose names are not in memory.
    fn open_path(&self, path: &Path) -> Result<Self::Fd>;
    /// [`Kernel::open_path`] by openat2(2) with `RESOLVE_CACHED`, which queries no filesystem:
    /// `None` unless every name of the path is in memory and known to be valid. Quick.
    fn open_path_cached(&self, path: &Path) -> Result<Option<Self::Fd>>;
    /// open(2) of a device node or a directory.
    fn open(&self, path: &Path, how: Open) -> Result<Self::Fd>;
    /// open(2) of the file that `fd` refers to and no other, through its /proc link.
    fn reopen(&self, fd: &Self::Fd, how: Open) -> Result<Self::Fd>;
    /// openat2(2) of one name in `dir`: no symlink, no other mount, never outside of `dir`.
    fn open_beneath(&self, dir: &Self::Fd, name: &str, how: Open) -> Result<Self::Fd>;
    /// mkdir(2). Quick on the kubelet's own disk.
    fn mkdir(&self, path: &Path, mode: u32) -> Result<()>;
    /// rmdir(2): refuses a directory that is not empty, so the agent uses no other removal.
    fn rmdir(&self, path: &Path) -> Result<()>;
    /// open(2) with `O_CREAT | O_EXCL`: an empty file to bind a device node onto.
    fn create_file(&self, path: &Path, mode: u32) -> Result<()>;
    /// unlink(2).
    fn unlink(&self, path: &Path) -> Result<()>;
    /// link(2): another name on the same mount. Quick in `/dev`.
    fn link(&self, path: &Path, name: &Path) -> Result<()>;
    /// The names in a directory; empty if there is no such directory. Quick in `/dev`.
    fn names(&self, path: &Path) -> Result<Vec<String>>;

    /// flock(2) with `LOCK_EX | LOCK_NB`; `false` if another description holds the lock.
    fn flock(&self, fd: &Self::Fd) -> Result<bool>;
    /// fcntl(2) with `F_SETLEASE`, released at once: whether other descriptions have the file open
    /// for writing or, with `readers_too`, at all; `fd` must then be open for writing. A
    /// description opened with [`Open::Name`] does not count, a loop device does. While the lease
    /// is held, a process that opens the file waits, or gets [`Cause::Again`] with `O_NONBLOCK`.
    fn openers(&self, fd: &Self::Fd, readers_too: bool) -> Result<Openers>;
    /// fgetxattr(2): the attribute's value, `None` if the file does not have it, or if its
    /// filesystem has no such attributes; empty if it is longer than 64 bytes.
    fn xattr(&self, fd: &Self::Fd, name: &str) -> Result<Option<Vec<u8>>>;
    /// fsetxattr(2).
    fn set_xattr(&self, fd: &Self::Fd, name: &str, value: &[u8]) -> Result<()>;
    /// fremovexattr(2). Succeeds if the file does not have the attribute.
    fn remove_xattr(&self, fd: &Self::Fd, name: &str) -> Result<()>;
    /// lseek(2) with `SEEK_DATA`: the offset of the next data at or after `from`, in bytes; `None`
    /// if only a hole follows.
    fn seek_data(&self, fd: &Self::Fd, from: u64) -> Result<Option<u64>>;
    /// lseek(2) with `SEEK_HOLE`: the end of the data that covers `from`, in bytes.
    fn seek_hole(&self, fd: &Self::Fd, from: u64) -> Result<u64>;
    /// pread(2), one call; the number of bytes read, which may be short.
    fn pread(&self, fd: &Self::Fd, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Reads many ranges of a disk, several at once. Returns `false` if this kernel or this disk
    /// cannot do so, or no longer can: `reads` then still has the ranges that were not read.
    /// `longest` is the length in bytes of the longest range.
    ///
    /// # Errors
    /// Returns the error of the first read that fails; then no further range is read.
    fn pread_at_once(&self, _: &Self::Fd, _longest: usize, _: &mut dyn Reads) -> Result<bool> {
        Ok(false)
    }
    /// pwrite(2), one call.
    fn pwrite(&self, fd: &Self::Fd, buffer: &[u8], offset: u64) -> Result<usize>;
    /// fsync(2); on a block device it also flushes the device's write cache.
    fn fsync(&self, fd: &Self::Fd) -> Result<()>;
    /// `BLKGETSIZE64`: the size of an open block device in bytes. Quick.
    fn device_bytes(&self, fd: &Self::Fd) -> Result<u64>;
    /// `BLKSSZGET`: the logical block size of an open block device in bytes. Quick.
    fn device_block_bytes(&self, fd: &Self::Fd) -> Result<u32>;
    /// `BLKGETDISKSEQ`: see [`Disk::diskseq`]. Quick.
    fn diskseq(&self, fd: &Self::Fd) -> Result<u64>;

    /// The loop device number of this device number; `None` for other devices. With
    /// `loop.max_part`, the minor number differs from it. Quick.
    fn loop_number(&self, dev: Dev) -> Option<u32>;
    /// The device number of the loop device with this number. Quick.
    fn loop_dev(&self, number: u32) -> Dev;
    /// `LOOP_CTL_GET_FREE`: the number of a loop device that was unbound at the time of the call.
    fn loop_get_free(&self) -> Result<u32>;
    /// `LOOP_CTL_ADD`: creates the loop device with this number; `false` if there is one already.
    fn loop_add(&self, number: u32) -> Result<bool>;
    /// `LOOP_CONFIGURE`, with the first 63 bytes of a name that identifies the device even after
    /// its file is renamed or deleted. [`Cause::Busy`] if another process has bound the device.
    fn loop_configure(
        &self,
        device: &Self::Fd,
        file: &Self::Fd,
        mode: LoopMode,
        name: &str,
    ) -> Result<()>;
    /// `LOOP_GET_STATUS64`; `None` if the device is not bound. Queries the filesystem of the
    /// backing file, and waits for its answer: never call it for a device that may be foreign.
    fn loop_status(&self, device: &Self::Fd) -> Result<Option<LoopStatus>>;
    /// `LOOP_SET_STATUS64`: sets or clears AUTOCLEAR (unbind at the last close).
    fn loop_set_autoclear(&self, device: &Self::Fd, autoclear: bool) -> Result<()>;
    /// `LOOP_CLR_FD`: unbinds when the last descriptor is closed, including this one, so its result
    /// is visible only afterwards. Ten milliseconds faster than setting AUTOCLEAR, which freezes
    /// the device's queue.
    fn loop_clr_fd(&self, device: &Self::Fd) -> Result<()>;
    /// `LOOP_SET_CAPACITY`: adopts a changed size of the backing file.
    fn loop_set_capacity(&self, device: &Self::Fd) -> Result<()>;
    /// The numbers of all bound loop devices, from sysfs. Quick.
    fn loop_bound(&self) -> Result<Vec<u32>>;
    /// The backing file of a loop device, from sysfs; `None` if it is not bound. Quick.
    fn loop_file(&self, number: u32) -> Result<Option<LoopFile>>;
    /// The file name of the backing file, as in [`Kernel::loop_file`], with one read. Quick.
    fn loop_file_name(&self, number: u32) -> Result<Option<OsString>> {
        let file = self.loop_file(number)?;
        Ok(file.and_then(|file| file.path.file_name().map(ToOwned::to_owned)))
    }

    /// The size of a loop device in bytes, from sysfs; `None` if there is no such device. Quick.
    fn loop_bytes(&self, number: u32) -> Result<Option<u64>>;

    /// fsopen(2). Quick.
    fn fsopen(&self, fs_type: &str) -> Result<Self::Fd>;
    /// fsconfig(2) with a string, or with a flag if there is no value. Quick.
    fn fsconfig_set(&self, context: &Self::Fd, key: &str, value: Option<&str>) -> Result<()>;
    /// fsconfig(2) that creates the superblock: reads the disk, replays the journal. Unless
    /// `shared`, it refuses a superblock that is already mounted, if the kernel can (Linux 6.6).
    fn fsconfig_create(&self, context: &Self::Fd, shared: bool) -> Result<()>;
    /// fsmount(2): a detached mount. Quick.
    fn fsmount(&self, context: &Self::Fd, attrs: MountAttrs) -> Result<Self::Fd>;
    /// open_tree(2) with `OPEN_TREE_CLONE`: a copy of the one mount that `fd` is in. Quick.
    fn open_tree(&self, fd: &Self::Fd) -> Result<Self::Fd>;
    /// mount_setattr(2): sets `attrs` and makes the mount private, in one step. Quick.
    fn mount_setattr(&self, mount: &Self::Fd, attrs: MountAttrs) -> Result<()>;
    /// move_mount(2) onto an open directory or file. It stacks silently on an existing mount, so
    /// callers check first. Quick.
    fn move_mount(&self, mount: &Self::Fd, onto: &Self::Fd) -> Result<()>;
    /// umount2(2) with `UMOUNT_NOFOLLOW`: waits for write-back if it drops the last reference.
    fn umount(&self, path: &Path) -> Result<()>;
    /// statmount(2) of the mount on `path`: its type and attributes, but nothing whose query could
    /// hang. Reads mountinfo instead if the kernel has no statmount (before Linux 6.8).
    fn statmount(&self, path: &Path) -> Result<Option<MountFacts>>;
    /// [`Kernel::statmount`] by the id of a [`Stat`]; `None` if the mount no longer exists, and on
    /// kernels without such ids (before Linux 6.8). Quick.
    fn statmount_of(&self, mount_id: u64) -> Result<Option<MountFacts>>;
    /// The SELinux label of all files of the mount on `path`, from mountinfo; `None` if it was
    /// mounted without `context=`.
    fn mount_label(&self, path: &Path) -> Result<Option<String>>;
    /// The part of its filesystem that is mounted on `path`, whose mount has that id of a [`Stat`];
    /// `None` if the mount no longer exists. Quick; without statmount it reads mountinfo.
    fn mount_root(&self, path: &Path, mount_id: u64) -> Result<Option<PathBuf>>;
    /// [`Kernel::statmount`] of the mount that contains `path`, whether or not `path` is its root.
    fn mount_holding(&self, path: &Path) -> Result<Option<MountFacts>>;
    /// Every mount of the namespace, from mountinfo, including mounts under other mounts. Read at
    /// the start, where a path no longer shows the mount that was made on it, and before freeing a
    /// device that has no AUTOCLEAR.
    fn mounts(&self) -> Result<Vec<MountEntry>>;
    /// A directory of a detached mount as an ordinary descriptor, for ioctls.
    fn open_root(&self, mount: &Self::Fd) -> Result<Self::Fd>;

    /// A random UUID as text: /proc/sys/kernel/random/uuid (random(4)). Quick.
    fn new_uuid(&self) -> Result<String>;
    /// nanosleep(2), only for [`while_busy`].
    fn pause(&self, time: Duration);
    /// Runs mkfs or fsck until it exits, with the device as its standard input; killed at the
    /// deadline and when the agent exits.
    fn run(&self, child: &Child<'_, Self::Fd>) -> Result<ChildEnd>;
}

/// How long to retry a call that fails with EBUSY.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// 31 ms in all: a device that is really in use must be reported soon.
    Moment,
    /// 1023 ms in all: the last user should have closed the device, and the caller would only
    /// retry.
    Second,
}

impl Patience {
    /// The pauses between attempts, in milliseconds.
    fn pauses_ms(self) -> &'static [u64] {
        const ALL: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
        match self {
            Patience::Moment => &ALL[..5],
            Patience::Second => &ALL,
        }
    }
}

/// Repeats `attempt` while `is_busy` is true for its result, until the patience is used up.
///
/// Other processes hold devices and mounts briefly: udev probes a changed device, and a child
/// that is being started has copies of all our descriptors until it execs. No event reports their
/// release.
pub(crate) fn while_busy<K: Kernel, T>(
    kernel: &K,
    patience: Patience,
    is_busy: impl Fn(&Result<T>) -> bool,
    mut attempt: impl FnMut() -> Result<T>,
) -> Result<T> {
    for pause_ms in patience.pauses_ms() {
        let result = attempt();
        if !is_busy(&result) {
            return result;
        }
        kernel.pause(Duration::from_millis(*pause_ms));
    }
    attempt()
}

/// Whether the call failed because something is in use.
pub(crate) fn failed_busy<T>(result: &Result<T>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.cause() == Cause::Busy)
}

/// A program to run on a device. It finds the device as `/proc/self/fd/0`.
pub(crate) struct Child<'a, Fd> {
    /// The tool's file name; searched in the system directories, never in `PATH`.
    pub(crate) program: &'static str,
    /// The tool's arguments.
    pub(crate) args: Vec<String>,
    /// The device, passed as standard input so that no name can be swapped under the tool.
    pub(crate) device: &'a Fd,
    /// The time after which the child is killed.
    pub(crate) deadline: Duration,
    /// Returns whether the child must be killed; it is called about once a second.
    pub(crate) is_given_up: &'a dyn Fn() -> bool,
    /// Whether the child checks a filesystem: its messages are on standard output too.
    pub(crate) is_fsck: bool,
}

/// The end of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChildEnd {
    /// The exit status of the child; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Whether the child exceeded its deadline and was killed.
    pub(crate) timed_out: bool,
    /// The end of its messages, on one line.
    pub(crate) stderr: String,
}
