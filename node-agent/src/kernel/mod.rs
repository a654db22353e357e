//! The kernel as the agent sees it: one trait of synchronous verbs, named as in the man pages.
//!
//! Everything above speaks to [`Kernel`] and never sees an errno, a raw descriptor or a libc
//! type; [`linux`] is the one place with unsafe code. Nothing in here knows what a volume is.

mod disks;
mod error;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod linux;
mod types;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use disks::{Disk, DiskAt, DiskFacts, Disks, NvmeFacts, ScsiFacts};
pub(crate) use error::{Cause, Error, Result};
pub(crate) use types::{
    AlignedBuf, BtrfsErrors, BtrfsGeometry, Child, ChildEnd, Dev, Ext4Error, Ext4Errors, FileKind,
    LoopFile, LoopMode, LoopStatus, MountAttrs, MountEntry, MountFacts, Open, Openers, Stat, Usage,
    XfsGeometry,
};

/// What the agent asks of the kernel.
///
/// Verbs marked *quick* never wait for a disk or a server (measured on a mount whose server never
/// answers) and may run on the agent's one thread; all others belong on the pool.
pub(crate) trait Kernel: Disks + Send + Sync + 'static {
    /// An open file description. Dropping it closes it, so a held device is dropped on the pool.
    type Fd: Send + Sync + 'static;

    /// statx(2) of the path itself: the last component is not followed, no automount is
    /// triggered, no server is asked. `None` when nothing is there. A filesystem that shut itself
    /// down answers nothing; its root is then described without it, and has no mount id. Quick.
    fn look(&self, path: &Path) -> Result<Option<Stat>>;
    /// [`Kernel::look`] for an open descriptor. Quick.
    fn stat(&self, fd: &Self::Fd) -> Result<Stat>;
    /// open(2) with `O_PATH`, and readlink(2) in /proc of what that found: where a path leads, all
    /// links followed. `None` when nothing is there. Quick.
    fn real(&self, path: &Path) -> Result<Option<PathBuf>>;
    /// openat2(2) with `O_PATH` and `RESOLVE_NO_SYMLINKS`: whether the path leads where its names
    /// say, for want of any link. `None` when nothing is there. Quick.
    fn has_no_links(&self, path: &Path) -> Result<Option<bool>>;
    /// fstatfs(2): asks the filesystem, so a dead one holds the caller.
    fn statfs(&self, path: &Path) -> Result<Usage>;

    /// open(2) with `O_PATH | O_NOFOLLOW`: a name to work on, not its content. Quick.
    fn open_path(&self, path: &Path) -> Result<Self::Fd>;
    /// open(2) of a device node or a directory.
    fn open(&self, path: &Path, how: Open) -> Result<Self::Fd>;
    /// open(2) once more, of what `fd` refers to and nothing else, through its /proc link.
    fn reopen(&self, fd: &Self::Fd, how: Open) -> Result<Self::Fd>;
    /// openat2(2) of one name inside `dir`: no symlink, no other mount, never outside.
    fn open_beneath(&self, dir: &Self::Fd, name: &str, how: Open) -> Result<Self::Fd>;
    /// mkdir(2). Quick on the kubelet's own disk.
    fn mkdir(&self, path: &Path, mode: u32) -> Result<()>;
    /// rmdir(2): refuses what is not empty, which is what makes it the only removal we need.
    fn rmdir(&self, path: &Path) -> Result<()>;
    /// open(2) with `O_CREAT | O_EXCL`: an empty file to bind a device node onto.
    fn create_file(&self, path: &Path, mode: u32) -> Result<()>;
    /// unlink(2).
    fn unlink(&self, path: &Path) -> Result<()>;

    /// flock(2) with `LOCK_EX | LOCK_NB`; `false` when another description holds the lock.
    fn flock(&self, fd: &Self::Fd) -> Result<bool>;
    /// fcntl(2) with `F_SETLEASE`, taken and given back: whether other descriptions have the file
    /// open for writing, or with `readers_too`, for which `fd` must be open for writing, at all.
    /// One opened by [`Open::Name`] does not count, a loop device does. For the moment of the call,
    /// others who open the file wait, or get [`Cause::Again`] where they do not want to.
    fn openers(&self, fd: &Self::Fd, readers_too: bool) -> Result<Openers>;
    /// fgetxattr(2): the attribute's value, if the file has it; nothing of one that is longer than
    /// 64 bytes.
    fn xattr(&self, fd: &Self::Fd, name: &str) -> Result<Option<Vec<u8>>>;
    /// fsetxattr(2).
    fn set_xattr(&self, fd: &Self::Fd, name: &str, value: &[u8]) -> Result<()>;
    /// fremovexattr(2). That it is not there is success.
    fn remove_xattr(&self, fd: &Self::Fd, name: &str) -> Result<()>;
    /// lseek(2) with `SEEK_DATA`: where the next data at or after `from` begins, in bytes;
    /// `None` when only a hole is left.
    fn seek_data(&self, fd: &Self::Fd, from: u64) -> Result<Option<u64>>;
    /// lseek(2) with `SEEK_HOLE`: where the data that covers `from` ends, in bytes.
    fn seek_hole(&self, fd: &Self::Fd, from: u64) -> Result<u64>;
    /// pread(2), one call; the number of bytes read, which may be short.
    fn pread(&self, fd: &Self::Fd, buffer: &mut [u8], offset: u64) -> Result<usize>;
    /// pwrite(2), one call.
    fn pwrite(&self, fd: &Self::Fd, buffer: &[u8], offset: u64) -> Result<usize>;
    /// fsync(2); on a block device it also empties the device's write cache.
    fn fsync(&self, fd: &Self::Fd) -> Result<()>;
    /// `BLKGETSIZE64`: the size of an open block device in bytes. Quick.
    fn device_bytes(&self, fd: &Self::Fd) -> Result<u64>;
    /// `BLKGETDISKSEQ`: see [`Disk::diskseq`]. Quick.
    fn diskseq(&self, fd: &Self::Fd) -> Result<u64>;

    /// The number of the loop device with this device number, if it is one: where the loop driver
    /// makes partitions (`loop.max_part`), minors are not numbers. Quick.
    fn loop_number(&self, dev: Dev) -> Option<u32>;
    /// The device number of the loop device with this number. Quick.
    fn loop_dev(&self, number: u32) -> Dev;
    /// `LOOP_CTL_GET_FREE`: the number of a loop device that was unbound a moment ago.
    fn loop_get_free(&self) -> Result<u32>;
    /// `LOOP_CONFIGURE`, with the first 63 bytes of a name to know it by when its file is renamed
    /// or gone. [`Cause::Busy`] when somebody else took the device meanwhile.
    fn loop_configure(
        &self,
        device: &Self::Fd,
        file: &Self::Fd,
        mode: LoopMode,
        name: &str,
    ) -> Result<()>;
    /// `LOOP_GET_STATUS64`; `None` when the device is not bound. Asks the filesystem of the backing
    /// file, and waits as long as that does not answer: never for a device that may be foreign.
    fn loop_status(&self, device: &Self::Fd) -> Result<Option<LoopStatus>>;
    /// `LOOP_SET_STATUS64`: whether the last close also unbinds.
    fn loop_set_autoclear(&self, device: &Self::Fd, autoclear: bool) -> Result<()>;
    /// `LOOP_CLR_FD`: unbinds once the last descriptor is closed, this one included, so what became
    /// of it shows only afterwards. Ten milliseconds cheaper than setting AUTOCLEAR, which stops
    /// the device's queue.
    fn loop_clr_fd(&self, device: &Self::Fd) -> Result<()>;
    /// `LOOP_SET_CAPACITY`: takes over a changed size of the backing file.
    fn loop_set_capacity(&self, device: &Self::Fd) -> Result<()>;
    /// The numbers of all bound loop devices, from sysfs. Quick.
    fn loop_bound(&self) -> Result<Vec<u32>>;
    /// What is behind a loop device, from sysfs; `None` when it is not bound. Quick.
    fn loop_file(&self, number: u32) -> Result<Option<LoopFile>>;
    /// The last name of the file of a bound loop device, as in [`Kernel::loop_file`] and by one
    /// read. Quick.
    fn loop_file_name(&self, number: u32) -> Result<Option<OsString>> {
        let file = self.loop_file(number)?;
        Ok(file.and_then(|file| file.path.file_name().map(ToOwned::to_owned)))
    }

    /// The size of a loop device in bytes, from sysfs; `None` when there is no such device. Quick.
    fn loop_bytes(&self, number: u32) -> Result<Option<u64>>;

    /// fsopen(2). Quick.
    fn fsopen(&self, fs_type: &str) -> Result<Self::Fd>;
    /// fsconfig(2) with a string, or with a flag where there is no value. Quick.
    fn fsconfig_set(&self, context: &Self::Fd, key: &str, value: Option<&str>) -> Result<()>;
    /// fsconfig(2) that builds the superblock: reads the disk, replays the journal. Unless
    /// `shared`, it refuses one that is mounted already, where the kernel can tell (Linux 6.6).
    fn fsconfig_create(&self, context: &Self::Fd, shared: bool) -> Result<()>;
    /// `FITHAW`: ends a freeze, after which alone a filesystem can be unmounted for good. That it
    /// is not frozen is success.
    fn thaw(&self, root: &Self::Fd) -> Result<()>;
    /// fsmount(2): a mount that is not attached anywhere yet. Quick.
    fn fsmount(&self, context: &Self::Fd, attrs: MountAttrs) -> Result<Self::Fd>;
    /// open_tree(2) with `OPEN_TREE_CLONE`: a copy of just the mount that `fd` is in. Quick.
    fn open_tree(&self, fd: &Self::Fd) -> Result<Self::Fd>;
    /// mount_setattr(2): sets `attrs` and makes the mount private, in one step. Quick.
    fn mount_setattr(&self, mount: &Self::Fd, attrs: MountAttrs) -> Result<()>;
    /// move_mount(2) onto an open directory or file. It would stack silently on a mount that is
    /// already there, so callers look first. Quick.
    fn move_mount(&self, mount: &Self::Fd, onto: &Self::Fd) -> Result<()>;
    /// umount2(2) with `UMOUNT_NOFOLLOW`: waits for write-back when it is the last reference.
    fn umount(&self, path: &Path) -> Result<()>;
    /// statmount(2) of the mount that is on `path`: type and attributes, nothing that could hang.
    /// Without statmount (before Linux 6.8) mountinfo is read instead.
    fn statmount(&self, path: &Path) -> Result<Option<MountFacts>>;
    /// [`Kernel::statmount`] by the id of a [`Stat`]; `None` when the mount is gone, and where the
    /// kernel has no such ids (before Linux 6.8). Quick.
    fn statmount_of(&self, mount_id: u64) -> Result<Option<MountFacts>>;
    /// [`Kernel::statmount`] of the mount that `path` is in, its root or not.
    fn mount_holding(&self, path: &Path) -> Result<Option<MountFacts>>;
    /// Whether the mount namespace is the one of process 1 as /proc has it, and that is not this
    /// process. Quick.
    fn is_beside_first_process(&self) -> bool;
    /// Every mount of the namespace, also those that lie beneath others, from mountinfo. Read when
    /// the agent starts, where a path does not show any more what was mounted there, and before a
    /// device is freed that stays bound by itself.
    fn mounts(&self) -> Result<Vec<MountEntry>>;
    /// A directory of a detached mount as an ordinary descriptor, for ioctls.
    fn open_root(&self, mount: &Self::Fd) -> Result<Self::Fd>;

    /// `EXT4_IOC_RESIZE_FS` to a number of filesystem blocks. Needs `CAP_SYS_RESOURCE`.
    fn ext4_resize(&self, root: &Self::Fd, blocks: u64) -> Result<()>;
    /// The errors that the ext4 mounted from a device has counted, from sysfs; `None` when there is
    /// no such filesystem. Quick.
    fn ext4_errors(&self, dev: Dev) -> Result<Option<Ext4Errors>>;
    /// `XFS_IOC_FSGEOMETRY`.
    fn xfs_geometry(&self, root: &Self::Fd) -> Result<XfsGeometry>;
    /// `XFS_IOC_FSGROWFSDATA` to a number of filesystem blocks, the inode share kept as it is.
    fn xfs_grow(&self, root: &Self::Fd, blocks: u64, imaxpct: u32) -> Result<()>;

    /// `BTRFS_IOC_FS_INFO` and the list in sysfs: the block device of a mounted btrfs; `None` when
    /// it has several.
    fn btrfs_device(&self, root: &Self::Fd) -> Result<Option<Dev>>;
    /// `BTRFS_IOC_FS_INFO` and `BTRFS_IOC_DEV_INFO`.
    fn btrfs_geometry(&self, root: &Self::Fd) -> Result<BtrfsGeometry>;
    /// `BTRFS_IOC_GET_DEV_STATS`.
    fn btrfs_errors(&self, root: &Self::Fd) -> Result<BtrfsErrors>;
    /// `BTRFS_IOC_RESIZE` of the filesystem's device number `id` to all of its block device.
    fn btrfs_grow(&self, root: &Self::Fd, id: u64) -> Result<()>;

    /// A random UUID as text: /proc/sys/kernel/random/uuid (random(4)). Quick.
    fn new_uuid(&self) -> Result<String>;
    /// nanosleep(2), for [`while_busy`] alone.
    fn pause(&self, time: Duration);
    /// Runs mkfs or fsck to its end, with the device as its standard input, killed at the
    /// deadline and when the agent dies.
    fn run(&self, child: &Child<'_, Self::Fd>) -> Result<ChildEnd>;
}

/// How long something that passes by itself is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// 31 ms in all: what is truly in use shall be told soon.
    Moment,
    /// One second: nobody should have it any more, and the caller would only come again.
    Second,
}

impl Patience {
    /// The pauses between looks, in milliseconds.
    fn pauses_ms(self) -> &'static [u64] {
        const ALL: [u64; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];
        match self {
            Patience::Moment => &ALL[..5],
            Patience::Second => &ALL,
        }
    }
}

/// Repeats `attempt` while its result says that something is in use, as long as patience lasts.
///
/// Others hold devices and mounts for moments: udev looks into what has changed, and a child that
/// is being started has copies of all our descriptors until it execs. No event tells when they let
/// go.
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

/// The call failed because something is in use.
pub(crate) fn failed_busy<T>(result: &Result<T>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.cause() == Cause::Busy)
}
