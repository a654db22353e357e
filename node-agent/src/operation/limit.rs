//! Computes the maximum number of a driver's volumes on the node. The number of disks that can be
//! attached to the node also includes disks that are not volumes of the driver: the root disk,
//! volumes of other drivers, and disks that an operator attached. If the cloud limits only its
//! volumes, other disks such as the root disk do not count.
//!
//! A disk reduces the maximum only if the disk is certainly not a volume of the driver. If no call
//! has named a disk yet, the disk may be a volume that is being attached or detached, and the
//! scheduler already counts this volume. An attachment or a detachment takes at most [`SETTLED`].

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::device::{DiskSeen, DiskUser};
use crate::kernel::Kernel;

use super::Node;

/// Maximum time between the appearance of a disk and the NodeStageVolume call for its volume, and
/// between NodeUnstageVolume and the removal of the disk.
const SETTLED: Duration = Duration::from_secs(5 * 60);

/// Returns the maximum number of the driver's volumes if the node can have `disks_max` disks. The
/// result is at least the number of volumes in use, and at least 1, because 0 means no limit in
/// CSI. Reads only memory and sysfs, and never blocks on a disk.
pub(crate) fn volumes_max<K: Kernel>(node: &Node<K>, disks_max: u32, now: Instant) -> u32 {
    let (mut own, mut foreign) = (0, 0);
    let mut units = BTreeSet::new();
    for seen in node.transport.limited_disks() {
        let count = match user_of(node, &seen, now) {
            DiskUser::Driver => &mut own,
            DiskUser::OtherDriver | DiskUser::NoVolume => &mut foreign,
            DiskUser::Unknown => continue,
        };
        // Count a disk with several paths (multipath) only once.
        if seen.unit.is_none_or(|unit| units.insert(unit)) {
            *count += 1;
        }
    }
    disks_max.saturating_sub(foreign).max(own).max(1)
}

/// Returns whether the disk is used by this driver, by a different driver, or otherwise. Considers
/// the mounts of the disk, and whether the kernel has found partitions on the disk.
fn user_of<K: Kernel>(node: &Node<K>, seen: &DiskSeen, now: Instant) -> DiskUser {
    let (disk, known) = (&seen.disk, seen.user);
    if known == DiskUser::Driver {
        return known;
    }
    let driver = node.transport.driver();
    let mounts = node.index.at(disk.dev);
    let is_own = mounts
        .iter()
        .any(|(path, is_noted, label)| match (is_noted, label) {
            (true, _) => true,
            (false, Some(label)) => label.is_of_driver(driver),
            (false, None) => {
                let kubelet_dir = node.kubelet_dir.as_ref();
                kubelet_dir.is_some_and(|dir| dir.staging_of(driver, path).is_some())
            }
        });
    // Without `--kubelet-dir`, a mount that existed when the agent started may be a volume's, so
    // ignore the mounts.
    let is_mounted = node.kubelet_dir.is_some() && !mounts.is_empty();
    // The kernel also finds partitions on a raw volume, so consider partitions only on a disk that
    // has been attached for longer than `SETTLED`.
    let is_divided = || match node.kernel.disk_is_divided(disk) {
        Ok(is_divided) => is_divided,
        Err(error) => {
            tracing::debug!("{} counts as a volume: {error}", disk.name);
            false
        }
    };
    let age = seen.since.map(|since| now.saturating_duration_since(since));
    let is_settled = age.is_none_or(|age| age >= SETTLED);
    match known {
        _ if is_own => DiskUser::Driver,
        DiskUser::Unknown if is_mounted || is_settled && is_divided() => DiskUser::NoVolume,
        _ => known,
    }
}
