//! Releases mounts, superblocks, loop devices and locks when their last user is gone.

use super::state::{Object, State};

impl State {
    /// Releases all unused objects. The simulation must call this function after every close or
    /// unmount.
    pub(super) fn clean(&mut self) {
        loop {
            let before = self.size();
            self.drop_descriptions();
            self.drop_mounts();
            self.drop_superblocks();
            self.unbind_unused();
            self.drop_removed_disks();
            if self.size() == before {
                return;
            }
        }
    }

    fn size(&self) -> (usize, usize, usize, usize, usize) {
        let bound = self.loops.values().filter(|l| l.binding.is_some()).count();
        (
            self.open.len(),
            self.mounts.len(),
            self.superblocks.len(),
            bound,
            self.disks.len(),
        )
    }

    /// Drops each open file description that neither a process nor a loop device has open, and its
    /// lock.
    fn drop_descriptions(&mut self) {
        let bindings = self.loops.values().filter_map(|l| l.binding.as_ref());
        let kept: Vec<u64> = bindings.map(|binding| binding.description).collect();
        self.open
            .retain(|id, description| description.owner.is_some() || kept.contains(id));
        let open = &self.open;
        self.locks
            .retain(|_, description| open.contains_key(description));
    }

    /// Drops each detached mount that no descriptor refers to.
    fn drop_mounts(&mut self) {
        let held: Vec<u64> = self.held_mounts();
        self.mounts
            .retain(|id, mount| mount.on.is_some() || held.contains(id));
    }

    pub(super) fn held_mounts(&self) -> Vec<u64> {
        let locations = self.open.values().filter(|d| d.owner.is_some());
        locations
            .filter_map(|d| d.object.location().ok())
            .map(|location| location.mount)
            .collect()
    }

    fn drop_superblocks(&mut self) {
        let by_context = self.open.values().filter_map(|d| match &d.object {
            Object::Context(context) => context.superblock,
            _ => None,
        });
        let used: Vec<u64> = by_context
            .chain(self.mounts.values().map(|mount| mount.superblock))
            .collect();
        self.superblocks.retain(|id, _| used.contains(id));
        let superblocks = &self.superblocks;
        self.inodes
            .retain(|_, inode| superblocks.contains_key(&inode.superblock));
    }

    fn unbind_unused(&mut self) {
        let numbers: Vec<u32> = self.loops.keys().copied().collect();
        for number in numbers {
            if self.openers(number) == 0 {
                // The last close writes the page cache to the device (block/bdev.c).
                self.flush_cache(number, 0..u64::MAX);
                let diskseq = self.number();
                let device = self.loops.get_mut(&number).unwrap();
                if device.binding.as_ref().is_some_and(|b| b.mode.autoclear) {
                    device.binding = None;
                    device.diskseq = diskseq;
                    device.running_down = false;
                }
            }
        }
    }
}
