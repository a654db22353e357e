//! The number of volumes of a driver that the node can have. The bus of its disks also has disks
//! that are not volumes of the driver: the root disk, volumes of other drivers, disks that an
//! operator attached.
//!
//! A disk counts as such only if that is certain: one that no call has named may be a volume that
//! is being attached or detached, which the scheduler counts already. That takes up to [`SETTLED`].

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::device::{DiskSeen, DiskUser};
use crate::kernel::Kernel;

use super::Node;

/// How long after its arrival a disk may belong to a volume that is not staged yet, and how long
/// after its unstage to a volume that is not detached yet.
const SETTLED: Duration = Duration::from_secs(5 * 60);

/// The maximum number of the driver's volumes if the node can have `disks_max` disks. At least as
/// many as are in use, and at least 1, since 0 is no limit in CSI. Reads memory and sysfs; waits
/// for no disk.
pub(crate) fn volumes_max<K: Kernel>(node: &Node<K>, disks_max: u32, now: Instant) -> u32 {
    let (mut own, mut foreign) = (0, 0);
    let disks = node.transport.disks();
    let users = disks.map(|disks| disks.users(node.transport.driver()));
    let mut units = BTreeSet::new();
    for seen in users.unwrap_or_default() {
        let count = match user_of(node, &seen, now) {
            DiskUser::Driver => &mut own,
            DiskUser::OtherDriver | DiskUser::NoVolume => &mut foreign,
            DiskUser::Unknown => continue,
        };
        // Several paths lead to one unit.
        if seen.unit.is_none_or(|unit| units.insert(unit)) {
            *count += 1;
        }
    }
    disks_max.saturating_sub(foreign).max(own).max(1)
}

/// The user of a disk, judged also by its mounts and by the kernel's view of its content.
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
    // Without the kubelet's directory, a mount that the start found may be a volume's.
    let is_mounted = node.kubelet_dir.is_some() && !mounts.is_empty();
    // The kernel finds partitions in a raw volume, too.
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
