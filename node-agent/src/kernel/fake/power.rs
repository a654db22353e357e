//! A power loss: all processes, mounts and loop devices are gone, and any part of the writes since
//! the last fsync may be lost.

use std::path::Path;

use super::state::{File, InodeKind, State};
use super::superblock::BLOCK_BYTES;
use super::{Machine, ext4};

/// The unsynced changes that are on the disk after the power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Survives {
    Nothing,
    Everything,
    /// A pseudorandom part of the changes, selected by this seed.
    Some(u64),
}

impl Survives {
    /// Returns a function that decides whether the next change is on the disk.
    fn decide(self) -> impl FnMut() -> bool {
        let mut state = match self {
            Survives::Some(seed) => seed,
            _ => 0,
        };
        move || match self {
            Survives::Nothing => false,
            Survives::Everything => true,
            Survives::Some(_) => {
                // Steele, Lea, Flood: SplitMix64.
                state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                (mixed ^ (mixed >> 31)) & 1 == 1
            }
        }
    }
}

impl Machine {
    /// Loses the power when the growth of the ext4 in this file to `bytes` is in the journal, but
    /// not in the superblock.
    pub(crate) fn power_off_in_growth(&self, path: &Path, bytes: u64) {
        self.log_growth(path, bytes);
        self.lock().power_off(Survives::Nothing);
    }

    /// Writes the growth of the ext4 in a file to the journal of the ext4, but not to its
    /// superblock.
    pub(crate) fn log_growth(&self, path: &Path, bytes: u64) {
        let mut state = self.lock();
        let contents = &mut state.file_at(path).contents;
        contents.change(move |to| {
            ext4::log(to, bytes / BLOCK_BYTES);
            ext4::leave_dirty(to);
        });
        contents.sync();
    }

    /// Loses the power between two calls.
    pub(crate) fn power_off(&self, survives: Survives) {
        self.lock().power_off(survives);
        self.turn.notify_all();
    }
}

impl State {
    pub(super) fn power_off(&mut self, survives: Survives) {
        self.dead_up_to = self.number();
        self.open.clear();
        self.locks.clear();
        let mut survives = survives.decide();
        let numbers: Vec<u32> = self.loops.keys().copied().collect();
        for number in numbers {
            self.lose_cache(number, &mut survives);
        }
        let dirty = self.writable_ext4();
        self.loops.clear();
        let disks = std::mem::take(&mut self.disks);
        let mut mounts = self.mounts.iter();
        let (host, dev) = (mounts.next().unwrap(), mounts.next().unwrap());
        let kept_mounts = [*host.0, *dev.0];
        let (host, dev) = (host.1.superblock, dev.1.superblock);
        self.mounts.retain(|id, _| kept_mounts.contains(id));
        self.superblocks.retain(|id, _| [host, dev].contains(id));
        let dev_root = self.superblocks[&dev].root;
        self.inodes
            .retain(|ino, inode| inode.superblock == host || *ino == dev_root);
        for inode in self.inodes.values_mut() {
            match &mut inode.kind {
                InodeKind::Directory(names) if inode.superblock == dev => {
                    names.change(std::collections::BTreeMap::clear);
                }
                InodeKind::Directory(names) => names.lose(&mut survives),
                InodeKind::File(file) => file.lose(&mut survives),
                InodeKind::Loop(_) => {}
            }
        }
        for ino in dirty {
            let Ok(file) = self.file(ino) else {
                continue; // Its last name was removed.
            };
            if ext4::blocks(&file.contents).is_some() {
                file.contents.change(ext4::leave_dirty);
                file.contents.sync();
            }
        }
        self.load_device_mapper();
        // A disk that is plugged in remains plugged in during the power loss.
        for disk in disks.into_values().filter(|disk| !disk.is_removed) {
            self.plug(disk.plug);
        }
    }
}

impl State {
    /// Returns the files with the mounted ext4 filesystems whose journal is in use.
    fn writable_ext4(&self) -> Vec<u64> {
        let all = self.superblocks.values();
        let writable = all.filter(|it| it.fs_type == "ext4" && !it.read_only);
        writable.filter_map(|it| self.behind(it.on?)).collect()
    }
}

impl File {
    /// fsync(2).
    pub(super) fn sync(&mut self) {
        self.contents.sync();
        self.attributes.sync();
    }

    fn lose(&mut self, mut survives: impl FnMut() -> bool) {
        self.contents.lose(&mut survives);
        self.attributes.lose(&mut survives);
    }
}
