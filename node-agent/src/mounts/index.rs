//! An index of the mounts by device and volume.
//!
//! The kernel's mount table is authoritative; the index only avoids reading that table for each
//! call. At startup, the agent fills the index by a scan of the mount table, and later adds its own
//! mounts. Each entry is checked with statx(2) before use. If a mount is not visible at its path,
//! the mount table is read, because another mount may hide it.

mod scan;
mod volumes;

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use belay_server::lock::Lock;
use belay_server::request::VolumeId;

use super::Mounts;
use super::behind::{Behind, device_behind, root_dev};
use super::mirrors::mirrors;
use super::table::Covered;
use crate::device::Label;
use crate::kernel::{Dev, FileKind, Inode, Kernel, Result, Stat};

/// Mount points by path, by volume and by device.
#[derive(Default)]
pub(crate) struct MountIndex {
    inner: Lock<Inner>,
}

#[derive(Default)]
struct Inner {
    by_path: HashMap<Arc<Path>, Entry>,
    by_device: HashMap<Dev, Vec<Arc<Path>>>,
    /// The backing file of each mounted device that was proven to belong to a volume.
    files: HashMap<Dev, Inode>,
    /// The devices whose filesystems cannot have project quotas according to their superblocks.
    without_projects: HashSet<Dev>,
    /// The paths of the mounts that were proven to belong to each volume.
    by_volume: HashMap<VolumeId, Vec<Arc<Path>>>,
    /// The path and device of each mount that the startup scan found under a mount of a different
    /// device.
    stacked: Vec<(PathBuf, Dev)>,
}

#[derive(Clone)]
struct Entry {
    /// The device number that the stat of the mount's root must have; anonymous for btrfs. `None`
    /// if unknown: the startup scan found a btrfs.
    root: Option<Dev>,
    /// The block device of the mount.
    device: Dev,
    /// The volume for which the mount was recorded; `None` if only the startup scan found the
    /// mount.
    noted: Option<Noted>,
    /// The label of a raw device's bind mount that the startup scan found.
    label: Option<Label>,
    /// Whether the mount's statistics can be read on the event loop; `None` before the first
    /// attempt.
    is_read_in_place: Option<bool>,
}

#[derive(Clone)]
struct Noted {
    volume: VolumeId,
    /// The unique ID of the mount. With the value 0, the record does not prove that the mount is
    /// the volume's: either the kernel has no unique mount IDs (before Linux 6.8), or the volume's
    /// disk could not be distinguished from the cloud's other disks.
    mount_id: u64,
}

impl MountIndex {
    /// Records a mount of `device` that the agent made or verified; `stat` describes the mount's
    /// root.
    pub(crate) fn note(&self, path: &Path, stat: &Stat, device: Dev, volume: &VolumeId) {
        let noted = Some(Noted {
            volume: volume.clone(),
            mount_id: stat.mount_id,
        });
        let entry = Entry {
            root: Some(root_dev(stat)),
            device,
            noted,
            label: None,
            is_read_in_place: None,
        };
        self.lock().insert(path, entry);
    }

    /// Records the backing file of a recorded device; `None` for a disk.
    pub(crate) fn note_file(&self, device: Dev, file: Option<Inode>) {
        if let Some(file) = file {
            self.lock().files.insert(device, file);
        }
    }

    /// Returns the device's backing file if a filesystem on the device is mounted and was proven to
    /// be a volume's. A mounted device cannot get a different backing file.
    pub(crate) fn file_behind(&self, device: Dev) -> Option<Inode> {
        self.lock().files.get(&device).copied()
    }

    /// Removes a path from the index, because the recorded mount no longer exists.
    pub(crate) fn forget(&self, path: &Path) {
        self.lock().remove(path);
    }

    /// Returns the volume's device if the mount whose root `stat` describes was verified to be the
    /// volume's. Returns `None` for a raw device: a filesystem keeps its device bound, but a bind
    /// mount does not, so the device may belong to another volume by now.
    pub(crate) fn proven(&self, path: &Path, stat: &Stat, volume: &VolumeId) -> Option<Dev> {
        let inner = self.lock();
        let (entry, noted) = inner.noted(path, stat)?;
        (stat.kind != FileKind::BlockDevice && noted == volume).then_some(entry.device)
    }

    /// Returns the volume for which exactly this mount was recorded, according to its unique ID.
    pub(crate) fn noted(&self, path: &Path, stat: &Stat) -> Option<VolumeId> {
        let inner = self.lock();
        inner.noted(path, stat).map(|(_, volume)| volume.clone())
    }

    /// Whether exactly this mount was recorded for the volume, according to its unique ID.
    pub(crate) fn is_noted_for(&self, path: &Path, stat: &Stat, volume: &VolumeId) -> bool {
        let inner = self.lock();
        let noted = inner.noted(path, stat);
        noted.is_some_and(|(_, noted)| noted == volume)
    }

    /// Whether the mount at `path` was recorded for a different volume, even if another mount hides
    /// it.
    pub(super) fn is_noted_for_another(&self, path: &Path, volume: &VolumeId) -> bool {
        let inner = self.lock();
        let entry = inner.by_path.get(path);
        entry.is_some_and(|entry| entry.is_noted_for_another(volume))
    }

    /// Whether files with this device number are possibly on a recorded mount.
    pub(crate) fn shows(&self, dev: Dev) -> bool {
        let may_be = |entry: &Entry| entry.root.is_none_or(|root| root == dev);
        self.lock().by_path.values().any(may_be)
    }

    /// Whether a check of all mounts of the device must open a mount that only the startup scan
    /// found.
    pub(crate) fn has_unseen(&self, device: Dev) -> bool {
        let noted = self.lock().mounts_of(device);
        noted.iter().any(|(_, entry)| entry.root.is_none())
    }

    fn learn(&self, path: &Path, root: Dev) {
        if let Some(entry) = self.lock().by_path.get_mut(path) {
            entry.root = entry.root.or(Some(root));
        }
    }

    /// Whether any mount of the device is recorded, even if the mount no longer exists.
    pub(crate) fn has(&self, device: Dev) -> bool {
        self.lock().by_device.contains_key(&device)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A poisoned lock is harmless: a panic between two map updates leaves at worst stale
        // entries, and every entry is checked before use.
        self.inner.lock()
    }
}

impl<K: Kernel> Mounts<'_, K> {
    /// Returns the paths of all existing mounts of the volume's device, except the mounts at
    /// `except` and copies of these by mount propagation or through a symlink. Includes mounts that
    /// are hidden by other mounts.
    ///
    /// # Errors
    /// Returns an error if a path cannot be inspected.
    pub(crate) fn others(
        &self,
        volume: &VolumeId,
        device: Dev,
        except: &[&Path],
    ) -> Result<Vec<PathBuf>> {
        let (kernel, index) = (self.kernel, self.index);
        let noted = index.lock().mounts_of(device);
        let mut covered = Covered::new(kernel, self.transport, volume, device);
        let mut live = Vec::new();
        for (path, entry) in noted {
            if except.contains(&&*path) {
                continue;
            }
            let Some(stat) = seen(kernel, &path, &entry)? else {
                if !covered.is_at(&path)? {
                    index.forget(&path);
                } else if !self.is_known_as_another(&entry, volume)
                    && !covered.mirrors(&path, except)?
                {
                    live.push(path.to_path_buf());
                }
                continue;
            };
            index.learn(&path, root_dev(&stat));
            // A bind mount of a forcibly detached device shows the next device that gets this
            // number.
            let is_stale = stat.kind == FileKind::BlockDevice
                && match index.noted(&path, &stat) {
                    Some(noted) => noted != *volume,
                    None => self.is_of_another(self.label(&path, &stat)?.as_ref(), volume),
                };
            if !is_stale && !mirrors(kernel, &path, &stat, except)? {
                live.push(path.to_path_buf());
            }
        }
        let stacked = index.lock().stacked_of(device);
        for path in stacked {
            if covered.is_at(&path)? && !covered.mirrors(&path, except)? {
                live.push(path);
            }
        }
        Ok(live)
    }

    /// Whether another mount hides a mount that was recorded at the path for the volume or without
    /// a volume. The caller must have found that the mount is not visible at the path. A mount that
    /// no longer exists is removed from the index.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read, or a symlink in the path cannot be
    /// followed.
    pub(crate) fn is_covered(&self, volume: &VolumeId, path: &Path) -> Result<bool> {
        let (kernel, index) = (self.kernel, self.index);
        let Some(entry) = index.lock().by_path.get(path).cloned() else {
            return Ok(false);
        };
        let mut covered = Covered::new(kernel, self.transport, volume, entry.device);
        // The mount table contains paths without symlinks.
        if !covered.is_at(path)? && !covered.is_at(&without_links(kernel, path)?)? {
            index.forget(path);
            return Ok(false);
        }
        Ok(!self.is_known_as_another(&entry, volume))
    }

    fn is_known_as_another(&self, entry: &Entry, volume: &VolumeId) -> bool {
        entry.is_noted_for_another(volume) || self.is_of_another(entry.label.as_ref(), volume)
    }

    /// Whether the device is mounted at a recorded path. If the mount is a bind mount with a label,
    /// the label must name the device that now has this number.
    ///
    /// # Errors
    /// Returns the same errors as [`Mounts::others`].
    pub(crate) fn is_mounted(&self, device: Dev) -> Result<bool> {
        let noted = self.index.lock().mounts_of(device);
        for (path, entry) in noted {
            let label = match seen(self.kernel, &path, &entry)? {
                Some(stat) => self.label(&path, &stat)?,
                None => entry.label,
            };
            if label.map_or(Ok(true), |label| label.is_current(self.kernel))? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the path with its symlinks resolved; its last components need not exist.
///
/// # Errors
/// Returns an error if a symlink in the path cannot be resolved.
pub(crate) fn without_links<K: Kernel>(kernel: &K, path: &Path) -> Result<PathBuf> {
    for above in path.ancestors().skip(1) {
        if let (Some(real), Ok(rest)) = (kernel.real(above)?, path.strip_prefix(above)) {
            return Ok(real.join(rest));
        }
    }
    Ok(path.to_owned())
}

impl Inner {
    fn noted(&self, path: &Path, stat: &Stat) -> Option<(&Entry, &VolumeId)> {
        let entry = self.by_path.get(path)?;
        let proof = entry.proof()?;
        (stat.mount_root && proof.mount_id == stat.mount_id).then_some((entry, &proof.volume))
    }

    fn mounts_of(&self, device: Dev) -> Vec<(Arc<Path>, Entry)> {
        let paths = self.by_device.get(&device).into_iter().flatten();
        paths
            .filter_map(|path| Some((Arc::clone(path), self.by_path.get(path)?.clone())))
            .collect()
    }

    fn stacked_of(&self, device: Dev) -> Vec<PathBuf> {
        let stacked = self.stacked.iter().filter(|(_, of)| *of == device);
        stacked.map(|(path, _)| path.clone()).collect()
    }

    fn insert(&mut self, path: &Path, entry: Entry) {
        self.remove(path);
        let path: Arc<Path> = path.into();
        let of_device = self.by_device.entry(entry.device).or_default();
        of_device.push(Arc::clone(&path));
        if let Some(proof) = entry.proof() {
            let of_volume = self.by_volume.entry(proof.volume.clone()).or_default();
            of_volume.push(Arc::clone(&path));
        }
        self.by_path.insert(path, entry);
    }

    fn remove(&mut self, path: &Path) {
        let Some(entry) = self.by_path.remove(path) else {
            return;
        };
        unlist(&mut self.by_device, &entry.device, path);
        if !self.by_device.contains_key(&entry.device) {
            self.files.remove(&entry.device);
            self.without_projects.remove(&entry.device);
        }
        if let Some(proof) = entry.proof() {
            unlist(&mut self.by_volume, &proof.volume, path);
        }
    }
}

/// Removes the path from the list that belongs to the key.
fn unlist<Key: Eq + Hash>(lists: &mut HashMap<Key, Vec<Arc<Path>>>, key: &Key, path: &Path) {
    if let Some(paths) = lists.get_mut(key) {
        paths.retain(|known| **known != *path);
        if paths.is_empty() {
            lists.remove(key);
        }
    }
}

impl Entry {
    /// Returns the recorded volume if the unique ID of the mount was recorded, too.
    fn proof(&self) -> Option<&Noted> {
        self.noted.as_ref().filter(|noted| noted.mount_id != 0)
    }

    /// Whether the mount was recorded for a different volume; its device must then have been
    /// detached by force since.
    fn is_noted_for_another(&self, volume: &VolumeId) -> bool {
        let proof = self.proof();
        proof.is_some_and(|proof| proof.volume != *volume)
    }
}

/// Returns the stat of the path; `None` if the recorded mount is not visible there.
fn seen<K: Kernel>(kernel: &K, path: &Path, entry: &Entry) -> Result<Option<Stat>> {
    let stat = kernel.look(path)?.filter(|stat| stat.mount_root);
    let is_it = |stat: &Stat| match entry.root {
        Some(root) => root_dev(stat) == root,
        // A mount that cannot be queried may be the recorded mount.
        None => match device_behind(kernel, path, stat) {
            Ok(Behind::Device(device)) => device == entry.device,
            Ok(Behind::Removed) | Err(_) => true,
        },
    };
    Ok(stat.filter(is_it))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn device(minor: u32) -> Dev {
        Dev { major: 7, minor }
    }

    /// Returns the stat of the root of a mount on the first device.
    fn root(kind: FileKind, mount_id: u64) -> Stat {
        Stat {
            kind,
            dev: device(1),
            rdev: device(0),
            ino: 2,
            bytes: 0,
            allocated: 0,
            links: 2,
            mount_root: true,
            mount_id,
        }
    }

    fn volume(name: &str) -> VolumeId {
        VolumeId::new(name).unwrap()
    }

    #[test]
    fn a_path_is_listed_for_the_volume_and_the_device_that_it_was_noted_for_last() {
        let index = MountIndex::default();
        let note = |path: &str, name, mount_id| {
            let stat = root(FileKind::Directory, mount_id);
            index.note(Path::new(path), &stat, device(1), &volume(name));
        };
        let listed = |name| {
            let mut paths = index.of_volume(&volume(name));
            paths.sort();
            paths
        };
        note("/staging", "one", 5);
        note("/target", "one", 6);
        assert_eq!(listed("one"), [Path::new("/staging"), Path::new("/target")]);
        note("/target", "two", 7);
        // A record without a mount ID does not prove that the mount is the volume's.
        note("/other", "two", 0);
        assert_eq!(listed("one"), [Path::new("/staging")]);
        assert_eq!(listed("two"), [Path::new("/target")]);
        for path in ["/staging", "/target", "/other"] {
            assert!(index.has(device(1)), "{path}");
            index.forget(Path::new(path));
        }
        let inner = index.lock();
        assert!(!inner.by_device.contains_key(&device(1)) && inner.by_volume.is_empty());
    }
    #[test]
    fn a_mount_proves_its_volume_only_while_it_is_the_one_that_was_noted() {
        let index = MountIndex::default();
        let (path, one, two) = (Path::new("/staging"), volume("one"), volume("two"));
        let stat = root(FileKind::Directory, 5);
        index.note(path, &stat, device(1), &one);
        let other_id = root(FileKind::Directory, 6);
        let beneath = Stat {
            mount_root: false,
            ..stat
        };
        for (stat, is_it) in [(stat, true), (other_id, false), (beneath, false)] {
            let device = is_it.then_some(device(1));
            assert_eq!(index.proven(path, &stat, &one), device);
            assert_eq!(index.proven(path, &stat, &two), None);
            assert_eq!(index.noted(path, &stat).is_some(), is_it);
            assert_eq!(index.is_noted_for(path, &stat, &one), is_it);
            assert!(!index.is_noted_for(path, &stat, &two));
        }
        assert!(index.is_noted_for_another(path, &two));
        assert!(!index.is_noted_for_another(path, &one));
        // A bind mount does not keep its loop device bound to the file.
        let bind = root(FileKind::BlockDevice, 7);
        index.note(path, &bind, device(0), &one);
        assert_eq!(index.proven(path, &bind, &one), None);
        assert_eq!(index.noted(path, &bind), Some(one));
    }

    #[test]
    fn the_file_behind_a_device_is_known_while_a_mount_of_it_is() {
        let index = MountIndex::default();
        let file = Inode {
            dev: device(9),
            ino: 3,
        };
        let stat = root(FileKind::Directory, 5);
        for path in ["/a", "/b"] {
            index.note(Path::new(path), &stat, device(1), &volume("one"));
        }
        index.note_file(device(1), None);
        assert_eq!(index.file_behind(device(1)), None);
        index.note_file(device(1), Some(file));
        for path in ["/a", "/b"] {
            assert_eq!(index.file_behind(device(1)), Some(file), "{path}");
            index.forget(Path::new(path));
        }
        assert_eq!(index.file_behind(device(1)), None);
        assert!(!index.has(device(1)));
    }

    #[test]
    fn a_mount_that_the_scan_has_found_may_show_any_number_until_it_was_seen() {
        let index = MountIndex::default();
        let scanned = |device: Dev, root: Option<Dev>| Entry {
            root,
            device,
            noted: None,
            label: None,
            is_read_in_place: None,
        };
        let [staging, target] = ["/staging", "/target"].map(Path::new);
        index
            .lock()
            .insert_scanned(staging, scanned(device(1), None));
        index
            .lock()
            .insert_scanned(target, scanned(device(2), Some(device(2))));
        assert!(index.has_unseen(device(1)) && !index.has_unseen(device(2)));
        assert!(index.shows(device(7)));
        index.learn(staging, device(3));
        assert!(!index.has_unseen(device(1)) && !index.shows(device(7)));
        assert!(index.shows(device(3)) && index.shows(device(2)));
        // Once the root of the mount has been inspected, the entry contains the root's device
        // number.
        index.learn(staging, device(4));
        assert!(index.shows(device(3)) && !index.shows(device(4)));
        // A mount is recorded as hidden only if the mount on top of it is of a different device.
        for (above, stacked) in [(device(1), &[][..]), (device(2), &[staging][..])] {
            index.lock().insert_scanned(staging, scanned(above, None));
            assert_eq!(index.lock().stacked_of(device(1)), stacked, "{above}");
            assert!(index.lock().stacked_of(device(2)).is_empty());
        }
    }
}
