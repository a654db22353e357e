//! [`Kernel`] on the running kernel: every function makes one system call, or a few.
//!
//! Only this directory of the agent has unsafe code, and only for calls that rustix does not have.
//! The functions decide nothing: the callers interpret a missing file or a busy device.
//!
//! The oldest supported kernel is Linux 5.14. fsopen, open_tree and move_mount (5.2), openat2
//! (5.6), statx with mount IDs (5.8) and mount_setattr (5.12) are therefore required. Only later
//! features have a fallback: statmount and unique mount IDs (6.8), exclusive superblock creation
//! (6.6).

mod block;
mod btrfs;
mod child;
mod disks;
mod files;
mod filesystems;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
pub(crate) mod helper;
mod lease;
mod loopdev;
mod mappers;
mod mount;
mod mountinfo;
pub(crate) mod privileges;
#[cfg(test)]
pub(crate) mod real;
mod ring;
pub(crate) mod sandbox;
mod shut_down;
mod statmount;
mod sysfs;
pub(crate) mod uevent;
#[cfg(test)]
mod verbs;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{
    Cause, Child, ChildEnd, Descriptors, Dev, Error, Kernel, LoopFile, LoopMode, LoopStatus,
    MountAttrs, MountEntry, MountFacts, Open, Openers, Reads, Result, Stat, Surroundings, Usage,
};
use ring::Rings;

/// The running kernel, with the features that it has beyond Linux 5.14.
#[derive(Clone, Debug)]
pub(crate) struct Linux {
    loop_part_shift: u32,
    has_statmount: bool,
    has_exclusive_create: bool,
    mapper_major: mappers::Major,
    rings: Rings,
}

impl Linux {
    /// Detects the kernel's optional features. Changes nothing.
    ///
    /// # Errors
    ///
    /// Returns [`super::Cause::Unsupported`] on a kernel before Linux 5.14.
    pub(crate) fn detect() -> Result<Linux> {
        mount::require_floor()?;
        Ok(Linux {
            loop_part_shift: loopdev::part_shift()?,
            has_statmount: statmount::is_known(),
            has_exclusive_create: mount::is_exclusive_create_known(),
            mapper_major: mappers::Major::detect()?,
            rings: Rings::default(),
        })
    }

    /// Returns the kernel for a helper process, without optional features.
    pub(crate) fn for_helper() -> Linux {
        Linux {
            loop_part_shift: 0,
            has_statmount: false,
            has_exclusive_create: false,
            mapper_major: mappers::Major::default(),
            rings: Rings::default(),
        }
    }

    /// Returns the same kernel, with rings for [`Kernel::pread_at_once`]. Clones share the rings.
    /// Must be called before [`sandbox::enter`].
    ///
    /// # Errors
    /// Returns an error if the kernel refuses io_uring.
    pub(crate) fn with_rings(self) -> Result<Linux> {
        let rings = Rings::open()?;
        Ok(Linux { rings, ..self })
    }
}

impl Surroundings for Linux {
    fn is_beside_first_process(&self) -> bool {
        // A process that may not inspect process 1 cannot compare the two namespaces.
        let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let first = namespace("1");
        std::process::id() != 1 && first.is_some() && first == namespace("thread-self")
    }

    fn realtime(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_secs())
    }
}

impl Descriptors for Linux {
    type Fd = OwnedFd;
}

impl Kernel for Linux {
    fn look(&self, path: &Path) -> Result<Option<Stat>> {
        shut_down::or_described(files::look(path), || shut_down::root(path))
    }

    fn stat(&self, fd: &OwnedFd) -> Result<Stat> {
        shut_down::or_described(files::stat(fd), || shut_down::root_of(fd))
    }

    fn real(&self, path: &Path) -> Result<Option<PathBuf>> {
        files::real(path)
    }

    fn has_no_links(&self, path: &Path) -> Result<Option<bool>> {
        files::has_no_links(path)
    }

    fn statfs(&self, path: &Path) -> Result<Usage> {
        files::statfs(path)
    }

    fn fstatfs(&self, fd: &OwnedFd) -> Result<Usage> {
        files::fstatfs(fd)
    }

    fn open_path(&self, path: &Path) -> Result<OwnedFd> {
        files::open_path(path)
    }

    fn open_path_cached(&self, path: &Path) -> Result<Option<OwnedFd>> {
        files::open_path_cached(path)
    }

    fn open(&self, path: &Path, how: Open) -> Result<OwnedFd> {
        files::open(path, how)
    }

    fn reopen(&self, fd: &OwnedFd, how: Open) -> Result<OwnedFd> {
        files::reopen(fd, how)
    }

    fn open_beneath(&self, dir: &OwnedFd, name: &str, how: Open) -> Result<OwnedFd> {
        files::open_beneath(dir, name, how)
    }

    fn mkdir(&self, path: &Path, mode: u32) -> Result<()> {
        files::mkdir(path, mode)
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        files::rmdir(path)
    }

    fn create_file(&self, path: &Path, mode: u32) -> Result<()> {
        files::create_file(path, mode)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        files::unlink(path)
    }

    fn link(&self, path: &Path, name: &Path) -> Result<()> {
        files::link(path, name)
    }

    fn names(&self, path: &Path) -> Result<Vec<String>> {
        files::names(path)
    }

    fn flock(&self, fd: &OwnedFd) -> Result<bool> {
        files::flock(fd)
    }

    fn openers(&self, fd: &OwnedFd, readers_too: bool) -> Result<Openers> {
        lease::openers(fd, readers_too)
    }

    fn xattr(&self, fd: &OwnedFd, name: &str) -> Result<Option<Vec<u8>>> {
        files::xattr(fd, name)
    }

    fn set_xattr(&self, fd: &OwnedFd, name: &str, value: &[u8]) -> Result<()> {
        files::set_xattr(fd, name, value)
    }

    fn remove_xattr(&self, fd: &OwnedFd, name: &str) -> Result<()> {
        files::remove_xattr(fd, name)
    }

    fn seek_data(&self, fd: &OwnedFd, from: u64) -> Result<Option<u64>> {
        files::seek_data(fd, from)
    }

    fn seek_hole(&self, fd: &OwnedFd, from: u64) -> Result<u64> {
        files::seek_hole(fd, from)
    }

    fn pread(&self, fd: &OwnedFd, buffer: &mut [u8], offset: u64) -> Result<usize> {
        files::pread(fd, buffer, offset)
    }

    fn pread_at_once(&self, fd: &OwnedFd, longest: usize, reads: &mut dyn Reads) -> Result<bool> {
        self.rings.read(fd, longest, reads)
    }

    fn pwrite(&self, fd: &OwnedFd, buffer: &[u8], offset: u64) -> Result<usize> {
        files::pwrite(fd, buffer, offset)
    }

    fn fsync(&self, fd: &OwnedFd) -> Result<()> {
        files::fsync(fd)
    }

    fn device_bytes(&self, fd: &OwnedFd) -> Result<u64> {
        block::device_bytes(fd)
    }

    fn device_block_bytes(&self, fd: &OwnedFd) -> Result<u32> {
        block::device_block_bytes(fd)
    }

    fn diskseq(&self, fd: &OwnedFd) -> Result<u64> {
        block::diskseq(fd)
    }

    fn loop_number(&self, dev: Dev) -> Option<u32> {
        loopdev::number(dev, self.loop_part_shift)
    }

    fn loop_dev(&self, number: u32) -> Dev {
        loopdev::dev(number, self.loop_part_shift)
    }

    fn loop_get_free(&self) -> Result<u32> {
        loopdev::get_free()
    }

    fn loop_add(&self, number: u32) -> Result<bool> {
        loopdev::add(number)
    }

    fn loop_configure(
        &self,
        device: &OwnedFd,
        file: &OwnedFd,
        mode: LoopMode,
        name: &str,
    ) -> Result<()> {
        loopdev::configure(device, file, mode, name)
    }

    fn loop_status(&self, device: &OwnedFd) -> Result<Option<LoopStatus>> {
        loopdev::status(device)
    }

    fn loop_set_autoclear(&self, device: &OwnedFd, autoclear: bool) -> Result<()> {
        loopdev::set_autoclear(device, autoclear)
    }

    fn loop_clr_fd(&self, device: &OwnedFd) -> Result<()> {
        loopdev::clr_fd(device)
    }

    fn loop_set_capacity(&self, device: &OwnedFd) -> Result<()> {
        loopdev::set_capacity(device)
    }

    fn loop_bound(&self) -> Result<Vec<u32>> {
        loopdev::bound()
    }

    fn loop_file(&self, number: u32) -> Result<Option<LoopFile>> {
        sysfs::loop_file(number)
    }

    fn loop_file_name(&self, number: u32) -> Result<Option<OsString>> {
        sysfs::loop_file_name(number)
    }

    fn loop_bytes(&self, number: u32) -> Result<Option<u64>> {
        sysfs::loop_bytes(number)
    }

    fn fsopen(&self, fs_type: &str) -> Result<OwnedFd> {
        mount::fsopen(fs_type)
    }

    fn fsconfig_set(&self, context: &OwnedFd, key: &str, value: Option<&str>) -> Result<()> {
        mount::fsconfig_set(context, key, value)
    }

    fn fsconfig_create(&self, context: &OwnedFd, shared: bool) -> Result<()> {
        mount::fsconfig_create(context, self.has_exclusive_create && !shared)
    }

    fn fsmount(&self, context: &OwnedFd, attrs: MountAttrs) -> Result<OwnedFd> {
        mount::fsmount(context, attrs)
    }

    fn open_tree(&self, fd: &OwnedFd) -> Result<OwnedFd> {
        mount::open_tree(fd)
    }

    fn mount_setattr(&self, mount: &OwnedFd, attrs: MountAttrs) -> Result<()> {
        mount::mount_setattr(mount, attrs)
    }

    fn move_mount(&self, mount: &OwnedFd, onto: &OwnedFd) -> Result<()> {
        mount::move_mount(mount, onto)
    }

    fn umount(&self, path: &Path) -> Result<()> {
        mount::umount(path)
    }

    fn statmount(&self, path: &Path) -> Result<Option<MountFacts>> {
        let found = if self.has_statmount {
            statmount::facts(path)
        } else {
            mountinfo::facts(path)
        };
        match found {
            Err(error) if error.cause() == Cause::Io => match shut_down::root(path)? {
                Some(root) => Ok(Some(root.facts)),
                None => Err(error),
            },
            found => found,
        }
    }

    fn statmount_of(&self, mount_id: u64) -> Result<Option<MountFacts>> {
        if !self.has_statmount || mount_id == 0 {
            return Ok(None);
        }
        statmount::facts_of(mount_id)
            .map_err(|errno| Error::new("statmount", format!("mount {mount_id}"), errno))
    }

    fn mount_label(&self, path: &Path) -> Result<Option<String>> {
        Ok(mountinfo::facts(path)?.and_then(|facts| facts.label))
    }

    fn mount_root(&self, path: &Path, mount_id: u64) -> Result<Option<PathBuf>> {
        match self.has_statmount && mount_id != 0 {
            true => statmount::root_of(mount_id).map_err(|e| Error::at("statmount", path, e)),
            false => mountinfo::root(path),
        }
    }

    fn mount_holding(&self, path: &Path) -> Result<Option<MountFacts>> {
        match self.has_statmount {
            true => statmount::holding(path),
            false => mountinfo::holding(path),
        }
    }

    fn mounts(&self) -> Result<Vec<MountEntry>> {
        mountinfo::entries()
    }

    fn open_root(&self, mount: &OwnedFd) -> Result<OwnedFd> {
        files::open_root(mount)
    }

    fn new_uuid(&self) -> Result<String> {
        files::new_uuid()
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "no event reports the end of EBUSY"
    )]
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn run(&self, child: &Child<'_, OwnedFd>) -> Result<ChildEnd> {
        child::run(child)
    }
}
