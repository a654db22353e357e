//! Which volume this process has published where. A cache: the mounts themselves are the record,
//! and a mount that is not noted here, since another process made it, counts as its caller's.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use belay_server::request::VolumeId;

use crate::kernel::Stat;

/// More than any node has.
const NOTED_MAX: usize = 16_384;

/// Volumes by their target paths.
#[derive(Default)]
pub(super) struct Targets(Mutex<HashMap<PathBuf, Noted>>);

struct Noted {
    volume: VolumeId,
    /// 0 where the kernel has no unique IDs.
    mount_id: u64,
}

impl Targets {
    /// The mount whose root `stat` describes is the volume's.
    pub(super) fn note(&self, path: &Path, stat: &Stat, volume: &VolumeId) {
        let mut noted = self.lock();
        if noted.len() < NOTED_MAX || noted.contains_key(path) {
            let (volume, mount_id) = (volume.clone(), stat.mount_id);
            noted.insert(path.to_owned(), Noted { volume, mount_id });
        }
    }

    /// Nothing of a volume is mounted there.
    pub(super) fn forget(&self, path: &Path) {
        self.lock().remove(path);
    }

    /// Whether that mount was made for another volume.
    pub(super) fn is_of_another(&self, volume: &VolumeId, path: &Path, stat: &Stat) -> bool {
        let noted = self.lock();
        let noted = noted.get(path).filter(|it| it.mount_id == stat.mount_id);
        noted.is_some_and(|it| it.volume != *volume)
    }

    /// Whether that very mount was made for the volume.
    pub(super) fn is_of(&self, volume: &VolumeId, path: &Path, stat: &Stat) -> bool {
        let noted = self.lock();
        let noted = noted.get(path);
        let noted = noted.filter(|it| it.mount_id != 0 && it.mount_id == stat.mount_id);
        noted.is_some_and(|it| it.volume == *volume)
    }

    /// Where the volume is published.
    pub(super) fn of(&self, volume: &VolumeId) -> Vec<PathBuf> {
        let noted = self.lock();
        let its = noted.iter().filter(|(_, it)| it.volume == *volume);
        its.map(|(path, _)| path.clone()).collect()
    }

    /// Whether a volume is published there.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.lock().contains_key(path)
    }

    /// The volume that the path leads through.
    pub(super) fn around(&self, path: &Path) -> Option<VolumeId> {
        let noted = self.lock();
        let mut above = path.ancestors().skip(1);
        above.find_map(|path| noted.get(path).map(|it| it.volume.clone()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Noted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
