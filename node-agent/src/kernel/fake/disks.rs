//! Disks that tests plug, unplug, grow and swap. The medium of each disk is a file of the machine's
//! first filesystem, and remains when the disk is unplugged.

use std::path::{Path, PathBuf};

use super::answers::GONE;
use super::leftovers::Left;
use super::loops::{Binding, Loop, loop_dev};
use super::state::{Answer, InodeKind, State};
use super::{Fake, Machine, mappers};
use crate::kernel::{Dev, Disk, DiskAt, DiskFacts, Disks, Result};

/// The first disk number; loop devices have lower numbers.
pub(super) const DISKS: u32 = 1 << 16;
/// The major number of virtio disks, which the real kernel assigns dynamically. Each disk has
/// [`MINORS`] minor numbers for its partitions.
const MAJOR: u32 = 252;
const MINORS: u32 = 16;
/// `VIRTIO_BLK_ID_BYTES` (include/uapi/linux/virtio_blk.h).
const SERIAL_BYTES: usize = 20;

/// The properties of a disk that is plugged in.
#[derive(Clone)]
pub(crate) struct Plug {
    pub(crate) medium: PathBuf,
    pub(crate) facts: DiskFacts,
    /// The serial number of a virtio disk, which reports only its first 20 bytes.
    pub(crate) serial: String,
}

impl Plug {
    /// Returns a virtio disk with this serial number.
    pub(crate) fn virtio(medium: &Path, serial: &str) -> Self {
        Plug {
            medium: medium.to_owned(),
            facts: DiskFacts::Virtio,
            serial: serial.to_owned(),
        }
    }
}

pub(super) struct Plugged {
    pub(super) plug: Plug,
    pub(super) is_removed: bool,
    is_divided: bool,
}

/// Returns the device number of a loop device, disk or mapper.
pub(super) fn device_dev(number: u32) -> Dev {
    if let Some(minor) = number.checked_sub(mappers::MAPPERS) {
        let major = mappers::MAJOR;
        return Dev { major, minor };
    }
    match number.checked_sub(DISKS) {
        None => loop_dev(number),
        Some(disk) => Dev {
            major: MAJOR,
            minor: disk * MINORS,
        },
    }
}

impl Machine {
    /// Plugs in a disk, whose medium must exist.
    pub(crate) fn plug(&self, plug: Plug) {
        self.lock().plug(plug);
    }

    /// Makes the disk with this medium report another serial number.
    pub(crate) fn name_disk(&self, medium: &Path, serial: &str) {
        let mut state = self.lock();
        let number = state.disk_of(medium).unwrap();
        let disk = state.disks.get_mut(&number).unwrap();
        serial.clone_into(&mut disk.plug.serial);
    }

    /// Removes the disk with this medium, even while it is in use.
    pub(crate) fn unplug(&self, medium: &Path) {
        self.lock().unplug(medium);
    }

    /// Gives partitions to the disk with this medium.
    pub(crate) fn divide(&self, medium: &Path) {
        let mut state = self.lock();
        let number = state.disk_of(medium).unwrap();
        state.disks.get_mut(&number).unwrap().is_divided = true;
    }

    /// Enlarges the medium. A SCSI disk reports its new size only after a rescan.
    pub(crate) fn grow_disk(&self, medium: &Path, bytes: u64) {
        let mut state = self.lock();
        state.make_file(medium, bytes);
        let number = state.disk_of(medium).unwrap();
        if state.disks[&number].plug.facts == DiskFacts::Virtio {
            state.measure(number);
        }
    }

    /// Returns the device number of the disk with this medium.
    pub(crate) fn disk_dev(&self, medium: &Path) -> Dev {
        device_dev(self.lock().disk_of(medium).unwrap())
    }
}

impl State {
    pub(super) fn unplug(&mut self, medium: &Path) {
        let number = self.disk_of(medium).unwrap();
        self.disks.get_mut(&number).unwrap().is_removed = true;
        // From now on, opens and reads of the disk fail.
        self.loops.get_mut(&number).unwrap().running_down = true;
        let node = Path::new("/dev").join(self.device_name(number));
        self.remove(&node, false).unwrap();
        self.clean();
    }

    pub(super) fn plug(&mut self, plug: Plug) {
        let is_free = |number: &u32| !self.disks.contains_key(number);
        let number = (DISKS..).find(is_free).unwrap();
        let ino = self.walk(&plug.medium).unwrap().ino;
        let bytes = self.file(ino).unwrap().contents.bytes();
        let diskseq = match self.has_no_diskseq {
            true => 0,
            false => self.number(),
        };
        let device = Loop {
            binding: Some(Binding::of_disk(ino, bytes)),
            diskseq,
            running_down: false,
            left: Left::default(),
        };
        self.loops.insert(number, device);
        let disk = Plugged {
            plug,
            is_removed: false,
            is_divided: false,
        };
        self.disks.insert(number, disk);
        self.add_node(number);
    }

    /// Creates the node of a device in `/dev`.
    pub(super) fn add_node(&mut self, number: u32) {
        let (&mount, _) = self.mounts.iter().nth(1).unwrap();
        let (root, superblock) = (self.mounts[&mount].root, self.mounts[&mount].superblock);
        let node = self.make_inode(superblock, InodeKind::Loop(number));
        let name = self.device_name(number);
        self.add_name(root, &name, node);
    }

    /// Returns the name of a device in `/dev`.
    pub(super) fn device_name(&self, number: u32) -> String {
        if let Some(minor) = number.checked_sub(mappers::MAPPERS) {
            return format!("dm-{minor}");
        }
        match number.checked_sub(DISKS) {
            None => format!("loop{number}"),
            Some(disk) => format!("vd{}", char::from(b'a' + u8::try_from(disk).unwrap())),
        }
    }

    /// Returns the number of the plugged disk with this medium.
    fn disk_of(&self, medium: &Path) -> Option<u32> {
        let mut disks = self.disks.iter();
        let found = disks.find(|(_, disk)| !disk.is_removed && disk.plug.medium == medium);
        found.map(|(number, _)| *number)
    }

    /// Drops the removed disks that are no longer open; an open disk keeps its number.
    pub(super) fn drop_removed_disks(&mut self) {
        let removed = self.disks.iter().filter(|(_, disk)| disk.is_removed);
        let numbers: Vec<u32> = removed.map(|(number, _)| *number).collect();
        for number in numbers {
            if self.openers(number) == 0 {
                self.disks.remove(&number);
                self.loops.remove(&number);
            }
        }
    }

    /// Sets the disk's size to the size of its medium.
    fn measure(&mut self, number: u32) {
        let Some(ino) = self.behind(number) else {
            return;
        };
        let bytes = self.file(ino).map_or(0, |file| file.contents.bytes());
        let device = self.loops.get_mut(&number);
        if let Some(binding) = device.and_then(|device| device.binding.as_mut()) {
            binding.bytes = bytes;
        }
    }

    pub(super) fn diskseq(&self, fd: u64) -> Answer<u64> {
        let number = self.object(fd)?.device()?;
        Ok(self.loops.get(&number).map_or(0, |device| device.diskseq))
    }

    fn shown(&self, number: u32) -> Option<Disk> {
        self.disks.get(&number).filter(|disk| !disk.is_removed)?;
        let device = self.loops.get(&number)?;
        let binding = device.binding.as_ref()?;
        Some(Disk {
            dev: device_dev(number),
            name: self.device_name(number),
            diskseq: device.diskseq,
            bytes: binding.bytes,
        })
    }

    /// Returns the number of the disk, if it is still plugged in.
    fn same(&self, disk: &Disk) -> Option<u32> {
        let mut numbers = self.disks.keys();
        let is_it = |shown: Disk| shown.dev == disk.dev && shown.name == disk.name;
        let found = numbers.find(|number| self.shown(**number).is_some_and(is_it));
        found.copied()
    }
}

fn attribute(disk: &Disk, name: &str) -> String {
    format!("/sys/block/{}/{name}", disk.name)
}

impl Disks for Fake {
    fn disks(&self) -> Result<Vec<Disk>> {
        self.call("getdents", "/sys/block", &[], |state| {
            let numbers = state.disks.keys();
            Ok(numbers.filter_map(|number| state.shown(*number)).collect())
        })
    }

    fn disk(&self, dev: Dev) -> Result<DiskAt> {
        let name = format!("/sys/dev/block/{dev}");
        self.call("readlink", name, GONE, |state| {
            let mut shown = state.disks.keys().filter_map(|number| state.shown(*number));
            let found = shown.find(|disk| disk.dev == dev);
            Ok(match found {
                Some(disk) => DiskAt::Disk(disk),
                None if dev.major == MAJOR => DiskAt::Nothing,
                None => DiskAt::Other,
            })
        })
    }

    fn disk_named(&self, name: &str) -> Result<Option<Dev>> {
        let path = format!("/sys/class/block/{name}/dev");
        self.call("read", path, GONE, |state| {
            let mut shown = state.disks.keys().filter_map(|number| state.shown(*number));
            let found = shown.find(|disk| disk.name == name);
            Ok(found.map(|disk| disk.dev))
        })
    }

    fn diskseq_named(&self, name: &str) -> Result<Option<u64>> {
        let path = format!("/sys/class/block/{name}/diskseq");
        self.call("read", path, GONE, |state| {
            let mut devices = state.loops.iter();
            let is_it = |number: u32| state.device_name(number) == name;
            let is_there = |number| state.disks.get(&number).is_none_or(|disk| !disk.is_removed);
            let found = devices.find(|(number, _)| is_it(**number) && is_there(**number));
            Ok(found.map(|(_, device)| device.diskseq))
        })
    }

    fn disk_is_divided(&self, disk: &Disk) -> Result<bool> {
        self.call("getdents", attribute(disk, "holders"), GONE, |state| {
            let number = state.same(disk);
            Ok(number.is_some_and(|number| {
                state.disks[&number].is_divided || state.mapper_over(number).is_some()
            }))
        })
    }

    fn disk_facts(&self, disk: &Disk) -> Result<Option<DiskFacts>> {
        self.call("read", attribute(disk, "device"), GONE, |state| {
            let number = state.same(disk);
            Ok(number.map(|number| state.disks[&number].plug.facts.clone()))
        })
    }

    fn disk_serial(&self, disk: &Disk) -> Result<Option<String>> {
        let name = attribute(disk, "serial");
        self.call("VIRTIO_BLK_T_GET_ID", name, GONE, |state| {
            let number = state.same(disk);
            let serial = number.map(|number| state.disks[&number].plug.serial.clone());
            Ok(serial.map(|serial| serial.chars().take(SERIAL_BYTES).collect()))
        })
    }

    fn disk_rescan(&self, disk: &Disk) -> Result<()> {
        self.call("rescan", attribute(disk, "device/rescan"), GONE, |state| {
            if let Some(number) = state.same(disk) {
                state.measure(number);
            }
            Ok(())
        })
    }
}
