//! Which mount belongs to which device and volume.
//!
//! The kernel is the truth; this only saves asking it for everything. It is filled by one scan at
//! start and by our own mounts after that, and each entry is checked by statx before it counts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use belay_server::request::VolumeId;

use super::behind::{ask_btrfs, root_dev};
use crate::kernel::{Dev, FileKind, Kernel, MountEntry, Result, Stat};

/// Mount points by path and by device.
#[derive(Default)]
pub(crate) struct MountIndex {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_path: HashMap<PathBuf, Entry>,
    by_device: HashMap<Dev, Vec<PathBuf>>,
}

struct Entry {
    /// What a look at the mount's root must give: anonymous for btrfs.
    root: Dev,
    /// The block device behind it.
    device: Dev,
    /// The volume that was proven to be behind exactly this mount.
    proof: Option<Proof>,
}

struct Proof {
    volume: VolumeId,
    mount_id: u64,
}

impl MountIndex {
    /// Scans the mounts that are there already and keeps those of loop devices.
    ///
    /// # Errors
    /// When mountinfo cannot be read.
    pub(crate) fn scan<K: Kernel>(kernel: &K) -> Result<Self> {
        let index = MountIndex::default();
        for mount in kernel.mounts()? {
            if !may_be_on_a_loop(kernel, &mount) {
                continue;
            }
            let Some(stat) = kernel.look(&mount.point)?.filter(|stat| stat.mount_root) else {
                continue;
            };
            let root = root_dev(&stat);
            let device = match mount.fs_type.as_str() {
                "btrfs" => match ask_btrfs(kernel, &mount.point, &stat) {
                    Ok(device) => device,
                    // A failed disk must not keep the agent from its other volumes; and an unstage
                    // finds this mount once more, by an exclusive open of the device.
                    Err(failure) => {
                        tracing::warn!("the device behind {:?}: {failure}", mount.point);
                        continue;
                    }
                },
                _ => root,
            };
            if kernel.loop_number(device).is_some() {
                let entry = Entry {
                    root,
                    device,
                    proof: None,
                };
                index.lock().insert(mount.point, entry);
            }
        }
        Ok(index)
    }

    /// Notes a mount of `device` that we made or proved: `stat` is of its root.
    pub(crate) fn note(&self, path: &Path, stat: &Stat, device: Dev, volume: &VolumeId) {
        // Without unique mount ids (before Linux 6.8) an id may come again: then nothing is proven.
        let proof = (stat.mount_id != 0).then(|| Proof {
            volume: volume.clone(),
            mount_id: stat.mount_id,
        });
        self.lock().insert(
            path.to_owned(),
            Entry {
                root: root_dev(stat),
                device,
                proof,
            },
        );
    }

    /// Forgets a path that nothing is mounted on any more.
    pub(crate) fn forget(&self, path: &Path) {
        self.lock().remove(path);
    }

    /// The volume's device, if the mount whose root `stat` describes is the one that was proven to
    /// be the volume's. A filesystem holds its device; the bind of a raw device does not, so a
    /// proof of that says nothing about who has the device now.
    pub(crate) fn proven(&self, path: &Path, stat: &Stat, volume: &VolumeId) -> Option<Dev> {
        let inner = self.lock();
        let (entry, noted) = inner.noted(path, stat)?;
        (stat.kind != FileKind::BlockDevice && noted == volume).then_some(entry.device)
    }

    /// The volume that this very mount was noted for.
    pub(crate) fn noted(&self, path: &Path, stat: &Stat) -> Option<VolumeId> {
        let inner = self.lock();
        inner.noted(path, stat).map(|(_, volume)| volume.clone())
    }

    /// Where mounts were noted for that volume. Looks at all that are noted.
    pub(crate) fn of_volume(&self, volume: &VolumeId) -> Vec<PathBuf> {
        let inner = self.lock();
        let is_of = |entry: &Entry| entry.proof.as_ref().is_some_and(|p| p.volume == *volume);
        let found = inner.by_path.iter().filter(|(_, entry)| is_of(entry));
        found.map(|(path, _)| path.clone()).collect()
    }

    /// Files with this number are on a mount that is noted.
    pub(crate) fn shows(&self, dev: Dev) -> bool {
        let inner = self.lock();
        inner.by_path.values().any(|entry| entry.root == dev)
    }

    /// Where else the volume's device is mounted, as the kernel has it now: not at `except`, nor
    /// where a mirror of what is at `except` shows through propagation or a symlink.
    ///
    /// # Errors
    /// When a path cannot be looked at.
    pub(crate) fn others<K: Kernel>(
        &self,
        kernel: &K,
        volume: &VolumeId,
        device: Dev,
        except: &[&Path],
    ) -> Result<Vec<PathBuf>> {
        let noted = self.lock().mounts_of(device);
        let mut live = Vec::new();
        for (path, root) in noted {
            if except.contains(&path.as_path()) {
                continue;
            }
            let stat = kernel
                .look(&path)?
                .filter(|stat| stat.mount_root && root_dev(stat) == root);
            let Some(stat) = stat else {
                self.forget(&path);
                continue;
            };
            // The bind of a device that was taken away by force: its number is ours now.
            let is_stale = stat.kind == FileKind::BlockDevice
                && self
                    .noted(&path, &stat)
                    .is_some_and(|other| other != *volume);
            if !is_stale && !mirrors(kernel, &path, &stat, except)? {
                live.push(path);
            }
        }
        Ok(live)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic between two map updates leaves stale entries at worst, and those are checked.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn noted(&self, path: &Path, stat: &Stat) -> Option<(&Entry, &VolumeId)> {
        let entry = self.by_path.get(path)?;
        let proof = entry.proof.as_ref()?;
        (stat.mount_root && proof.mount_id == stat.mount_id).then_some((entry, &proof.volume))
    }

    fn mounts_of(&self, device: Dev) -> Vec<(PathBuf, Dev)> {
        let paths = self.by_device.get(&device).into_iter().flatten();
        paths
            .filter_map(|path| Some((path.clone(), self.by_path.get(path)?.root)))
            .collect()
    }

    fn insert(&mut self, path: PathBuf, entry: Entry) {
        self.remove(&path);
        self.by_device
            .entry(entry.device)
            .or_default()
            .push(path.clone());
        self.by_path.insert(path, entry);
    }

    fn remove(&mut self, path: &Path) {
        let Some(entry) = self.by_path.remove(path) else {
            return;
        };
        if let Some(paths) = self.by_device.get_mut(&entry.device) {
            paths.retain(|known| known != path);
            if paths.is_empty() {
                self.by_device.remove(&entry.device);
            }
        }
    }
}

/// What mountinfo tells of a mount leaves it open that a loop device is behind it. The source of a
/// btrfs is a name only; what is mounted by another one is missed here, and met at unstage.
fn may_be_on_a_loop<K: Kernel>(kernel: &K, mount: &MountEntry) -> bool {
    match mount.fs_type.as_str() {
        // Device nodes are bound from there.
        "devtmpfs" | "tmpfs" => true,
        "btrfs" => mount
            .source
            .to_str()
            .is_some_and(|source| source.starts_with("/dev/loop")),
        _ => kernel.loop_number(mount.dev).is_some(),
    }
}

/// The mount at `path` is one of those at `except`, met by another path, or a peer of one.
fn mirrors<K: Kernel>(kernel: &K, path: &Path, stat: &Stat, except: &[&Path]) -> Result<bool> {
    for known in except {
        let Some(known_stat) = kernel.look(known)?.filter(|known| known.mount_root) else {
            continue;
        };
        if known_stat.mount_id != 0 && known_stat.mount_id == stat.mount_id {
            return Ok(true);
        }
        let group = |path| Ok(kernel.statmount(path)?.map_or(0, |facts| facts.peer_group));
        let known_group = group(known)?;
        if known_group != 0 && known_group == group(path)? {
            return Ok(true);
        }
    }
    Ok(false)
}
