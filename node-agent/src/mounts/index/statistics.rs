//! What the index knows of where statistics can be read.

use std::path::Path;

use belay_server::request::VolumeId;

use super::MountIndex;
use crate::kernel::{Dev, Stat};

impl MountIndex {
    /// Whether the filesystem that is mounted from the device may have project quotas.
    pub(crate) fn note_projects(&self, device: Dev, may_have_projects: bool) {
        let mut inner = self.lock();
        match may_have_projects {
            true => inner.without_projects.remove(&device),
            false => inner.without_projects.insert(device),
        };
    }

    /// Whether the filesystem on the device cannot have project quotas, as far as is known.
    pub(crate) fn is_without_projects(&self, device: Dev) -> bool {
        self.lock().without_projects.contains(&device)
    }

    /// Whether the statistics of exactly this mount can be read on the event loop.
    pub(crate) fn note_in_place(&self, path: &Path, stat: &Stat, is_read_in_place: bool) {
        let mut inner = self.lock();
        if inner.noted(path, stat).is_some()
            && let Some(entry) = inner.by_path.get_mut(path)
        {
            entry.is_read_in_place = Some(is_read_in_place);
        }
    }

    /// That of the mount that was proven to be the volume's, at that path; `None` if it was not
    /// tried yet.
    pub(crate) fn is_read_in_place(&self, path: &Path, volume: &VolumeId) -> Option<bool> {
        let inner = self.lock();
        let entry = inner.by_path.get(path);
        let is_of_volume =
            |entry: &&super::Entry| entry.proof().is_some_and(|it| it.volume == *volume);
        entry
            .filter(is_of_volume)
            .map_or(Some(false), |entry| entry.is_read_in_place)
    }
}
