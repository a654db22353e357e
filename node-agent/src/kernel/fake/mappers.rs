//! Mappers of encrypted devices (drivers/md/dm.c). The simulation does not encrypt: the content of
//! a mapper is a file without a name, which belongs to the volume key in the header of the device
//! below. Bytes that were never written are noise.

use std::collections::BTreeMap;
use std::path::Path;

use belay_contract::encryption::HEADER_BYTES;
use rustix::io::Errno;

use super::answers::{GONE, NONE};
use super::cryptsetup::key_of;
use super::disks::device_dev;
use super::leftovers::Left;
use super::loops::{Binding, Loop};
use super::state::{Answer, File, InodeKind, Location, Object, State};
use super::{Fake, Fd, Machine};
use crate::kernel::{Dev, Mapper, Mappers, Result};

/// The first mapper number; loop devices and disks have lower numbers.
pub(super) const MAPPERS: u32 = 1 << 17;
/// The major number of mappers, which the real kernel assigns dynamically.
pub(super) const MAJOR: u32 = 254;
const UUID: &str = "CRYPT-LUKS2-";

/// The device-mapper driver.
#[derive(Default)]
pub(super) struct DeviceMapper {
    mappers: BTreeMap<u32, Table>,
    /// The files with the content of encrypted devices, by volume key.
    insides: BTreeMap<u64, u64>,
}

/// The table of a mapper.
struct Table {
    name: String,
    uuid: String,
    /// The number of the device below.
    below: u32,
}

impl Machine {
    /// Opens a mapper over the device with the node `path`, as another program does.
    pub(crate) fn map(&self, path: &Path, name: &str) {
        let mut state = self.lock();
        let at = state.walk(path).unwrap();
        let below = state.loop_at(at).unwrap();
        let ino = state.behind(below).unwrap();
        let key = key_of(&state.file(ino).unwrap().contents).unwrap();
        let number = state.load_table(name, below, key, false).unwrap();
        state.measure_mapper(number).unwrap();
    }

    /// Whether the text is in a file, or in an opened encrypted device.
    pub(crate) fn has_text(&self, text: &str) -> bool {
        let mut state = self.lock();
        let named = state.host_names().into_iter().map(|(_, ino)| ino);
        let inside = state.mapped.insides.values().copied();
        let all: Vec<u64> = named.chain(inside).collect();
        let mut files = all.into_iter();
        files.any(|ino| {
            let file = state.file(ino);
            file.is_ok_and(|file| file.contents.contains(text.as_bytes()))
        })
    }
}

impl State {
    /// Creates the names that the driver has in `/dev`.
    pub(super) fn load_device_mapper(&mut self) {
        self.mapped.mappers.clear();
        self.make_dir(Path::new("/dev/mapper"));
        let control = InodeKind::File(File::default());
        self.create(Path::new("/dev/mapper/control"), control)
            .unwrap();
    }

    /// Simulates `DM_DEV_CREATE` and `DM_TABLE_LOAD`: creates a mapper, whose size is 0, and claims
    /// the device below.
    pub(super) fn load_table(
        &mut self,
        name: &str,
        below: u32,
        key: u64,
        read_only: bool,
    ) -> Answer<u32> {
        if self.mapper_named(name).is_some() || self.is_claimed(below) {
            return Err(Errno::BUSY);
        }
        let is_free = |number: &u32| !self.loops.contains_key(number);
        let number = (MAPPERS..).find(is_free).unwrap();
        let mut binding = Binding::of_disk(self.inside(key), 0);
        binding.mode.read_only = read_only;
        let device = Loop {
            binding: Some(binding),
            diskseq: self.number(),
            running_down: false,
            left: Left::default(),
        };
        self.loops.insert(number, device);
        let table = Table {
            name: name.to_owned(),
            uuid: format!("{UUID}{key:032x}-{name}"),
            below,
        };
        self.mapped.mappers.insert(number, table);
        self.add_node(number);
        Ok(number)
    }

    /// Simulates `DM_DEV_SUSPEND`, which activates the table: the mapper gets its size from the
    /// device below.
    pub(super) fn measure_mapper(&mut self, number: u32) -> Answer<()> {
        let below = self.mapped.mappers.get(&number).ok_or(Errno::NXIO)?.below;
        let below = self.loops.get(&below).and_then(|l| l.binding.as_ref());
        let bytes = below.map_or(0, |binding| binding.bytes);
        let bytes = bytes.checked_sub(HEADER_BYTES).ok_or(Errno::INVAL)?;
        let ino = self.behind(number).ok_or(Errno::NXIO)?;
        let contents = &mut self.file(ino)?.contents;
        contents.change(move |contents| contents.grow(bytes));
        contents.sync();
        let device = self.loops.get_mut(&number).ok_or(Errno::NXIO)?;
        device.binding.as_mut().ok_or(Errno::NXIO)?.bytes = bytes;
        Ok(())
    }

    /// Simulates `DM_DEV_REMOVE`. A bind mount of the node does not keep the mapper open.
    pub(super) fn remove_mapper(&mut self, number: u32) -> Answer<()> {
        if self.openers(number) > 0 {
            return Err(Errno::BUSY);
        }
        self.flush_cache(number, 0..u64::MAX);
        self.mapped.mappers.remove(&number);
        self.loops.remove(&number);
        let node = Path::new("/dev").join(self.device_name(number));
        self.remove(&node, false)?;
        self.clean();
        Ok(())
    }

    pub(super) fn mapper_named(&self, name: &str) -> Option<u32> {
        let mut mappers = self.mapped.mappers.iter();
        let found = mappers.find(|(_, table)| table.name == name);
        found.map(|(number, _)| *number)
    }

    /// Returns the number of the mapper that has claimed the device.
    pub(super) fn mapper_over(&self, number: u32) -> Option<u32> {
        let mut mappers = self.mapped.mappers.iter();
        let found = mappers.find(|(_, table)| table.below == number);
        found.map(|(number, _)| *number)
    }

    /// Returns the number of the device below a mapper; `None` for other devices.
    pub(super) fn below(&self, number: u32) -> Option<u32> {
        self.mapped.mappers.get(&number).map(|table| table.below)
    }

    /// Returns the inodes of the files with the content of a device and of the device below.
    pub(super) fn files_of(&self, number: u32) -> Vec<u64> {
        let devices = std::iter::successors(Some(number), |number| self.below(*number));
        devices.filter_map(|number| self.behind(number)).collect()
    }

    /// Returns the file with the content of the device that is encrypted with this key.
    fn inside(&mut self, key: u64) -> u64 {
        if let Some(ino) = self.mapped.insides.get(&key) {
            return *ino;
        }
        let host = self.mounts.values().next().unwrap().superblock;
        let mut file = File::default();
        file.contents.change(super::sparse::Sparse::fill);
        file.contents.sync();
        let ino = self.make_inode(host, InodeKind::File(file));
        self.mapped.insides.insert(key, ino);
        ino
    }

    /// Returns the inode with the content of an encrypted volume, if `path` is the path of the
    /// volume's file, and the volume was opened before; otherwise, the inode of the file.
    pub(super) fn user_inode(&mut self, path: &Path) -> u64 {
        let ino = self.walk(path).unwrap().ino;
        let key = key_of(&self.file(ino).unwrap().contents);
        let inside = key.and_then(|key| self.mapped.insides.get(&key));
        inside.copied().unwrap_or(ino)
    }

    /// Returns a line for each mapper, for [`super::Picture`].
    pub(super) fn mapper_lines(&self, file_behind: impl Fn(u32) -> String) -> Vec<String> {
        let lines = self.mapped.mappers.iter().map(|(number, table)| {
            let is_read_only = self.loops[number].binding.as_ref().unwrap().mode.read_only;
            let (name, below) = (&table.name, file_behind(table.below));
            format!("mapper {name} of {below}, ro {is_read_only}")
        });
        lines.collect()
    }

    fn mapper(&self, number: u32) -> Option<Mapper> {
        let table = self.mapped.mappers.get(&number)?;
        let is_removed = self.disks.get(&table.below).is_some_and(|it| it.is_removed);
        let below = (!is_removed).then(|| device_dev(table.below));
        Some(Mapper {
            dev: device_dev(number),
            name: table.name.clone(),
            uuid: table.uuid.clone(),
            below: below.into_iter().collect(),
        })
    }

    fn mappers(&self) -> impl Iterator<Item = Mapper> {
        let numbers = self.mapped.mappers.keys();
        numbers.filter_map(|number| self.mapper(*number))
    }
}

impl Mappers for Fake {
    fn is_mapper(&self, dev: Dev) -> bool {
        dev.major == MAJOR
    }

    fn mapper(&self, dev: Dev) -> Result<Option<Mapper>> {
        if !self.is_mapper(dev) {
            return Ok(None);
        }
        let path = format!("/sys/dev/block/{dev}/dm");
        self.call("read", path, GONE, |state| {
            Ok(state.mapper(MAPPERS + dev.minor))
        })
    }

    fn mappers_over(&self, dev: Dev) -> Result<Vec<Mapper>> {
        let path = format!("/sys/dev/block/{dev}/holders");
        self.call("getdents", path, GONE, |state| {
            let mappers = state.mappers();
            Ok(mappers.filter(|it| it.below.contains(&dev)).collect())
        })
    }

    fn mappers(&self) -> Result<Vec<Mapper>> {
        self.call("getdents", "/sys/block", NONE, |state| {
            Ok(state.mappers().collect())
        })
    }

    fn sealed_file(&self, content: &[u8]) -> Result<Fd> {
        self.open_by("memfd_create", "of a key", NONE, |state| {
            let (&mount, host) = state.mounts.iter().next().unwrap();
            let superblock = host.superblock;
            let mut file = File::default();
            let content: Box<[u8]> = content.into();
            file.contents.change(move |to| {
                to.grow(content.len() as u64);
                to.write(0, &content);
            });
            let ino = state.make_inode(superblock, InodeKind::File(file));
            let location = Location { mount, ino };
            Ok(Object::File {
                location,
                writable: false,
            })
        })
    }
}
