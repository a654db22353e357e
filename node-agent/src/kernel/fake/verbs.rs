//! Implements [`Kernel`](crate::kernel::Kernel) on the simulated machine. Each call lists the
//! errnos that are results rather than failures.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use super::answers::{CACHED, GONE, NONE, NOT_MOUNTED, named, text};
use super::disks::DISKS;
use super::loops::loop_dev;
use super::state::{Context, File, InodeKind, Names, Object, State};
use super::{Fake, Fd, mkfs};
use crate::kernel::{
    Cause, Child, ChildEnd, Dev, Kernel, LoopFile, LoopMode, LoopStatus, MountAttrs, MountEntry,
    MountFacts, Open, Openers, Result, Stat, Usage,
};

impl Kernel for Fake {
    fn look(&self, path: &Path) -> Result<Option<Stat>> {
        self.call("statx", text(path), GONE, |state| match state.walk(path) {
            Ok(location) => state.stat_of(location).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        })
    }

    fn stat(&self, fd: &Fd) -> Result<Stat> {
        self.call("statx", named(fd), GONE, |state| {
            state.stat_of(state.object(fd.id)?.location()?)
        })
    }

    fn real(&self, path: &Path) -> Result<Option<PathBuf>> {
        self.call("readlink", text(path), GONE, |state| state.real(path))
    }

    fn has_no_links(&self, path: &Path) -> Result<Option<bool>> {
        self.call("openat2 O_PATH", text(path), GONE, |state| {
            Ok(state.real(path)?.map(|real| real == path))
        })
    }

    fn statfs(&self, path: &Path) -> Result<Usage> {
        self.call("statfs", text(path), NONE, |state| {
            let location = state.walk(path)?;
            state.statfs(location)
        })
    }

    fn fstatfs(&self, fd: &Fd) -> Result<Usage> {
        let is_in_memory = self.machine.lock().counts_of(fd.id);
        let call = ["fstatfs", "fstatfs in memory"][usize::from(is_in_memory)];
        self.call(call, named(fd), NONE, |state| {
            let location = state.object(fd.id)?.location()?;
            state.statfs(location)
        })
    }

    fn open_path(&self, path: &Path) -> Result<Fd> {
        self.open_by("open O_PATH", text(path), GONE, |state| {
            state.walk(path).map(Object::Name)
        })
    }

    fn open_path_cached(&self, path: &Path) -> Result<Option<Fd>> {
        if self.machine.lock().is_silent(path) {
            return Ok(None);
        }
        let opened = self.open_by(CACHED, text(path), GONE, |state| {
            state.walk(path).map(Object::Name)
        });
        opened.map(Some)
    }

    fn open(&self, path: &Path, how: Open) -> Result<Fd> {
        self.open_by("open", text(path), GONE, |state| {
            let location = state.walk(path)?;
            state.open_location(location, how)
        })
    }

    fn reopen(&self, fd: &Fd, how: Open) -> Result<Fd> {
        self.open_by("open", named(fd), GONE, |state| {
            let location = state.object(fd.id)?.location()?;
            state.open_location(location, how)
        })
    }

    fn open_beneath(&self, dir: &Fd, name: &str, how: Open) -> Result<Fd> {
        let path = format!("{}/{name}", named(dir));
        let is_cached = how == Open::NameCached;
        let call = ["openat2", CACHED][usize::from(is_cached)];
        self.open_by(call, path, GONE, |state| {
            state.open_beneath(dir.id, name, how)
        })
    }

    fn mkdir(&self, path: &Path, _: u32) -> Result<()> {
        self.call("mkdir", text(path), NONE, |state| {
            state.create(path, InodeKind::Directory(Names::default()))
        })
    }

    fn rmdir(&self, path: &Path) -> Result<()> {
        self.call("rmdir", text(path), GONE, |state| state.remove(path, true))
    }

    fn create_file(&self, path: &Path, _: u32) -> Result<()> {
        self.call("creat", text(path), NONE, |state| {
            state.create(path, InodeKind::File(File::default()))
        })
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.call("unlink", text(path), GONE, |state| {
            state.remove(path, false)
        })
    }

    fn link(&self, path: &Path, name: &Path) -> Result<()> {
        self.call("link", text(name), NONE, |state| state.link(path, name))
    }

    fn names(&self, path: &Path) -> Result<Vec<String>> {
        self.call("getdents", text(path), GONE, |state| state.names(path))
    }

    fn flock(&self, fd: &Fd) -> Result<bool> {
        self.call("flock", named(fd), NONE, |state| state.flock(fd.id))
    }

    fn openers(&self, fd: &Fd, readers_too: bool) -> Result<Openers> {
        self.call("F_SETLEASE", named(fd), NONE, |state| {
            state.openers_of(fd.id, readers_too)
        })
    }

    fn xattr(&self, fd: &Fd, name: &str) -> Result<Option<Vec<u8>>> {
        let value = self.call("fgetxattr", named(fd), NONE, |state| {
            Ok(state.opened_file(fd.id)?.attributes.get(name).cloned())
        });
        match value {
            Err(error) if error.cause() == Cause::Unsupported => Ok(None),
            value => value,
        }
    }

    fn set_xattr(&self, fd: &Fd, name: &str, value: &[u8]) -> Result<()> {
        self.call("fsetxattr", named(fd), NONE, |state| {
            state.set_attribute(fd.id, name, value)
        })
    }

    fn remove_xattr(&self, fd: &Fd, name: &str) -> Result<()> {
        self.call("fremovexattr", named(fd), NONE, |state| {
            state.remove_attribute(fd.id, name)
        })
    }

    fn seek_data(&self, fd: &Fd, from: u64) -> Result<Option<u64>> {
        self.call("lseek", named(fd), NONE, |state| {
            state.seek(fd.id, from, true)
        })
    }

    fn seek_hole(&self, fd: &Fd, from: u64) -> Result<u64> {
        self.call("lseek", named(fd), NONE, |state| {
            state.seek(fd.id, from, false)?.ok_or(Errno::NXIO)
        })
    }

    fn pread(&self, fd: &Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.call("pread", named(fd), NONE, |state| {
            state.pread(fd.id, buffer, offset)
        })
    }

    fn pwrite(&self, fd: &Fd, buffer: &[u8], offset: u64) -> Result<usize> {
        self.call("pwrite", named(fd), NONE, |state| {
            state.pwrite(fd.id, buffer, offset)
        })
    }

    fn fsync(&self, fd: &Fd) -> Result<()> {
        self.call("fsync", named(fd), NONE, |state| state.fsync(fd.id))
    }

    fn device_bytes(&self, fd: &Fd) -> Result<u64> {
        self.call("BLKGETSIZE64", named(fd), NONE, |state| {
            state.device_bytes(fd.id)
        })
    }

    fn device_block_bytes(&self, fd: &Fd) -> Result<u32> {
        self.call("BLKSSZGET", named(fd), NONE, |state| {
            Ok(state.device_block_bytes)
        })
    }

    fn diskseq(&self, fd: &Fd) -> Result<u64> {
        self.call("BLKGETDISKSEQ", named(fd), NONE, |state| {
            state.diskseq(fd.id)
        })
    }

    fn loop_number(&self, dev: Dev) -> Option<u32> {
        (loop_dev(dev.minor) == dev).then_some(dev.minor)
    }

    fn loop_dev(&self, number: u32) -> Dev {
        loop_dev(number)
    }

    fn loop_get_free(&self) -> Result<u32> {
        let get_free = |state: &mut State| Ok(state.loop_get_free());
        self.call("LOOP_CTL_GET_FREE", "", NONE, get_free)
    }

    fn loop_add(&self, number: u32) -> Result<bool> {
        self.call("LOOP_CTL_ADD", "", NONE, |state| Ok(state.loop_add(number)))
    }

    fn loop_configure(&self, device: &Fd, file: &Fd, mode: LoopMode, name: &str) -> Result<()> {
        self.call("LOOP_CONFIGURE", named(device), NONE, |state| {
            state.loop_configure(device.id, file.id, mode, name)
        })
    }

    fn loop_status(&self, device: &Fd) -> Result<Option<LoopStatus>> {
        self.call("LOOP_GET_STATUS64", named(device), NONE, |state| {
            state.loop_status(device.id)
        })
    }

    fn loop_set_autoclear(&self, device: &Fd, autoclear: bool) -> Result<()> {
        self.call("LOOP_SET_STATUS64", named(device), NONE, |state| {
            state.loop_set_autoclear(device.id, autoclear)
        })
    }

    fn loop_clr_fd(&self, device: &Fd) -> Result<()> {
        let clear = |state: &mut State| state.loop_clr_fd(device.id);
        self.call("LOOP_CLR_FD", named(device), NONE, clear)
    }

    fn loop_set_capacity(&self, device: &Fd) -> Result<()> {
        let adopt = |state: &mut State| state.loop_set_capacity(device.id);
        self.call("LOOP_SET_CAPACITY", named(device), NONE, adopt)
    }

    fn loop_bound(&self) -> Result<Vec<u32>> {
        self.call("getdents", "/sys/block", NONE, |state| {
            let loops = state.loops.range(..DISKS);
            let bound = loops.filter(|(_, l)| l.binding.is_some());
            Ok(bound.map(|(number, _)| *number).collect())
        })
    }

    fn loop_file(&self, number: u32) -> Result<Option<LoopFile>> {
        let name = format!("/sys/block/loop{number}/loop/backing_file");
        self.call("read", name, GONE, |state| Ok(state.loop_file(number)))
    }

    fn loop_bytes(&self, number: u32) -> Result<Option<u64>> {
        let name = format!("/sys/block/loop{number}/size");
        self.call("read", name, GONE, |state| {
            let device = state.loops.get(&number);
            Ok(device.map(|device| device.binding.as_ref().map_or(0, |bound| bound.bytes)))
        })
    }

    fn fsopen(&self, fs_type: &str) -> Result<Fd> {
        self.open_by("fsopen", fs_type, NONE, |_| match fs_type {
            "ext4" | "xfs" | "btrfs" | "nfs" => Ok(Object::Context(Context {
                fs_type: fs_type.to_owned(),
                source: None,
                read_only: false,
                label: None,
                parameters: Vec::new(),
                superblock: None,
            })),
            _ => Err(Errno::NODEV),
        })
    }

    fn fsconfig_set(&self, context: &Fd, key: &str, value: Option<&str>) -> Result<()> {
        self.call("fsconfig", key, NONE, |state| {
            state.fsconfig(context.id, key, value)
        })
    }

    fn fsconfig_create(&self, context: &Fd, shared: bool) -> Result<()> {
        self.call("fsconfig", "create", NONE, |state| {
            match state.context(context.id)?.fs_type.as_str() {
                "nfs" => state.create_served(context.id),
                _ => state.fsconfig_create(context.id, shared),
            }
        })
    }

    fn fsmount(&self, context: &Fd, attrs: MountAttrs) -> Result<Fd> {
        self.open_by("fsmount", "new mount", NONE, |state| {
            state.fsmount(context.id, attrs)
        })
    }

    fn open_tree(&self, fd: &Fd) -> Result<Fd> {
        self.open_by("open_tree", named(fd), NONE, |state| {
            state.clone_mount(fd.id)
        })
    }

    fn mount_setattr(&self, mount: &Fd, attrs: MountAttrs) -> Result<()> {
        self.call("mount_setattr", named(mount), NONE, |state| {
            state.mount_setattr(mount.id, attrs)
        })
    }

    fn move_mount(&self, mount: &Fd, onto: &Fd) -> Result<()> {
        self.call("move_mount", named(onto), NONE, |state| {
            state.move_mount(mount.id, onto.id)
        })
    }

    fn umount(&self, path: &Path) -> Result<()> {
        self.call("umount2", text(path), NOT_MOUNTED, |state| {
            state.umount(path)
        })
    }

    fn statmount(&self, path: &Path) -> Result<Option<MountFacts>> {
        self.call("statmount", text(path), NOT_MOUNTED, |state| {
            state.statmount(path)
        })
    }

    fn statmount_of(&self, mount_id: u64) -> Result<Option<MountFacts>> {
        self.call("statmount", mount_id.to_string(), GONE, |state| {
            Ok(state
                .mounts
                .contains_key(&mount_id)
                .then(|| state.facts(mount_id)))
        })
    }

    fn mount_label(&self, path: &Path) -> Result<Option<String>> {
        self.call("read", "mountinfo", NOT_MOUNTED, |state| {
            let mount = state.walk(path)?.mount;
            let superblock = state.mounts[&mount].superblock;
            Ok(state.superblocks[&superblock].label.clone())
        })
    }

    fn mount_root(&self, path: &Path, _: u64) -> Result<Option<PathBuf>> {
        let root = |state: &mut State| state.mount_root(path);
        self.call("statmount", text(path), NOT_MOUNTED, root)
    }

    fn mount_holding(&self, path: &Path) -> Result<Option<MountFacts>> {
        self.call("statmount", text(path), GONE, |state| {
            let location = state.walk(path)?;
            Ok(Some(state.facts(location.mount)))
        })
    }

    fn mounts(&self) -> Result<Vec<MountEntry>> {
        self.call("read", "mountinfo", NONE, |state| Ok(state.mount_entries()))
    }

    fn open_root(&self, mount: &Fd) -> Result<Fd> {
        self.open_by("openat", named(mount), GONE, |state| {
            let (mount, found) = state.mount_of(mount.id)?;
            let ino = found.root;
            state.open_location(super::state::Location { mount, ino }, Open::Directory)
        })
    }

    fn new_uuid(&self) -> Result<String> {
        self.call("read", "uuid", NONE, |state| Ok(state.new_uuid()))
    }

    fn pause(&self, _: Duration) {}

    fn run(&self, child: &Child<'_, Fd>) -> Result<ChildEnd> {
        mkfs::run(self, child)
    }
}
