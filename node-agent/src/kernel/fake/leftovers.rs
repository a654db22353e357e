//! State of a loop device that outlives its binding to a file.

use rustix::io::Errno;

use super::answers::{GONE, NONE, named};
use super::state::{Answer, State};
use super::{Fake, Fd, Machine};
use crate::kernel::{Leftovers, Result};

/// State that belongs to a loop device's number until the device is removed.
#[derive(Default)]
pub(super) struct Left {
    /// The names of the device's partitions.
    pub(super) partitions: Vec<String>,
    /// Whether a process has a partition open.
    pub(super) is_open: bool,
    /// Whether `BLKROSET` has made the device read-only.
    pub(super) refuses_writes: bool,
    /// Whether `queue/write_cache` is "write through".
    pub(super) drops_flushes: bool,
    /// Whether users other than root may open the device node.
    pub(super) is_open_to_all: bool,
}

impl Machine {
    /// Adds a partition to a loop device, as addpart(8) does.
    pub(crate) fn add_partition(&self, number: u32) {
        let name = format!("loop{number}p1");
        self.change(number, |left| left.partitions.push(name));
    }

    /// Makes the node of a loop device accessible to all users, as a user of a raw volume may with
    /// chmod(1).
    pub(crate) fn open_to_all(&self, number: u32) {
        self.change(number, |left| left.is_open_to_all = true);
    }

    /// Makes a process open or close a partition of the loop device.
    pub(crate) fn open_partition(&self, number: u32, is_open: bool) {
        self.change(number, |left| left.is_open = is_open);
        self.lock().clean();
    }

    /// Sets a loop device read-only, as blockdev(8) does.
    pub(crate) fn refuse_writes(&self, number: u32) {
        self.change(number, |left| left.refuses_writes = true);
    }

    /// Disables the write cache of a loop device in sysfs.
    pub(crate) fn drop_flushes(&self, number: u32) {
        self.change(number, |left| left.drops_flushes = true);
    }

    /// Whether the loop device still has settings that another process has changed.
    pub(crate) fn is_altered(&self, number: u32) -> bool {
        let state = self.lock();
        state.loops.get(&number).is_some_and(|device| {
            let left = &device.left;
            !left.partitions.is_empty()
                || left.refuses_writes
                || left.drops_flushes
                || left.is_open_to_all
        })
    }

    fn change(&self, number: u32, change: impl FnOnce(&mut Left)) {
        change(&mut self.lock().loops.get_mut(&number).unwrap().left);
    }
}

impl State {
    /// Whether writes to the device fail with `EPERM`.
    pub(super) fn refuses_writes(&self, number: u32) -> bool {
        let device = self.loops.get(&number);
        device.is_some_and(|device| device.left.refuses_writes)
    }

    fn loop_remove(&mut self, number: u32) -> Answer<bool> {
        match self.loops.get(&number) {
            None => return Ok(true),
            Some(device) if device.binding.is_some() => return Ok(false),
            Some(_) if self.openers(number) > 0 => return Ok(false),
            Some(_) => {}
        }
        self.loops.remove(&number);
        let node = format!("/dev/loop{number}");
        self.remove(node.as_ref(), false)?;
        Ok(true)
    }
}

impl Leftovers for Fake {
    fn loop_partitions(&self, number: u32, _: bool) -> Result<Vec<String>> {
        let folder = format!("/sys/block/loop{number}");
        self.call("statx", folder, GONE, |state| {
            let device = state.loops.get(&number);
            Ok(device.map_or_else(Vec::new, |device| device.left.partitions.clone()))
        })
    }

    fn loop_remove(&self, number: u32) -> Result<bool> {
        let remove = |state: &mut State| state.loop_remove(number);
        self.call("LOOP_CTL_REMOVE", "", &[Errno::BUSY, Errno::NODEV], remove)
    }

    fn is_private(&self, device: &Fd) -> Result<bool> {
        self.call("fstat", named(device), NONE, |state| {
            let number = state.object(device.id)?.device()?;
            Ok(!state.loops[&number].left.is_open_to_all)
        })
    }

    fn allow_writes(&self, device: &Fd) -> Result<()> {
        self.call("BLKROSET", named(device), NONE, |state| {
            let number = state.object(device.id)?.device()?;
            let device = state.loops.get_mut(&number).ok_or(Errno::NXIO)?;
            device.left.refuses_writes = false;
            Ok(())
        })
    }

    fn refuses_writes(&self, device: &Fd) -> Result<bool> {
        self.call("BLKROGET", named(device), NONE, |state| {
            let number = state.object(device.id)?.device()?;
            let binding = state.binding(device.id)?;
            let is_read_only = binding.is_some_and(|binding| binding.mode.read_only);
            Ok(is_read_only || state.refuses_writes(number))
        })
    }

    fn loop_allow_flushes(&self, number: u32) -> Result<()> {
        let attribute = format!("/sys/block/loop{number}/queue/write_cache");
        self.call("read", attribute, GONE, |state| {
            if let Some(device) = state.loops.get_mut(&number) {
                device.left.drops_flushes = false;
            }
            Ok(())
        })
    }
}
