//! Queries of the mount index: the mounts of a volume, and the mounts whose statistics can be read
//! on the event loop.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_server::request::VolumeId;

use super::super::behind::root_dev;
use super::{Entry, MountIndex};
use crate::device::Label;
use crate::kernel::{Dev, Stat};

impl MountIndex {
    /// Returns the paths of mounts that were recorded for the volume.
    pub(crate) fn of_volume(&self, volume: &VolumeId) -> Vec<PathBuf> {
        let inner = self.lock();
        let found = inner.by_volume.get(volume).into_iter().flatten();
        found.map(|path| path.to_path_buf()).collect()
    }

    /// Returns the paths whose last mount was recorded for the volume, with or without a mount ID.
    /// Also returns the paths where the startup scan found a bind mount whose label names the
    /// volume.
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

    /// Returns the path, device and label of each mount for which the index has no proof of its
    /// volume.
    pub(in crate::mounts) fn unproven(&self) -> Vec<(PathBuf, Dev, Option<Label>)> {
        let inner = self.lock();
        let is_unproven = |(_, entry): &(&Arc<Path>, &Entry)| entry.proof().is_none();
        let found = inner.by_path.iter().filter(is_unproven);
        found
            .map(|(path, entry)| (path.to_path_buf(), entry.device, entry.label.clone()))
            .collect()
    }

    /// Returns each path where the device is mounted, whether that mount was recorded for a volume,
    /// and the label that the startup scan found.
    pub(crate) fn at(&self, device: Dev) -> Vec<(PathBuf, bool, Option<Label>)> {
        let mounts = self.lock().mounts_of(device).into_iter();
        mounts
            .map(|(path, entry)| (path.to_path_buf(), entry.noted.is_some(), entry.label))
            .collect()
    }

    /// Returns all mounts: the path, the volume for which the mount was recorded, and the device.
    pub(crate) fn mounts(&self) -> Vec<(PathBuf, Option<VolumeId>, Dev)> {
        let inner = self.lock();
        let all = inner.by_path.iter().map(|(path, entry)| {
            let volume = entry.noted.as_ref().map(|noted| noted.volume.clone());
            (path.to_path_buf(), volume, entry.device)
        });
        all.collect()
    }

    /// Returns the device of the mount that was recorded at `path` for the volume, even without a
    /// mount ID: before Linux 6.8, for a filesystem that has shut itself down, or for a volume
    /// whose disk could not be distinguished from the cloud's other disks. Without a mount ID,
    /// accepts any mount of the same filesystem at `path`.
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

    /// Returns the device that [`MountIndex::likely`] returns; if it returns `None`, the device of
    /// the mount that the startup scan found at `path`.
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

impl MountIndex {
    /// Records whether the filesystem that is mounted from the device may have project quotas.
    pub(crate) fn note_projects(&self, device: Dev, may_have_projects: bool) {
        let mut inner = self.lock();
        match may_have_projects {
            true => inner.without_projects.remove(&device),
            false => inner.without_projects.insert(device),
        };
    }

    /// Whether the filesystem on the device certainly has no project quotas.
    pub(crate) fn is_without_projects(&self, device: Dev) -> bool {
        self.lock().without_projects.contains(&device)
    }

    /// Records whether the statistics of this mount can be read on the event loop.
    pub(crate) fn note_in_place(&self, path: &Path, stat: &Stat, is_read_in_place: bool) {
        let mut inner = self.lock();
        if inner.noted(path, stat).is_some()
            && let Some(entry) = inner.by_path.get_mut(path)
        {
            entry.is_read_in_place = Some(is_read_in_place);
        }
    }

    /// Whether the statistics of the mount at that path can be read on the event loop. `None` if no
    /// attempt was made yet; `Some(false)` if the mount was not proven to be the volume's.
    pub(crate) fn is_read_in_place(&self, path: &Path, volume: &VolumeId) -> Option<bool> {
        let inner = self.lock();
        let entry = inner.by_path.get(path);
        let is_of_volume = |entry: &&Entry| entry.proof().is_some_and(|it| it.volume == *volume);
        entry
            .filter(is_of_volume)
            .map_or(Some(false), |entry| entry.is_read_in_place)
    }
}
