//! The kernel as the agent sees it: one trait of synchronous calls, named after the system calls
//! and ioctls that they make.
//!
//! Other modules use only [`Kernel`], and never see an errno, a raw descriptor or a libc type. Only
//! [`linux`] has unsafe code. This module knows nothing about volumes.

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

use belay_contract::drivers::local::HOME_BYTES_MAX;

pub(crate) use disks::{Disk, DiskAt, DiskFacts, Disks, Mapper, Mappers, NvmeFacts, ScsiFacts};
pub(crate) use error::{Cause, Error, Patience, Result, failed_busy, while_busy};
pub(crate) use remote::{Answer, Answered, Helper, MountSource, RemoteCall, RemoteMount, Remotes};
pub(crate) use types::{
    AlignedBuf, BtrfsDevice, BtrfsErrors, BtrfsGeometry, Dev, Ext4Error, Ext4Errors, FileKind,
    Inode, LoopFile, LoopMode, LoopStatus, MountAttrs, MountEntry, MountFacts, Open, Openers, Stat,
    Usage, XfsGeometry,
};

/// Maximum length of the value of an extended attribute in bytes; a longer one is unknown to Belay.
pub(crate) const XATTR_BYTES_MAX: usize = HOME_BYTES_MAX;

/// Open file descriptions.
pub(crate) trait Descriptors {
    /// An open file description. Dropping the value closes the description, which may block, so the
    /// descriptor of a device is dropped on the thread pool.
    type Fd: Send + Sync + 'static;
}

/// Calls on mounted filesystems.
pub(crate) trait Filesystems: Descriptors {
    /// `FITHAW`: thaws a frozen filesystem. Unmounting a frozen filesystem does not release its
    /// device. Succeeds if the filesystem is not frozen.
    fn thaw(&self, root: &Self::Fd) -> Result<()>;
    /// `EXT4_IOC_RESIZE_FS`: grows an ext4 to `blocks` filesystem blocks. Needs `CAP_SYS_RESOURCE`.
    fn ext4_resize(&self, root: &Self::Fd, blocks: u64) -> Result<()>;
    /// Reads from sysfs the error counters of the ext4 that is mounted from a device. Returns
    /// `None` if no ext4 is mounted from the device. Does not block.
    fn ext4_errors(&self, dev: Dev) -> Result<Option<Ext4Errors>>;
    /// `XFS_IOC_FSGEOMETRY`: returns the geometry of an xfs.
    fn xfs_geometry(&self, root: &Self::Fd) -> Result<XfsGeometry>;
    /// `XFS_IOC_FSGROWFSDATA`: grows an xfs to `blocks` filesystem blocks. `imaxpct` must be the
    /// present value of [`XfsGeometry::imaxpct`].
    fn xfs_grow(&self, root: &Self::Fd, blocks: u64, imaxpct: u32) -> Result<()>;
    /// `BTRFS_IOC_FS_INFO` and the list in sysfs: returns the block device of a mounted btrfs.
    fn btrfs_device(&self, root: &Self::Fd) -> Result<BtrfsDevice>;
    /// `BTRFS_IOC_FS_INFO` and `BTRFS_IOC_DEV_INFO`: returns the number and size of the devices of
    /// a btrfs.
    fn btrfs_geometry(&self, root: &Self::Fd) -> Result<BtrfsGeometry>;
    /// `BTRFS_IOC_GET_DEV_STATS`: returns the error counters of a btrfs.
    fn btrfs_errors(&self, root: &Self::Fd) -> Result<BtrfsErrors>;
    /// `BTRFS_IOC_RESIZE`: grows the filesystem on its device `id` to the size of that block
    /// device.
    fn btrfs_grow(&self, root: &Self::Fd, id: u64) -> Result<()>;
    /// syncfs(2): writes all cached data of the filesystem that contains `root` to its disk.
    fn syncfs(&self, root: &Self::Fd) -> Result<()>;
}

/// State of a loop device number that outlives the binding to a file, and applies to the next file.
pub(crate) trait Leftovers: Descriptors {
    /// Returns the names of a loop device's partitions, from sysfs. `LOOP_CLR_FD` removes only
    /// partitions that the kernel has found itself, and no agent binds with `LO_FLAGS_PARTSCAN`.
    /// Makes only one system call, statx(2), if the device has no partitions and `is_bound` is
    /// correct. Does not block.
    fn loop_partitions(&self, number: u32, is_bound: bool) -> Result<Vec<String>>;
    /// `LOOP_CTL_REMOVE`: removes the loop device with all state that outlives its binding;
    /// `LOOP_CTL_GET_FREE` creates it again. Returns `false` while the device is bound, or while
    /// the device or one of its partitions is open. Takes about 50 ms.
    fn loop_remove(&self, number: u32) -> Result<bool>;
    /// fstat(2): whether only root, and the members of a group, may open the device node. A bind
    /// mount of a raw volume shows the node itself, so users of the volume may change its mode.
    fn is_private(&self, device: &Self::Fd) -> Result<bool>;
    /// `BLKROSET` with 0: makes a device writable again that `BLKROSET` with 1 has made read-only.
    /// A device that is bound read-only remains read-only.
    fn allow_writes(&self, device: &Self::Fd) -> Result<()>;
    /// `BLKROGET`: whether the device is read-only, either by `BLKROSET` or because it is bound
    /// read-only.
    fn refuses_writes(&self, device: &Self::Fd) -> Result<bool>;
    /// Sets `queue/write_cache` in sysfs to "write back", as it must be for a device that is bound
    /// for writing. Since Linux 6.11, "write through" outlives the binding, and the kernel then
    /// drops the flushes of an fsync(2).
    fn loop_allow_flushes(&self, number: u32) -> Result<()>;
}

/// The agent's mount namespace and clock.
pub(crate) trait Surroundings {
    /// Whether this process shares its mount namespace with process 1 in /proc, and is not process
    /// 1 itself. Does not block.
    fn is_beside_first_process(&self) -> bool;
    /// Returns the wall clock in seconds since 1970: clock_gettime(2) of CLOCK_REALTIME, which
    /// makes no system call.
    fn realtime(&self) -> u64;
}

/// The ranges of a disk to read, and the receiver of their bytes.
pub(crate) trait Reads {
    /// Returns the next range: its offset and length in bytes, which are multiples of the alignment
    /// that `O_DIRECT` requires. Returns `None` from then on if there are no more ranges.
    fn next(&mut self) -> Option<(u64, usize)>;
    /// Receives the bytes of a range, fewer if the read was short. The ranges arrive in any order.
    fn take(&mut self, range: (u64, usize), bytes: &[u8]);
}

/// The system calls that the agent uses.
///
/// Calls marked *Does not block* never wait for a disk or a server (measured on a mount whose
/// server never responds) and may run on the agent's event loop. All other calls belong on the
/// thread pool. Calls that take a path do not block if all names of the path are in memory;
/// [`Kernel::open_path_cached`] checks this.
pub(crate) trait Kernel:
    Filesystems + Leftovers + Surroundings + Disks + Mappers + Remotes + Send + Sync + 'static
{
    /// statx(2) of the path itself. Does not follow a symlink in the last component, triggers no
    /// automount and sends no request to a server. Returns `None` if the path does not exist. A
    /// filesystem that has shut itself down refuses statx; its root is then described from
    /// mountinfo, without a mount ID. Does not block.
    fn look(&self, path: &Path) -> Result<Option<Stat>>;
    /// statx(2) of an open descriptor, like [`Kernel::look`]. Does not block.
    fn stat(&self, fd: &Self::Fd) -> Result<Stat>;
    /// open(2) with `O_PATH`, then readlink(2) of the descriptor's link in /proc: returns the path
    /// with all symlinks resolved. Returns `None` if the path does not exist. Does not block.
    fn real(&self, path: &Path) -> Result<Option<PathBuf>>;
    /// openat2(2) with `O_PATH` and `RESOLVE_NO_SYMLINKS`: whether no component of the path is a
    /// symlink. Returns `None` if the path does not exist. Does not block.
    fn has_no_links(&self, path: &Path) -> Result<Option<bool>>;
    /// statfs(2): queries the filesystem, so a hung filesystem blocks the caller. The call cannot
    /// block if the kernel [keeps the usage in memory](MountFacts::counts_in_memory) and the
    /// filesystem has no project quotas.
    fn statfs(&self, path: &Path) -> Result<Usage>;
    /// statfs(2) of the filesystem that an open descriptor refers to, like [`Kernel::statfs`].
    fn fstatfs(&self, fd: &Self::Fd) -> Result<Usage>;

    /// open(2) with `O_PATH | O_NOFOLLOW`: the descriptor refers to the file's location, not to its
    /// content (open(2)). Queries each filesystem on the way whose names are not in memory.
    fn open_path(&self, path: &Path) -> Result<Self::Fd>;
    /// [`Kernel::open_path`] by openat2(2) with `RESOLVE_CACHED`, which queries no filesystem.
    /// Returns `None` unless every name of the path is in memory and known to be valid. Does not
    /// block.
    fn open_path_cached(&self, path: &Path) -> Result<Option<Self::Fd>>;
    /// open(2) of a device node or a directory.
    fn open(&self, path: &Path, how: Open) -> Result<Self::Fd>;
    /// open(2) of the descriptor's link in /proc, which opens exactly the file that `fd` refers to.
    fn reopen(&self, fd: &Self::Fd, how: Open) -> Result<Self::Fd>;
    /// openat2(2) of a name in `dir`: follows no symlink, crosses no mount and never leaves `dir`.
    fn open_beneath(&self, dir: &Self::Fd, name: &str, how: Open) -> Result<Self::Fd>;
    /// mkdir(2). Does not block on the kubelet's own disk.
    fn mkdir(&self, path: &Path, mode: u32) -> Result<()>;
    /// rmdir(2): fails if the directory is not empty. The agent removes directories only by this
    /// call.
    fn rmdir(&self, path: &Path) -> Result<()>;
    /// open(2) with `O_CREAT | O_EXCL`: creates an empty file, as the mount point of a device node.
    fn create_file(&self, path: &Path, mode: u32) -> Result<()>;
    /// unlink(2).
    fn unlink(&self, path: &Path) -> Result<()>;
    /// link(2): adds the name `name` to the file `path`, on the same mount. Does not block in
    /// `/dev`.
    fn link(&self, path: &Path, name: &Path) -> Result<()>;
    /// Returns the names in a directory; empty if the directory does not exist. Does not block in
    /// `/dev`.
    fn names(&self, path: &Path) -> Result<Vec<String>>;

    /// flock(2) with `LOCK_EX | LOCK_NB`. Returns `false` if another open file description holds
    /// the lock.
    fn flock(&self, fd: &Self::Fd) -> Result<bool>;
    /// fcntl(2) with `F_SETLEASE`, released immediately. Returns whether other open file
    /// descriptions have the file open for writing. With `readers_too`, readers are included, and
    /// `fd` must be open for writing. A description opened with [`Open::Name`] is ignored, but the
    /// description of a loop device is not. While the lease is held, another process that opens the
    /// file waits, or gets [`Cause::Again`] with `O_NONBLOCK`.
    fn openers(&self, fd: &Self::Fd, readers_too: bool) -> Result<Openers>;
    /// fgetxattr(2): returns the attribute's value; empty if the value is longer than
    /// [`XATTR_BYTES_MAX`]. Returns `None` if the file does not have the attribute, or its
    /// filesystem has no attributes of this kind.
    fn xattr(&self, fd: &Self::Fd, name: &str) -> Result<Option<Vec<u8>>>;
    /// fsetxattr(2).
    fn set_xattr(&self, fd: &Self::Fd, name: &str, value: &[u8]) -> Result<()>;
    /// fremovexattr(2). Also succeeds if the file does not have the attribute.
    fn remove_xattr(&self, fd: &Self::Fd, name: &str) -> Result<()>;
    /// lseek(2) with `SEEK_DATA`: returns the offset of the next data at or after `from`, in bytes;
    /// `None` if only a hole follows.
    fn seek_data(&self, fd: &Self::Fd, from: u64) -> Result<Option<u64>>;
    /// lseek(2) with `SEEK_HOLE`: returns the end of the data that contains `from`, in bytes.
    fn seek_hole(&self, fd: &Self::Fd, from: u64) -> Result<u64>;
    /// pread(2), one call: returns the number of bytes read, which may be fewer than requested.
    fn pread(&self, fd: &Self::Fd, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// Reads many ranges of a disk, several at once. `longest` is the length in bytes of the
    /// longest range. Returns `false` if this kernel or this disk does not support this, or stops
    /// supporting it in between. Then `reads` has received the failed ranges with no bytes, and
    /// still returns the remaining ranges.
    ///
    /// # Errors
    /// Returns the error of the first read that fails, after which no further range is read.
    fn pread_at_once(&self, _: &Self::Fd, _longest: usize, _: &mut dyn Reads) -> Result<bool> {
        Ok(false)
    }
    /// pwrite(2), one call: returns the number of bytes written.
    fn pwrite(&self, fd: &Self::Fd, buffer: &[u8], offset: u64) -> Result<usize>;
    /// fsync(2); on a block device it also flushes the device's write cache.
    fn fsync(&self, fd: &Self::Fd) -> Result<()>;
    /// `BLKGETSIZE64`: returns the size of an open block device in bytes. Does not block.
    fn device_bytes(&self, fd: &Self::Fd) -> Result<u64>;
    /// `BLKSSZGET`: returns the logical block size of an open block device in bytes. Does not
    /// block.
    fn device_block_bytes(&self, fd: &Self::Fd) -> Result<u32>;
    /// `BLKGETDISKSEQ`: returns the device's sequence number, described at [`Disk::diskseq`]. Does
    /// not block.
    fn diskseq(&self, fd: &Self::Fd) -> Result<u64>;

    /// Returns the number of the loop device with this device number; `None` for other devices.
    /// With `loop.max_part`, the minor number differs from the loop device's number. Does not
    /// block.
    fn loop_number(&self, dev: Dev) -> Option<u32>;
    /// Returns the device number of the loop device with this number. Does not block.
    fn loop_dev(&self, number: u32) -> Dev;
    /// `LOOP_CTL_GET_FREE`: returns the number of a loop device that was unbound at the time of the
    /// call.
    fn loop_get_free(&self) -> Result<u32>;
    /// `LOOP_CTL_ADD`: creates the loop device with this number. Returns `false` if the device
    /// exists already.
    fn loop_add(&self, number: u32) -> Result<bool>;
    /// `LOOP_CONFIGURE`: binds the device to `file`. The first 63 bytes of `name` identify the
    /// device even after its file is renamed or deleted. Fails with [`Cause::Busy`] if another
    /// process has bound the device.
    fn loop_configure(
        &self,
        device: &Self::Fd,
        file: &Self::Fd,
        mode: LoopMode,
        name: &str,
    ) -> Result<()>;
    /// `LOOP_GET_STATUS64`; `None` if the device is not bound. Queries the filesystem of the
    /// backing file and waits for the response, so it must never be called for a device that
    /// another program may have bound.
    fn loop_status(&self, device: &Self::Fd) -> Result<Option<LoopStatus>>;
    /// `LOOP_SET_STATUS64`: sets or clears AUTOCLEAR (unbind at the last close).
    fn loop_set_autoclear(&self, device: &Self::Fd, autoclear: bool) -> Result<()>;
    /// `LOOP_CLR_FD`: unbinds the device when its last descriptor is closed, including `device`, so
    /// the result is visible only afterwards. `LOOP_CLR_FD` is ten milliseconds faster than setting
    /// AUTOCLEAR, which freezes the device's queue.
    fn loop_clr_fd(&self, device: &Self::Fd) -> Result<()>;
    /// `LOOP_SET_CAPACITY`: adopts a changed size of the backing file.
    fn loop_set_capacity(&self, device: &Self::Fd) -> Result<()>;
    /// Returns the numbers of all bound loop devices, from sysfs. Does not block.
    fn loop_bound(&self) -> Result<Vec<u32>>;
    /// Returns the backing file of a loop device, from sysfs; `None` if the device is not bound.
    /// Does not block.
    fn loop_file(&self, number: u32) -> Result<Option<LoopFile>>;
    /// Returns the last component of [`LoopFile::path`], with a single read of sysfs. Does not
    /// block.
    fn loop_file_name(&self, number: u32) -> Result<Option<OsString>> {
        let file = self.loop_file(number)?;
        Ok(file.and_then(|file| file.path.file_name().map(ToOwned::to_owned)))
    }

    /// Returns the size of a loop device in bytes, from sysfs; `None` if there is no such device.
    /// Does not block.
    fn loop_bytes(&self, number: u32) -> Result<Option<u64>>;

    /// fsopen(2): creates a filesystem context. Does not block.
    fn fsopen(&self, fs_type: &str) -> Result<Self::Fd>;
    /// fsconfig(2): sets a parameter to a string, or sets a flag if `value` is `None`. Does not
    /// block.
    fn fsconfig_set(&self, context: &Self::Fd, key: &str, value: Option<&str>) -> Result<()>;
    /// fsconfig(2) with `FSCONFIG_CMD_CREATE`: creates the superblock, which reads the disk and
    /// replays the journal. Unless `shared`, refuses a superblock that is already mounted, if the
    /// kernel supports this (Linux 6.6).
    fn fsconfig_create(&self, context: &Self::Fd, shared: bool) -> Result<()>;
    /// fsmount(2): creates a detached mount. Does not block.
    fn fsmount(&self, context: &Self::Fd, attrs: MountAttrs) -> Result<Self::Fd>;
    /// open_tree(2) with `OPEN_TREE_CLONE`: returns a detached copy of the mount that contains
    /// `fd`. Does not block.
    fn open_tree(&self, fd: &Self::Fd) -> Result<Self::Fd>;
    /// mount_setattr(2): sets `attrs` and makes the mount private, in one step. Does not block.
    fn mount_setattr(&self, mount: &Self::Fd, attrs: MountAttrs) -> Result<()>;
    /// move_mount(2) onto an open directory or file. The call silently stacks the mount on an
    /// existing mount, so callers check first. Does not block.
    fn move_mount(&self, mount: &Self::Fd, onto: &Self::Fd) -> Result<()>;
    /// umount2(2) with `UMOUNT_NOFOLLOW`: waits for write-back if it drops the last reference.
    fn umount(&self, path: &Path) -> Result<()>;
    /// statmount(2) of the mount on `path`: returns its type and attributes without querying the
    /// filesystem, which could hang. Reads mountinfo instead if the kernel has no statmount (before
    /// Linux 6.8).
    fn statmount(&self, path: &Path) -> Result<Option<MountFacts>>;
    /// [`Kernel::statmount`] by a [`Stat::mount_id`]. Returns `None` if the mount no longer exists,
    /// and on kernels without unique mount IDs (before Linux 6.8). Does not block.
    fn statmount_of(&self, mount_id: u64) -> Result<Option<MountFacts>>;
    /// Returns the SELinux label of all files of the mount on `path`, from mountinfo; `None` if the
    /// filesystem was mounted without `context=`.
    fn mount_label(&self, path: &Path) -> Result<Option<String>>;
    /// Returns the directory of the filesystem that is mounted on `path`, as in
    /// [`MountEntry::root`]; `mount_id` is the mount's [`Stat::mount_id`]. Returns `None` if the
    /// mount no longer exists. Does not block; without statmount(2) it reads mountinfo.
    fn mount_root(&self, path: &Path, mount_id: u64) -> Result<Option<PathBuf>>;
    /// [`Kernel::statmount`] of the mount that contains `path`, which need not be the mount's root.
    fn mount_holding(&self, path: &Path) -> Result<Option<MountFacts>>;
    /// Returns every mount of the namespace, from mountinfo, including mounts hidden by other
    /// mounts. The agent reads the mounts at startup, because a later mount may hide a volume's
    /// mount, and before the agent frees a device without AUTOCLEAR.
    fn mounts(&self) -> Result<Vec<MountEntry>>;
    /// Opens the root directory of a detached mount, for ioctls.
    fn open_root(&self, mount: &Self::Fd) -> Result<Self::Fd>;

    /// Returns a random UUID as text: /proc/sys/kernel/random/uuid (random(4)). Does not block.
    fn new_uuid(&self) -> Result<String>;
    /// nanosleep(2), for [`while_busy`], and for a turn to derive a key.
    fn pause(&self, time: Duration);
    /// Runs a tool until it exits, with the device as its standard input. The child is killed
    /// at the deadline, and when the agent exits.
    fn run(&self, child: &Child<'_, Self::Fd>) -> Result<ChildEnd>;
}

/// The paths by which a child opens [`Child::keys`].
pub(crate) const KEYS: [&str; 2] = ["/proc/self/fd/3", "/proc/self/fd/4"];

/// A program to run on a device, which the program opens as `/proc/self/fd/0`.
pub(crate) struct Child<'a, Fd> {
    /// The tool's file name, which is searched for in the system directories, never in `PATH`.
    pub(crate) program: &'static str,
    /// The tool's arguments.
    pub(crate) args: Vec<String>,
    /// The device, passed as standard input so that no other device can be swapped in under its
    /// name. `None` if the program needs no device.
    pub(crate) device: Option<&'a Fd>,
    /// Files with keys, which the program opens as [`KEYS`]. A program with a key has a limit for
    /// its memory.
    pub(crate) keys: &'a [&'a Fd],
    /// The time after which the child is killed.
    pub(crate) deadline: Duration,
    /// Returns whether the child must be killed. Called about once a second while the child runs.
    pub(crate) is_given_up: &'a dyn Fn() -> bool,
    /// Whether the child is a checker of filesystems, which also writes messages to standard
    /// output.
    pub(crate) is_fsck: bool,
}

/// The result of a child process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChildEnd {
    /// The exit status of the child; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    /// Whether the child exceeded its deadline and was killed.
    pub(crate) timed_out: bool,
    /// The last part of the child's messages, joined to one line.
    pub(crate) stderr: String,
    /// The limit of the address space in bytes of a child that derives a key.
    pub(crate) memory_max: Option<u64>,
}
