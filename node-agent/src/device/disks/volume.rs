//! Finds and opens the disk of a volume, and describes a missing disk.

use std::fmt;
use std::path::{Path, PathBuf};

use belay_contract::disk::DiskIdentity;
use belay_server::call::{Failure, Kind};

use super::identity::{Identity, Match};
use crate::device::{OpenDevice, Purpose};
use crate::kernel::{self, Cause, Disk, DiskAt, Disks, Kernel, Open};

/// The disk that was found for a volume.
pub(crate) struct VolumeDisk {
    disk: Disk,
    /// The identity of the volume's disk, if a call has named it.
    wanted: Option<DiskIdentity>,
}

/// The guard of an open disk: identifies the disk by its name, number and sequence number.
pub(crate) struct Plugged {
    disk: Disk,
}

impl VolumeDisk {
    pub(super) fn new(disk: Disk, wanted: Option<DiskIdentity>) -> Self {
        VolumeDisk { disk, wanted }
    }

    /// Opens the disk. Returns `None` if the disk was removed.
    ///
    /// # Errors
    /// Returns an error if the disk cannot be opened.
    pub(in crate::device) fn open<K: Kernel>(
        &self,
        kernel: &K,
    ) -> kernel::Result<Option<OpenDevice<K, Plugged>>> {
        open(kernel, &self.disk, self.wanted.as_ref())
    }

    /// Returns the error for a disk that was removed in the meantime.
    pub(in crate::device) fn removed(&self) -> Failure {
        removed(&self.disk)
    }
}

/// Opens the disk. The opened node must have the disk's number and sequence number. Returns `None`
/// if the disk was removed.
///
/// # Errors
/// Returns an error if the disk cannot be opened.
pub(super) fn open<K: Kernel>(
    kernel: &K,
    disk: &Disk,
    wanted: Option<&DiskIdentity>,
) -> kernel::Result<Option<OpenDevice<K, Plugged>>> {
    let path = node(&disk.name);
    let fd = match kernel.open(&path, Open::DeviceRead) {
        Ok(fd) => fd,
        Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let is_it = kernel.stat(&fd)?.rdev == disk.dev
        && kernel.diskseq(&fd)? == disk.diskseq
        && (disk.diskseq != 0 || says(kernel, disk, wanted)?);
    Ok(is_it.then(|| OpenDevice {
        fd,
        path,
        guard: Plugged { disk: disk.clone() },
        // Assume that the disk has other users until `hold` has checked whether it is claimed.
        is_shared: true,
        // Disks have no leases, so another opener is visible only if it claims the disk.
        is_checked: true,
    }))
}

/// Whether the disk still has the identity `wanted`. Before Linux 5.15, only this check detects
/// that a disk was replaced.
fn says<K: Kernel>(kernel: &K, disk: &Disk, wanted: Option<&DiskIdentity>) -> kernel::Result<bool> {
    let Some(wanted) = wanted else {
        return Ok(false);
    };
    let identity = Identity::read(kernel, disk)?;
    Ok(identity.is_some_and(|it| it.matches(wanted) != Match::No))
}

/// Whether exactly this disk, with its name and sequence number, is still plugged in.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(super) fn is_plugged<K: Disks>(kernel: &K, disk: &Disk) -> kernel::Result<bool> {
    Ok(match kernel.disk(disk.dev)? {
        DiskAt::Disk(now) => now.name == disk.name && now.diskseq == disk.diskseq,
        DiskAt::Other | DiskAt::Nothing => false,
    })
}

/// Returns the path of the disk's node in devtmpfs.
pub(super) fn node(name: &str) -> PathBuf {
    Path::new("/dev").join(name)
}

fn removed(disk: &Disk) -> Failure {
    let message = format!(
        "{} was removed while it was used; the volume must be attached again",
        disk.name
    );
    Failure::new(Kind::Unreachable, message)
}

impl<K: Kernel> OpenDevice<K, Plugged> {
    /// Returns the disk, checked for this purpose.
    ///
    /// # Errors
    /// Returns `ABORTED` if the disk is claimed and the purpose is raw use. A claimed disk is
    /// accepted for a mount, because a filesystem can be mounted several times.
    pub(in crate::device) fn hold(mut self, kernel: &K, purpose: Purpose) -> Result<Self, Failure> {
        self.is_shared = self.is_claimed(kernel)?;
        match purpose {
            Purpose::Raw { .. } if self.is_shared => Err(self.claimed()),
            _ => Ok(self),
        }
    }
}

impl Plugged {
    pub(super) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Returns the size of the disk in bytes. If the size is below `least`, first makes the kernel
    /// read the size of a SCSI disk again.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(in crate::device) fn bytes<K: Kernel>(
        &self,
        kernel: &K,
        fd: &K::Fd,
        least: u64,
    ) -> kernel::Result<u64> {
        let bytes = kernel.device_bytes(fd)?;
        if bytes >= least {
            return Ok(bytes);
        }
        kernel.disk_rescan(&self.disk)?;
        kernel.device_bytes(fd)
    }

    /// Refuses a disk that was removed. The disk's number is not reused while the disk is open.
    ///
    /// # Errors
    /// Returns `UNAVAILABLE` if the disk was removed.
    pub(in crate::device) fn refuse_removed<K: Kernel>(&self, kernel: &K) -> Result<(), Failure> {
        match is_plugged(kernel, &self.disk)? {
            true => Ok(()),
            false => Err(removed(&self.disk)),
        }
    }
}

/// Maximum number of disks that a message lists.
const LISTED_MAX: usize = 32;

/// The description of a volume's missing disk, and of the disks that the node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    wanted: String,
    disks: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { wanted, disks } = self;
        write!(f, "{wanted} is not on this node; there are: {disks}")
    }
}

impl Missing {
    /// Describes the missing disk and the disks that the node has.
    pub(super) fn new(wanted: &DiskIdentity, disks: &[String]) -> Self {
        let listed = disks.get(..LISTED_MAX).unwrap_or(disks).join(", ");
        let disks = match disks.len().saturating_sub(LISTED_MAX) {
            0 if disks.is_empty() => "none".to_owned(),
            0 => listed,
            more => format!("{listed}, {more} more"),
        };
        Missing {
            wanted: words(wanted),
            disks,
        }
    }
}

/// Returns the identity of a disk as words, for messages.
pub(super) fn words(wanted: &DiskIdentity) -> String {
    match wanted {
        DiskIdentity::Serial(serial) => format!("the disk with serial {serial:?}"),
        DiskIdentity::Wwn(wwn) => format!("the disk with world-wide name {wwn}"),
        DiskIdentity::Names(names) => format!("the disk {}", names.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_lists_some_disks_and_counts_the_rest() {
        let wanted = DiskIdentity::Names(vec!["virtio-a".to_owned(), "virtio-b".to_owned()]);
        let message = |count: usize| {
            let disks: Vec<_> = (0..count).map(|number| format!("d{number}")).collect();
            Missing::new(&wanted, &disks).to_string()
        };
        let begin = "the disk virtio-a or virtio-b is not on this node; there are: ";
        assert_eq!(message(0), format!("{begin}none"));
        assert_eq!(message(2), format!("{begin}d0, d1"));
        assert!(message(LISTED_MAX + 3).ends_with("d31, 3 more"));
    }
}
