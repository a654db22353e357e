//! What the index knows of mounts by their volumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_server::request::VolumeId;

use super::super::behind::root_dev;
use super::{Entry, MountIndex};
use crate::device::Label;
use crate::kernel::{Dev, Stat};

impl MountIndex {
    /// The paths that were noted for that volume.
    pub(crate) fn of_volume(&self, volume: &VolumeId) -> Vec<PathBuf> {
        let inner = self.lock();
        let found = inner.by_volume.get(volume).into_iter().flatten();
        found.map(|path| path.to_path_buf()).collect()
    }

    /// What was noted for the volume proves nothing from now on.
    pub(crate) fn doubt(&self, volume: &VolumeId) {
        let mut inner = self.lock();
        for path in inner.by_volume.remove(volume).into_iter().flatten() {
            let entry = inner.by_path.get_mut(&path);
            if let Some(noted) = entry.and_then(|entry| entry.noted.as_mut()) {
                noted.mount_id = 0;
            }
        }
    }

    /// The paths where the last mount was noted for that volume, with or without an id, or where
    /// the scan has found a bind that names it.
    pub(in crate::mounts) fn said_of(
        &self,
        volume: &VolumeId,
        is_named: impl Fn(&Label) -> bool,
    ) -> Vec<PathBuf> {
        let inner = self.lock();
        let is_said = |entry: &Entry| match (&entry.noted, &entry.label) {
            (Some(noted), _) => noted.volume == *volume,
            (None, Some(label)) => is_named(label),
            (None, None) => false,
        };
        let said = inner.by_path.iter().filter(|(_, entry)| is_said(entry));
        said.map(|(path, _)| path.to_path_buf()).collect()
    }

    /// What the scan has found and no call has proven since: where, which device, and its label.
    pub(in crate::mounts) fn unproven(&self) -> Vec<(PathBuf, Dev, Option<Label>)> {
        let inner = self.lock();
        let is_unproven = |(_, entry): &(&Arc<Path>, &Entry)| entry.proof().is_none();
        let found = inner.by_path.iter().filter(is_unproven);
        found
            .map(|(path, entry)| (path.to_path_buf(), entry.device, entry.label.clone()))
            .collect()
    }

    /// Where the device is mounted, whether that was noted for a volume, and the label that the
    /// scan has found.
    pub(crate) fn at(&self, device: Dev) -> Vec<(PathBuf, bool, Option<Label>)> {
        let mounts = self.lock().mounts_of(device).into_iter();
        mounts
            .map(|(path, entry)| (path.to_path_buf(), entry.noted.is_some(), entry.label))
            .collect()
    }

    /// The volumes of the mounts: where the last mount was noted for one, or its label names one;
    /// and the device.
    pub(crate) fn volumes(&self) -> Vec<(PathBuf, VolumeId, Dev)> {
        let inner = self.lock();
        let volume = |entry: &Entry| match &entry.noted {
            Some(noted) => Some(noted.volume.clone()),
            None => entry.label.as_ref()?.volume(),
        };
        let found = inner.by_path.iter();
        found
            .filter_map(|(path, entry)| Some((path.to_path_buf(), volume(entry)?, entry.device)))
            .collect()
    }

    /// The device of the mount that was noted there for the volume, also without an id: before
    /// Linux 6.8, of a filesystem that has shut itself down, or of a mount in doubt. Any mount of
    /// the same filesystem counts then.
    pub(crate) fn likely(&self, path: &Path, stat: &Stat, volume: &VolumeId) -> Option<Dev> {
        let inner = self.lock();
        let entry = inner.by_path.get(path)?;
        let noted = entry.noted.as_ref()?;
        let is_same = match (stat.mount_id, noted.mount_id) {
            (0, _) | (_, 0) => entry.root == Some(root_dev(stat)),
            (id, noted) => id == noted,
        };
        (noted.volume == *volume && is_same).then_some(entry.device)
    }

    /// [`MountIndex::likely`]; or the device of the mount that the scan has found there.
    pub(in crate::mounts) fn recorded(
        &self,
        path: &Path,
        stat: &Stat,
        volume: &VolumeId,
    ) -> Option<Dev> {
        let scanned = || {
            let inner = self.lock();
            let entry = inner.by_path.get(path)?;
            let may_be = entry.root.is_none_or(|root| root == root_dev(stat));
            (entry.noted.is_none() && may_be).then_some(entry.device)
        };
        self.likely(path, stat, volume).or_else(scanned)
    }
}
