//! Volumes with a pending detach, as requested by their controller, and the mounts that block it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::Node;
use crate::kernel::Kernel;

/// The volumes whose pending detach was last found blocked by a mount, and its path.
#[derive(Default)]
pub(super) struct Pending(Mutex<BTreeMap<VolumeId, PathBuf>>);

impl Pending {
    /// The mount at that path blocks the volume's detach.
    pub(super) fn add(&self, volume: &VolumeId, path: PathBuf) {
        self.lock().insert(volume.clone(), path);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeId, PathBuf>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the volume has a pending detach.
///
/// # Errors
/// The kernel's error.
pub(crate) fn is_wanted<K: Kernel>(node: &Node<K>, volume: &VolumeId) -> Result<bool, Failure> {
    node.transport.is_wanted_back(&node.kernel, volume)
}

/// The volumes with a pending detach that are still mounted, and where.
///
/// # Errors
/// The kernel's error.
pub(super) fn pending<K: Kernel>(node: &Node<K>) -> Result<Vec<(VolumeId, PathBuf)>, Failure> {
    let known = node.pending.lock().clone();
    let mut left = Vec::new();
    for (volume, path) in known {
        let is_shown = || -> Result<bool, Failure> {
            let stat = node.kernel.look(&path)?;
            Ok(stat.is_some_and(|stat| stat.mount_root)
                || node.mounts().is_covered(&volume, &path)?)
        };
        if is_wanted(node, &volume)? && is_shown()? {
            left.push((volume, path));
        } else {
            node.pending.lock().remove(&volume);
        }
    }
    Ok(left)
}
