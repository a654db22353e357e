//! Fills the mount index from the kernel's mount table.

use std::mem;
use std::path::Path;

use super::super::table::shown_by;
use super::{Entry, Inner, MountIndex};
use crate::device::Transport;
use crate::kernel::{Kernel, Result};

impl MountIndex {
    /// Scans the mount table and records the mounts of devices that may belong to a volume. Reads
    /// only the mount table, because a mount, or a path to it, may be on a hung disk or server.
    ///
    /// # Errors
    /// Returns an error if mountinfo or sysfs cannot be read.
    pub(crate) fn scan<K: Kernel>(kernel: &K, transport: &Transport<K>) -> Result<Self> {
        let index = MountIndex::default();
        for mount in kernel.mounts()? {
            if let Some(shown) = shown_by(kernel, transport, &mount)? {
                let entry = Entry {
                    root: shown.root,
                    device: shown.device,
                    noted: None,
                    label: shown.label,
                    is_read_in_place: None,
                };
                index.lock().insert_scanned(&mount.point, entry);
            }
        }
        Ok(index)
    }

    /// Adds the mounts that a later scan has found at paths without a record.
    pub(crate) fn add(&self, found: &Self) {
        let (mut inner, found) = (self.lock(), mem::take(&mut *found.lock()));
        for (path, entry) in found.by_path {
            if !inner.by_path.contains_key(&path) {
                inner.insert(&path, entry);
            }
        }
        for stacked in found.stacked {
            if !inner.stacked.contains(&stacked) {
                inner.stacked.push(stacked);
            }
        }
    }
}

impl Inner {
    /// Adds a mount of the mount table. Call it in the order of the table, which lists each mount
    /// after the mounts that it hides.
    pub(super) fn insert_scanned(&mut self, path: &Path, entry: Entry) {
        let below = self.by_path.get(path).map(|below| below.device);
        if let Some(below) = below.filter(|below| *below != entry.device) {
            self.stacked.push((path.to_owned(), below));
        }
        self.insert(path, entry);
    }
}
