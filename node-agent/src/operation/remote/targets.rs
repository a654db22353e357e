//! The target paths at which this process has published volumes. The list is only a cache, because
//! the mounts in the kernel are authoritative. If a mount is not in the cache, another process has
//! made it, and it is assumed to belong to the volume of the request.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use belay_server::lock::Lock;
use belay_server::request::VolumeId;

use crate::kernel::Stat;

/// Maximum number of cached targets, far more than a node has.
const NOTED_MAX: usize = 16_384;

/// The published volumes, by their target paths.
#[derive(Default)]
pub(super) struct Targets(Lock<HashMap<PathBuf, Noted>>);

struct Noted {
    volume: VolumeId,
    /// The unique ID of the mount; 0 if the kernel has no unique mount IDs.
    mount_id: u64,
}

impl Targets {
    /// Records that the mount on `path`, whose root `stat` describes, belongs to the volume.
    pub(super) fn note(&self, path: &Path, stat: &Stat, volume: &VolumeId) {
        let mut noted = self.0.lock();
        if noted.len() < NOTED_MAX || noted.contains_key(path) {
            let (volume, mount_id) = (volume.clone(), stat.mount_id);
            noted.insert(path.to_owned(), Noted { volume, mount_id });
        }
    }

    /// Removes a path from the cache, because no volume is mounted there.
    pub(super) fn forget(&self, path: &Path) {
        self.0.lock().remove(path);
    }

    /// Whether this mount was made for a different volume.
    pub(super) fn is_of_another(&self, volume: &VolumeId, path: &Path, stat: &Stat) -> bool {
        let noted = self.0.lock();
        let noted = noted.get(path).filter(|it| it.mount_id == stat.mount_id);
        noted.is_some_and(|it| it.volume != *volume)
    }

    /// Whether exactly this mount was made for the volume. Returns `false` if the kernel has no
    /// unique mount IDs.
    pub(super) fn is_of(&self, volume: &VolumeId, path: &Path, stat: &Stat) -> bool {
        let noted = self.0.lock();
        let noted = noted.get(path);
        let noted = noted.filter(|it| it.mount_id != 0 && it.mount_id == stat.mount_id);
        noted.is_some_and(|it| it.volume == *volume)
    }

    /// Returns the paths at which the volume is published.
    pub(super) fn of(&self, volume: &VolumeId) -> Vec<PathBuf> {
        let noted = self.0.lock();
        let its = noted.iter().filter(|(_, it)| it.volume == *volume);
        its.map(|(path, _)| path.clone()).collect()
    }

    /// Whether a volume is published at the path.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.0.lock().contains_key(path)
    }

    /// Returns the published volume that contains the path; `None` if the path is not inside a
    /// published volume.
    pub(super) fn around(&self, path: &Path) -> Option<VolumeId> {
        let noted = self.0.lock();
        let mut above = path.ancestors().skip(1);
        above.find_map(|path| noted.get(path).map(|it| it.volume.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Dev, FileKind};

    fn mount(mount_id: u64) -> Stat {
        let dev = Dev { major: 0, minor: 7 };
        Stat {
            kind: FileKind::Directory,
            dev,
            rdev: dev,
            ino: 1,
            bytes: 0,
            allocated: 0,
            links: 2,
            mount_root: true,
            mount_id,
        }
    }

    #[test]
    fn a_mount_is_a_volumes_by_its_path_and_unique_id() {
        let (targets, path) = (Targets::default(), Path::new("/pods/1"));
        let [one, other] = ["one", "other"].map(|id| VolumeId::new(id).unwrap());
        targets.note(path, &mount(5), &one);
        assert!(targets.is_of(&one, path, &mount(5)));
        assert!(!targets.is_of(&one, path, &mount(6)));
        assert!(!targets.is_of(&other, path, &mount(5)));
        assert!(targets.is_of_another(&other, path, &mount(5)));
        assert!(!targets.is_of_another(&other, path, &mount(6)));
        // Without unique mount IDs, a later mount may have the same ID.
        targets.note(path, &mount(0), &one);
        assert!(!targets.is_of(&one, path, &mount(0)));
        assert_eq!(targets.of(&one), [path]);
        targets.forget(path);
        assert!(!targets.has(path) && targets.of(&one).is_empty());
    }

    #[test]
    fn no_more_targets_are_noted_than_any_node_has() {
        let (targets, volume) = (Targets::default(), VolumeId::new("vol").unwrap());
        let path = |number: usize| PathBuf::from(format!("/pods/{number}"));
        for number in 0..=NOTED_MAX {
            targets.note(&path(number), &mount(1), &volume);
        }
        assert_eq!(targets.of(&volume).len(), NOTED_MAX);
        assert!(!targets.has(&path(NOTED_MAX)));
        targets.note(&path(0), &mount(2), &volume);
        assert!(targets.is_of(&volume, &path(0), &mount(2)), "it was there");
    }
}
