//! The disk of a volume, and the same held open.

use std::path::{Path, PathBuf};

use belay_contract::disk::DiskIdentity;
use belay_server::call::{Failure, Kind};

use super::identity::{Identity, Match};
use crate::device::{Held, Purpose};
use crate::kernel::{self, Cause, Disk, DiskAt, Disks, Kernel, Open};

/// The disk that was found for a volume.
pub(crate) struct VolumeDisk {
    disk: Disk,
    wanted: DiskIdentity,
}

/// What guards a disk that is held open: which one it is.
pub(crate) struct Plugged {
    disk: Disk,
}

impl VolumeDisk {
    pub(super) fn new(disk: Disk, wanted: DiskIdentity) -> Self {
        VolumeDisk { disk, wanted }
    }

    /// The disk, opened; `None` when it was removed.
    ///
    /// # Errors
    /// When it does not open.
    pub(in crate::device) fn open<K: Kernel>(
        &self,
        kernel: &K,
    ) -> kernel::Result<Option<Held<K, Plugged>>> {
        open(kernel, &self.disk, &self.wanted)
    }

    /// What to say where it was removed meanwhile.
    pub(in crate::device) fn removed(&self) -> Failure {
        removed(&self.disk)
    }
}

/// Opens that very disk, which is what is wanted: what its node leads to must have its number, and
/// be the one of that sequence number. `None` when it was removed.
///
/// # Errors
/// When it does not open.
pub(super) fn open<K: Kernel>(
    kernel: &K,
    disk: &Disk,
    wanted: &DiskIdentity,
) -> kernel::Result<Option<Held<K, Plugged>>> {
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
    Ok(is_it.then(|| Held {
        fd,
        path,
        guard: Plugged { disk: disk.clone() },
        // Until it was asked.
        is_shared: true,
        // Whether another process has a disk open, nothing shows but a claim.
        is_checked: true,
    }))
}

/// Whether the disk still says what is wanted: what shows before Linux 5.15 that it is still the
/// same.
fn says<K: Kernel>(kernel: &K, disk: &Disk, wanted: &DiskIdentity) -> kernel::Result<bool> {
    let identity = Identity::read(kernel, disk)?;
    Ok(identity.is_some_and(|it| it.matches(wanted) != Match::No))
}

/// The very disk is there.
///
/// # Errors
/// When sysfs cannot be read.
pub(super) fn is_plugged<K: Disks>(kernel: &K, disk: &Disk) -> kernel::Result<bool> {
    Ok(match kernel.disk(disk.dev)? {
        DiskAt::Disk(now) => now.name == disk.name && now.diskseq == disk.diskseq,
        DiskAt::Other | DiskAt::Nothing => false,
    })
}

/// Its node in devtmpfs.
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

impl<K: Kernel> Held<K, Plugged> {
    /// The same for that purpose.
    ///
    /// # Errors
    /// `ABORTED` when it is claimed and shall be a raw device: of a mounted one, a filesystem may
    /// be mounted once more.
    pub(in crate::device) fn hold(mut self, kernel: &K, purpose: Purpose) -> Result<Self, Failure> {
        self.is_shared = self.is_claimed(kernel)?;
        match purpose {
            Purpose::Raw { .. } if self.is_shared => Err(self.claimed()),
            _ => Ok(self),
        }
    }
}

impl Plugged {
    /// Its size in bytes. If that is less than `least`, the kernel reads the size of a SCSI disk
    /// again.
    ///
    /// # Errors
    /// When the kernel refuses.
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

    /// Refuses it once it was removed. While it is open, no other has its number.
    ///
    /// # Errors
    /// `UNAVAILABLE` when it was removed.
    pub(in crate::device) fn refuse_removed<K: Kernel>(&self, kernel: &K) -> Result<(), Failure> {
        match is_plugged(kernel, &self.disk)? {
            true => Ok(()),
            false => Err(removed(&self.disk)),
        }
    }
}
