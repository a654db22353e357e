//! How a volume becomes a block device, and whose a device is. Nothing here mounts.
//!
//! Operations see a [`Transport`], the [`Storage`] of a volume, a device that is [`Held`], and the
//! [`Verdict`] on a device. What a device is made of is known in its transport's folder alone.

mod loops;

use std::path::{Path, PathBuf};

use belay_server::call::Failure;

use crate::kernel::{self, Cause, Dev, Kernel, Open, Patience, failed_busy, while_busy};

#[cfg(test)]
pub(crate) use loops::loop_path;
pub(crate) use loops::{LoopDir, carries_volumes, dev_named, ext4_errors, node_of, size_of};

/// Where the volumes of a driver are. A second kind of it makes this an enum of both.
pub(crate) type Transport<K> = LoopDir<K>;

/// What a volume is stored in, as this node has it.
pub(crate) type Storage<K> = loops::VolumeFile<K>;

/// What a volume's device is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A filesystem, which holds the device for as long as it is mounted.
    Filesystem,
    /// The device itself. Its bind mount does not hold it.
    Raw { read_only: bool },
}

/// What follows if a device is a volume's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The volume is used.
    Use,
    /// It is taken down: storage that cannot be read counts like storage that is gone.
    TakeDown,
}

/// What a device is to a volume.
pub(crate) enum Verdict<K: Kernel> {
    /// It is the volume's.
    Ours(Held<K>),
    /// It was attached for the volume, whose storage is gone since, elsewhere, or replaced.
    Stale(Held<K>),
    /// It is attached to nothing: what shows it is left over.
    Unbound,
    /// It is somebody else's.
    Foreign,
}

impl<K: Kernel> Verdict<K> {
    /// The device, if it is or was the volume's.
    pub(crate) fn held(&self) -> Option<&Held<K>> {
        match self {
            Verdict::Ours(device) | Verdict::Stale(device) => Some(device),
            Verdict::Unbound | Verdict::Foreign => None,
        }
    }

    /// [`Verdict::held`], to keep.
    pub(crate) fn into_held(self) -> Option<Held<K>> {
        match self {
            Verdict::Ours(device) | Verdict::Stale(device) => Some(device),
            Verdict::Unbound | Verdict::Foreign => None,
        }
    }
}

/// An attached device, held open: its number is not given to another one meanwhile.
pub(crate) struct Held<K: Kernel> {
    // Declared before its guard: the device is closed first.
    fd: K::Fd,
    path: PathBuf,
    guard: loops::Bound<K>,
    /// Somebody had it claimed when it was taken over: a mount that we do not see, or a mkfs that
    /// outlived us.
    pub(crate) is_shared: bool,
    /// It could be told, when it was attached, that nobody else had its storage open.
    pub(crate) is_checked: bool,
}

impl<K: Kernel> Held<K> {
    /// The open device.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// Its node, which is what mount shows as the source.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Its number.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn dev(&self, kernel: &K) -> kernel::Result<Dev> {
        Ok(kernel.stat(&self.fd)?.rdev)
    }

    /// Whether somebody claims it now: a mount in any namespace, or a running mkfs. A mere reader
    /// does not.
    ///
    /// # Errors
    /// When it cannot be opened at all.
    pub(crate) fn is_claimed(&self, kernel: &K) -> kernel::Result<bool> {
        let exclusive = || kernel.reopen(&self.fd, Open::DeviceExclusive);
        match while_busy(kernel, Patience::Moment, failed_busy, exclusive) {
            Ok(_) => Ok(false),
            Err(error) if error.cause() == Cause::Busy => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// For what needs the device to itself.
    ///
    /// # Errors
    /// `ABORTED` while somebody claims it.
    pub(crate) fn refuse_claimed(&self, kernel: &K) -> Result<(), Failure> {
        match self.is_claimed(kernel)? {
            false => Ok(()),
            true => Err(self.claimed()),
        }
    }

    /// What to say where it must not be claimed. A filesystem on it may be mounted once more, but
    /// not made.
    pub(crate) fn claimed(&self) -> Failure {
        Failure::busy(format!(
            "{} is still in use for this volume, by a mount elsewhere or by a mkfs that outlived \
             an earlier attempt",
            self.path.display()
        ))
    }
}
