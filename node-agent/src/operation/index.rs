//! Which mount belongs to which device and volume.
//!
//! The kernel is the truth; this only saves asking it for everything. It is filled by one scan at
//! start and by our own mounts after that, and each entry is checked by statx before it counts.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use belay_server::request::VolumeId;

use crate::kernel::{Dev, FileKind, Kernel, Result, Stat};

/// Mount points by path and by device.
#[derive(Default)]
pub(crate) struct MountIndex {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_path: HashMap<PathBuf, Entry>,
    by_dev: HashMap<Dev, Vec<PathBuf>>,
}

struct Entry {
    dev: Dev,
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
            let may_be_loop_node = mount.fs_type == "devtmpfs" || mount.fs_type == "tmpfs";
            if kernel.loop_number(mount.dev).is_none() && !may_be_loop_node {
                continue;
            }
            if let Some(stat) = kernel.look(&mount.point)?
                && stat.mount_root
                && kernel.loop_number(device_of(&stat)).is_some()
            {
                let dev = device_of(&stat);
                index.lock().insert(mount.point, Entry { dev, proof: None });
            }
        }
        Ok(index)
    }

    /// Notes a mount that we made or proved: `stat` is of its root.
    pub(crate) fn note(&self, path: &Path, stat: &Stat, volume: &VolumeId) {
        // Without unique mount ids (before Linux 6.8) an id may come again: then nothing is proven.
        let proof = (stat.mount_id != 0).then(|| Proof {
            volume: volume.clone(),
            mount_id: stat.mount_id,
        });
        self.lock().insert(
            path.to_owned(),
            Entry {
                dev: device_of(stat),
                proof,
            },
        );
    }

    /// Forgets a path that nothing is mounted on any more.
    pub(crate) fn forget(&self, path: &Path) {
        self.lock().remove(path);
    }

    /// The mount whose root `stat` describes is the one that was proven to be the volume's. A
    /// filesystem holds its device; the bind of a raw device does not, so a proof of that says
    /// nothing about who has the device now.
    pub(crate) fn is_proven(&self, path: &Path, stat: &Stat, volume: &VolumeId) -> bool {
        stat.kind != FileKind::BlockDevice && self.noted(path, stat).as_ref() == Some(volume)
    }

    /// The volume that this very mount was noted for.
    pub(crate) fn noted(&self, path: &Path, stat: &Stat) -> Option<VolumeId> {
        let inner = self.lock();
        let proof = inner.by_path.get(path)?.proof.as_ref()?;
        (stat.mount_root && proof.mount_id == stat.mount_id).then(|| proof.volume.clone())
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
        dev: Dev,
        except: &[&Path],
    ) -> Result<Vec<PathBuf>> {
        let noted = self.lock().by_dev.get(&dev).cloned().unwrap_or_default();
        let mut live = Vec::new();
        for path in noted {
            if except.contains(&path.as_path()) {
                continue;
            }
            let stat = kernel
                .look(&path)?
                .filter(|stat| stat.mount_root && device_of(stat) == dev);
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
    fn insert(&mut self, path: PathBuf, entry: Entry) {
        self.remove(&path);
        self.by_dev.entry(entry.dev).or_default().push(path.clone());
        self.by_path.insert(path, entry);
    }

    fn remove(&mut self, path: &Path) {
        let Some(entry) = self.by_path.remove(path) else {
            return;
        };
        if let Some(paths) = self.by_dev.get_mut(&entry.dev) {
            paths.retain(|known| known != path);
            if paths.is_empty() {
                self.by_dev.remove(&entry.dev);
            }
        }
    }
}

/// The device that a mount's root stands for: the node itself for raw block, else its filesystem's.
pub(super) fn device_of(stat: &Stat) -> Dev {
    match stat.kind {
        FileKind::BlockDevice => stat.rdev,
        _ => stat.dev,
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
