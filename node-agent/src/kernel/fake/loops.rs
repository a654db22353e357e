//! Loop devices (drivers/block/loop.c). A bound device keeps the open file description of its file,
//! and thus the description's lock.

use std::collections::btree_map::Entry;
use std::ops::Range;
use std::path::PathBuf;

use rustix::io::Errno;

use super::leftovers::Left;
use super::sparse::Sparse;
use super::state::{Answer, InodeKind, Location, Object, State};
use crate::kernel::{Dev, LoopFile, LoopMode, LoopStatus, Open};

#[derive(Default)]
pub(super) struct Loop {
    pub(super) binding: Option<Binding>,
    /// The device's sequence number. Each binding, unbinding and plugged disk gets a new number.
    pub(super) diskseq: u64,
    /// `Lo_rundown`: the device waits for its last close, and cannot be opened.
    pub(super) running_down: bool,
    /// State that outlives the binding.
    pub(super) left: Left,
}

pub(super) struct Binding {
    pub(super) description: u64,
    pub(super) name: String,
    pub(super) ino: u64,
    pub(super) bytes: u64,
    pub(super) mode: LoopMode,
    /// Writes to the device's page cache that are not in the file yet.
    cache: Vec<Cached>,
}

impl Binding {
    /// Returns the binding of a disk to its medium, which only the disk's removal ends.
    pub(super) fn of_disk(ino: u64, bytes: u64) -> Self {
        Binding {
            description: 0,
            name: String::new(),
            ino,
            bytes,
            mode: LoopMode {
                read_only: false,
                autoclear: false,
            },
            cache: Vec::new(),
        }
    }
}

struct Cached {
    range: Range<u64>,
    change: Change,
}

/// A change of a file's content.
pub(super) type Change = Box<dyn Fn(&mut Sparse) + Send>;

pub(super) fn loop_dev(number: u32) -> Dev {
    Dev {
        major: 7,
        minor: number,
    }
}

impl State {
    /// Returns the lowest number of an unbound device; creates the device if it does not exist.
    pub(super) fn loop_get_free(&mut self) -> u32 {
        let is_free = |number: &u32| {
            let device = self.loops.get(number);
            device.is_none_or(|device| device.binding.is_none())
        };
        let number = (0..).find(is_free).unwrap();
        self.loop_add(number);
        number
    }

    /// Creates the device with this number and its node. Returns `false` if the device exists
    /// already.
    pub(super) fn loop_add(&mut self, number: u32) -> bool {
        let Entry::Vacant(vacant) = self.loops.entry(number) else {
            return false;
        };
        vacant.insert(Loop::default());
        self.add_node(number);
        true
    }

    /// Returns the number of the device's openers: descriptions, mounted filesystems, open
    /// partitions and mappers.
    pub(super) fn openers(&self, number: u32) -> usize {
        let descriptions = self.open.values().filter(|d| d.owner.is_some());
        let by_name = descriptions.filter(|d| d.object.device() == Ok(number));
        let of_partition = self.loops.get(&number).is_some_and(|l| l.left.is_open);
        let others = [self.is_mounted(number), of_partition];
        let others = others.map(usize::from).iter().sum::<usize>();
        by_name.count() + others + usize::from(self.mapper_over(number).is_some())
    }

    fn is_mounted(&self, number: u32) -> bool {
        self.superblocks.values().any(|s| s.on == Some(number))
    }

    /// Whether a mounted filesystem, a mapper or an exclusive descriptor has claimed the device.
    pub(super) fn is_claimed(&self, number: u32) -> bool {
        let is_exclusive = |object: &Object| match object {
            Object::Device {
                number: opened,
                exclusive,
                ..
            } => *exclusive && *opened == number,
            _ => false,
        };
        let mut open = self.open.values().filter(|d| d.owner.is_some());
        self.is_mounted(number)
            || self.mapper_over(number).is_some()
            || open.any(|d| is_exclusive(&d.object))
    }

    pub(super) fn open_device(&self, location: Location, number: u32, how: Open) -> Answer<Object> {
        let device = self.loops.get(&number).ok_or(Errno::NXIO)?;
        if device.running_down {
            return Err(Errno::NXIO);
        }
        let exclusive = how == Open::DeviceExclusive;
        if exclusive && self.is_claimed(number) {
            return Err(Errno::BUSY);
        }
        let buffered = how == Open::FileWrite;
        let writable = how == Open::DeviceWrite || buffered;
        if writable && device.binding.as_ref().is_some_and(|b| b.mode.read_only) {
            return Err(Errno::PERM);
        }
        Ok(Object::Device {
            location,
            number,
            writable,
            exclusive,
            buffered,
        })
    }

    pub(super) fn loop_configure(
        &mut self,
        device: u64,
        file: u64,
        mode: LoopMode,
        name: &str,
    ) -> Answer<()> {
        let Object::Device {
            number, writable, ..
        } = *self.object(device)?
        else {
            return Err(Errno::NOTTY);
        };
        let Object::File {
            location,
            writable: file_writable,
        } = *self.object(file)?
        else {
            return Err(Errno::BADF);
        };
        let is_writable = writable && file_writable;
        if !mode.read_only && !is_writable {
            return Err(Errno::BADF);
        }
        if self.loops[&number].binding.is_some() || self.is_claimed(number) {
            return Err(Errno::BUSY);
        }
        let bound = self.loops.values().filter_map(|l| l.binding.as_ref());
        if bound.filter(|b| b.ino == location.ino).count() > 0 {
            self.violations.push(format!(
                "inode {} is bound to two loop devices",
                location.ino
            ));
        }
        if self.locks.get(&location.ino) != Some(&file) {
            self.violations
                .push(format!("inode {} was bound without its lock", location.ino));
        }
        if !self.loops[&number].left.partitions.is_empty() {
            self.violations
                .push(format!("inode {} was bound under partitions", location.ino));
        }
        let bytes = self.file(location.ino)?.contents.bytes();
        let diskseq = self.number();
        let bound = self.loops.get_mut(&number).unwrap();
        bound.diskseq = diskseq;
        bound.binding = Some(Binding {
            description: file,
            name: name.to_owned(),
            ino: location.ino,
            bytes,
            mode,
            cache: Vec::new(),
        });
        Ok(())
    }

    /// Writes like a process that has the device open without `O_DIRECT`: reads of the device
    /// return the new bytes, but the file does not have them yet.
    pub(super) fn write_cached(
        &mut self,
        number: u32,
        range: Range<u64>,
        change: impl Fn(&mut Sparse) + Send + 'static,
    ) {
        let device = self.loops.get_mut(&number);
        if let Some(binding) = device.and_then(|device| device.binding.as_mut()) {
            let change = Box::new(change);
            binding.cache.push(Cached { range, change });
        }
    }

    /// Writes a range of the device's cache to the file, as a direct read or write does before it
    /// begins.
    pub(super) fn flush_cache(&mut self, number: u32, range: Range<u64>) {
        let overlaps =
            |cached: &Cached| cached.range.start < range.end && range.start < cached.range.end;
        let Some((ino, cached)) = self.take_cache(number, overlaps) else {
            return;
        };
        if let Ok(file) = self.file(ino) {
            for Cached { change, .. } in cached {
                file.contents.change(change);
            }
        }
    }

    /// Simulates a power loss while the device's cache has data.
    pub(super) fn lose_cache(&mut self, number: u32, survives: &mut impl FnMut() -> bool) {
        let Some((ino, cached)) = self.take_cache(number, |_| true) else {
            return;
        };
        if let Ok(file) = self.file(ino) {
            for Cached { change, .. } in cached.into_iter().filter(|_| survives()) {
                file.contents.change(change);
            }
        }
    }

    fn take_cache(
        &mut self,
        number: u32,
        wanted: impl Fn(&Cached) -> bool,
    ) -> Option<(u64, Vec<Cached>)> {
        let binding = self.loops.get_mut(&number)?.binding.as_mut()?;
        let (taken, left) = binding.cache.drain(..).partition(wanted);
        binding.cache = left;
        Some((binding.ino, taken))
    }

    /// Records that the file of a mounted, writable device node may contain a user's data.
    pub(super) fn note_raw_use(&mut self, mount: u64) {
        let Some(number) = self.loop_of(self.mounts[&mount].root) else {
            return;
        };
        let binding = self.loops.get(&number).and_then(|l| l.binding.as_ref());
        if binding.is_some_and(|binding| !binding.mode.read_only) {
            self.note_use(number);
        }
    }

    /// Records that the files of the device may contain a user's data.
    pub(super) fn note_use(&mut self, number: u32) {
        for ino in self.files_of(number) {
            if let Ok(file) = self.file(ino) {
                file.used = true;
            }
        }
    }

    /// Returns the device's binding; `None` while the device is not bound or is running down, and
    /// for a mapper whose disk was removed.
    pub(super) fn binding(&mut self, device: u64) -> Answer<Option<&mut Binding>> {
        let number = self.object(device)?.device()?;
        let below = self.below(number).and_then(|below| self.loops.get(&below));
        let is_cut_off = below.is_some_and(|below| below.running_down);
        let device = self.loops.get_mut(&number).ok_or(Errno::NXIO)?;
        Ok(match device.running_down || is_cut_off {
            true => None,
            false => device.binding.as_mut(),
        })
    }

    pub(super) fn loop_status(&mut self, device: u64) -> Answer<Option<LoopStatus>> {
        let Some(binding) = self.binding(device)? else {
            return Ok(None);
        };
        let (ino, mode, name) = (binding.ino, binding.mode, binding.name.clone());
        let superblock = self.inode(ino)?.superblock;
        Ok(Some(LoopStatus {
            name,
            backing_dev: self.superblocks[&superblock].dev,
            backing_ino: ino,
            mode,
        }))
    }

    pub(super) fn loop_set_autoclear(&mut self, device: u64, autoclear: bool) -> Answer<()> {
        self.binding(device)?.ok_or(Errno::NXIO)?.mode.autoclear = autoclear;
        Ok(())
    }

    pub(super) fn loop_file(&self, number: u32) -> Option<LoopFile> {
        let binding = self.loops.get(&number)?.binding.as_ref()?;
        let mut names = self.mounts.values().flat_map(|mount| self.names_in(mount));
        let named = names.find(|(_, ino)| *ino == binding.ino);
        let path = named.map(|(path, _)| path).unwrap_or_else(|| {
            let opened = &self.open[&binding.description].path;
            PathBuf::from(format!("{opened} (deleted)"))
        });
        let autoclear = binding.mode.autoclear;
        Some(LoopFile { path, autoclear })
    }

    /// Sets AUTOCLEAR. If no other process has the device open, later attempts to open the device
    /// fail.
    pub(super) fn loop_clr_fd(&mut self, device: u64) -> Answer<()> {
        let number = self.object(device)?.device()?;
        let openers = self.openers(number);
        let binding = self.binding(device)?.ok_or(Errno::NXIO)?;
        binding.mode.autoclear = true;
        self.loops.get_mut(&number).unwrap().running_down = openers == 1;
        Ok(())
    }

    pub(super) fn loop_set_capacity(&mut self, device: u64) -> Answer<()> {
        let ino = self.binding(device)?.ok_or(Errno::NXIO)?.ino;
        let bytes = self.file(ino)?.contents.bytes();
        self.binding(device)?.ok_or(Errno::NXIO)?.bytes = bytes;
        Ok(())
    }

    /// Returns the size that the device reports, in bytes; 0 while the device is not bound.
    pub(super) fn device_bytes(&mut self, device: u64) -> Answer<u64> {
        Ok(self.binding(device)?.map_or(0, |binding| binding.bytes))
    }

    /// Returns the inode of the file that a device is bound to.
    pub(super) fn behind(&self, number: u32) -> Option<u64> {
        let device = self.loops.get(&number)?;
        device.binding.as_ref().map(|binding| binding.ino)
    }

    /// Returns the inode of the file that contains a filesystem.
    pub(super) fn backing_of(&self, superblock: u64) -> Answer<u64> {
        let on = self.superblocks.get(&superblock).and_then(|s| s.on);
        on.and_then(|number| self.behind(number))
            .ok_or(Errno::NOTTY)
    }

    /// Returns the number of the device whose node is at `location`.
    pub(super) fn loop_at(&self, location: Location) -> Answer<u32> {
        self.inode(location.ino)?;
        self.loop_of(location.ino).ok_or(Errno::NOTBLK)
    }

    /// Returns the number of the device whose node is this inode.
    pub(super) fn loop_of(&self, ino: u64) -> Option<u32> {
        match self.inodes.get(&ino)?.kind {
            InodeKind::Loop(number) => Some(number),
            _ => None,
        }
    }
}
