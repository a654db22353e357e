//! Faults of a machine while volumes are in use, and the way the kernel reports them.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::btrfs::Features;
use super::disks::DISKS;
use super::mkfs::Stop;
use super::state::{Answer, Mount, Object, State, Superblock};
use super::{Fake, Machine};
use crate::kernel::{BtrfsErrors, Dev, Ext4Error, Ext4Errors, MountAttrs, Surroundings};

/// A fault of a mounted filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The filesystem refuses writes.
    ReadOnly,
    /// The filesystem refuses every call.
    ShutDown,
    /// The filesystem counts this many additional errors, and continues.
    Errors(u64),
}

/// The kernel's treatment of a btrfs that it mistakes for a different, mounted btrfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confusion {
    /// The mount fails with EEXIST.
    Refuses,
    /// The kernel mounts the different btrfs instead of the requested btrfs.
    MountsOther,
}

impl Machine {
    /// Injects this fault into the filesystem that is mounted on `path`.
    pub(crate) fn trouble(&self, path: &Path, trouble: Trouble) {
        let mut state = self.lock();
        let mount = state.walk(path).unwrap().mount;
        let superblock = state.mounts[&mount].superblock;
        let superblock = state.superblocks.get_mut(&superblock).unwrap();
        match trouble {
            Trouble::ReadOnly => superblock.read_only = true,
            Trouble::ShutDown => superblock.shut_down = true,
            Trouble::Errors(count) => superblock.errors += count,
        }
    }

    /// Enables SELinux. If `are_shown`, statmount(2) returns the labels of mounts, as it does since
    /// Linux 6.13.
    pub(crate) fn enable_labels(&self, are_shown: bool) {
        let mut state = self.lock();
        (state.has_labels, state.hides_labels) = (true, !are_shown);
    }

    /// Makes the kernel mistake every btrfs for a different btrfs that is already mounted.
    pub(crate) fn confuse_btrfs(&self, confusion: Confusion) {
        self.lock().btrfs_confusion = Some(confusion);
    }

    /// Refuses leases to all processes, as NFS does.
    pub(crate) fn grant_no_leases(&self) {
        self.lock().grants_no_leases = true;
    }

    /// Sets whether openat2(2) with `RESOLVE_CACHED` finds no names in memory, or all names.
    pub(crate) fn chill_names(&self, is_cold: bool) {
        self.lock().has_cold_names = is_cold;
    }

    /// Makes every lookup in this directory wait for a server that does not respond.
    pub(crate) fn silence(&self, directory: &Path) {
        self.lock().silent = Some(directory.to_owned());
    }

    /// Makes `/dev` accept no new names.
    pub(crate) fn fix_dev(&self) {
        self.lock().has_fixed_dev = true;
    }

    /// Sets the logical block size of all devices.
    pub(crate) fn set_device_block_bytes(&self, bytes: u32) {
        self.lock().device_block_bytes = bytes;
    }

    /// Gives no sequence number to disks that are plugged in later.
    pub(crate) fn count_no_disks(&self) {
        self.lock().has_no_diskseq = true;
    }

    /// Makes all filesystems have project quotas.
    pub(crate) fn keep_quotas(&self) {
        self.lock().has_project_quotas = true;
    }

    /// Makes no filesystem have project quotas, which is the initial state. Without project quotas,
    /// statfs(2) of ext4 and xfs does not wait for the disk.
    pub(crate) fn count_in_memory(&self) {
        self.lock().has_project_quotas = false;
    }

    /// Sets the size and the used bytes of the filesystem that contains the volumes' files.
    pub(crate) fn fill_storage(&self, total_bytes: u64, used_bytes: u64) {
        self.lock().storage = (total_bytes, used_bytes);
    }

    /// Removes the unique IDs of mounts, as before Linux 6.8.
    pub(crate) fn number_no_mounts(&self) {
        self.lock().has_no_mount_ids = true;
    }

    /// Installs a release of mkfs.btrfs that enables these features by default.
    pub(crate) fn renew_btrfs(&self, features: Features) {
        self.lock().tools.btrfs_features = features;
    }

    /// Installs a release of mkfs.xfs that enables these features, bits of `sb_features_incompat`,
    /// by default.
    pub(crate) fn renew_xfs(&self, incompat: u32) {
        self.lock().tools.xfs_incompat = incompat;
    }

    /// Stops tools before they have made a lasting change; `None` lets them complete again.
    pub(crate) fn stop_tools(&self, stop: Option<Stop>) {
        self.lock().tools.stop = stop;
    }

    /// Makes `SEEK_DATA` always return the start of the file.
    pub(crate) fn map_backwards(&self) {
        self.lock().maps_backwards = true;
    }

    /// Mounts a tmpfs over a directory.
    pub(crate) fn cover(&self, folder: &Path) {
        self.cover_by(folder, "tmpfs");
    }

    /// Mounts a filesystem of this type, which has no device, over a directory.
    pub(crate) fn cover_by(&self, folder: &Path, fs_type: &str) {
        let mut state = self.lock();
        let dev = Dev { major: 0, minor: 7 };
        let superblock = state.make_superblock(fs_type, dev, None);
        let mount = state.make_mount(superblock, MountAttrs::default());
        let onto = state.walk(folder).unwrap();
        state.attach(mount, onto, folder).unwrap();
    }

    /// Binds the mount at `from` onto `onto` as well, on top of any mount there, as another agent
    /// may do at the same time.
    pub(crate) fn stack(&self, from: &Path, onto: &Path) {
        let mut state = self.lock();
        let original = state.walk(from).unwrap().mount;
        let onto_location = state.walk(onto).unwrap();
        let mount = Mount {
            name: state.mounts[&original].name.clone(),
            on: None,
            point: PathBuf::new(),
            group: None,
            ..state.mounts[&original]
        };
        let id = state.number();
        state.mounts.insert(id, mount);
        let violations = state.violations.len();
        state.attach(id, onto_location, onto).unwrap();
        state.violations.truncate(violations);
    }

    /// Removes the mount of [`Machine::cover`].
    pub(crate) fn uncover(&self, folder: &Path) {
        self.lock().umount(folder).unwrap();
    }

    /// Unbinds all loop devices that have no mounted filesystem, as `losetup -D` does.
    pub(crate) fn unbind_all(&self) {
        let mut state = self.lock();
        let numbers: Vec<u32> = state
            .loops
            .range(..DISKS)
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            if state.openers(number) == 0 {
                state.flush_cache(number, 0..u64::MAX);
                let diskseq = state.number();
                let device = state.loops.get_mut(&number).unwrap();
                (device.binding, device.diskseq) = (None, diskseq);
            }
        }
        state.clean();
    }
}

impl State {
    /// Creates the superblock, unless the kernel mistakes the device for a different device.
    pub(super) fn fsconfig_create(&mut self, fd: u64, shared: bool) -> Answer<()> {
        let source = self.context(fd)?.source.clone().ok_or(Errno::INVAL)?;
        let number = self.loop_at(self.walk(&source)?)?;
        let is_other = |s: &Superblock| s.fs_type == "btrfs" && s.on.is_some_and(|n| n != number);
        let mut all = self.superblocks.iter();
        let other = all.find(|(_, s)| is_other(s)).map(|(other, _)| *other);
        let confusion = self.btrfs_confusion;
        let context = self.context(fd)?;
        match (confusion, other) {
            (Some(Confusion::Refuses), Some(_)) if context.fs_type == "btrfs" => Err(Errno::EXIST),
            (Some(Confusion::MountsOther), Some(_)) if context.fs_type == "btrfs" => {
                context.superblock = other;
                Ok(())
            }
            _ => self.create_superblock(fd, number, shared),
        }
    }

    pub(super) fn ext4_errors(&self, dev: Dev) -> Option<Ext4Errors> {
        let mut all = self.superblocks.values();
        let found = all.find(|s| s.on.is_some() && s.dev == dev && s.fs_type == "ext4")?;
        let error = (found.errors > 0).then(|| Ext4Error {
            seconds: 1_700_000_000,
            function: "ext4_lookup".to_owned(),
            line: 1780,
            code: 5,
        });
        Some(Ext4Errors {
            warnings: 0,
            count: found.errors,
            first: error.clone(),
            last: error,
        })
    }

    /// Returns the error counters. The simulation reports all errors as failed writes.
    pub(super) fn btrfs_errors(&self, root: u64) -> Answer<BtrfsErrors> {
        let number = self.device_of(root, "btrfs")?;
        let mut all = self.superblocks.values();
        let found = all.find(|s| s.on == Some(number)).ok_or(Errno::NOTTY)?;
        Ok(BtrfsErrors {
            write: found.errors,
            ..BtrfsErrors::default()
        })
    }

    /// Whether the path is in the directory of [`Machine::silence`].
    pub(super) fn is_silent(&self, path: &Path) -> bool {
        let silent = self.silent.as_deref();
        silent.is_some_and(|directory| path != directory && path.starts_with(directory))
    }

    /// Refuses a call as xfs does after it has shut itself down.
    pub(super) fn refuse_shut_down(&self, object: &Object) -> Answer<()> {
        let location = object.location()?;
        let superblock = self.inode(location.ino)?.superblock;
        match self.superblocks[&superblock].shut_down {
            true => Err(Errno::IO),
            false => Ok(()),
        }
    }
}

impl Surroundings for Fake {
    fn is_beside_first_process(&self) -> bool {
        self.machine.lock().is_beside_first_process
    }

    fn realtime(&self) -> u64 {
        self.machine.lock().realtime
    }
}
