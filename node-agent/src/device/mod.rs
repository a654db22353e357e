//! Provides the block device of a volume, and decides which volume a device belongs to. Nothing
//! here mounts.
//!
//! Operations use a [`Transport`], the [`Storage`] of a volume, an [`OpenDevice`], and the
//! [`Verdict`] on a device. Only a transport's directory knows how its devices are made.

mod disks;
mod label;
mod loops;
mod open_device;
mod storage;
mod transport;

use belay_server::call::Failure;

use crate::kernel::{Error, Kernel};

#[cfg(any(test, feature = "fuzz"))]
pub(crate) use disks::fuzz;
pub(crate) use disks::{
    ANSWER_MAX, DiskIndex, DiskRules, DiskSeen, DiskUser, DiskVolumes, Missing,
};
pub(crate) use label::Label;
/// The directory of one driver's volumes, if they are stored on this node.
pub(crate) use loops::LoopDir as VolumeDir;
#[cfg(test)]
pub(crate) use loops::loop_path;
pub(crate) use loops::{IsShown, LoopDir, lacking_nodes, linked};
pub(crate) use open_device::OpenDevice;
pub(crate) use storage::Storage;
pub(crate) use transport::Transport;

/// The guard of a held device, of either transport.
pub(crate) enum Guard<K: Kernel> {
    Loop(loops::Bound<K>),
    Disk(disks::Plugged),
}

/// The purpose of a volume's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A filesystem, which holds the device for as long as it is mounted.
    Filesystem,
    /// The device itself. Its bind mount does not hold it.
    Raw { read_only: bool },
}

/// The caller's purpose for a device that is the volume's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The caller uses the volume.
    Use,
    /// The caller detaches the volume: storage that cannot be read counts as removed.
    TakeDown,
}

/// The relation of a device to a volume.
pub(crate) enum Verdict<K: Kernel, G = Guard<K>> {
    /// The device is the volume's.
    Ours(OpenDevice<K, G>),
    /// The device was attached for the volume, whose storage was since removed, moved or replaced.
    Stale(OpenDevice<K, G>),
    /// The device has no storage: its mounts or binds are left over.
    Unbound,
    /// The disk was removed: its mounts can only be unmounted.
    Removed,
    /// The device belongs to another volume, or to none.
    Foreign,
}

impl<K: Kernel, G> Verdict<K, G> {
    /// The device, if it is or was the volume's.
    pub(crate) fn held(&self) -> Option<&OpenDevice<K, G>> {
        match self {
            Verdict::Ours(device) | Verdict::Stale(device) => Some(device),
            Verdict::Unbound | Verdict::Removed | Verdict::Foreign => None,
        }
    }

    /// Returns the device by value, if it is or was the volume's.
    pub(crate) fn into_held(self) -> Option<OpenDevice<K, G>> {
        match self {
            Verdict::Ours(device) | Verdict::Stale(device) => Some(device),
            Verdict::Unbound | Verdict::Removed | Verdict::Foreign => None,
        }
    }

    fn guarded<H>(self, guard: impl FnOnce(G) -> H) -> Verdict<K, H> {
        match self {
            Verdict::Ours(device) => Verdict::Ours(device.guarded(guard)),
            Verdict::Stale(device) => Verdict::Stale(device.guarded(guard)),
            Verdict::Unbound => Verdict::Unbound,
            Verdict::Removed => Verdict::Removed,
            Verdict::Foreign => Verdict::Foreign,
        }
    }
}

/// The state of the storage behind a volume's device.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// The storage is behind the device; sizes in bytes.
    There {
        bytes: u64,
        device_bytes: u64,
        /// The bytes of the file that are not a hole; `None` for a disk.
        allocated: Option<u64>,
        /// The number of names of the file; `None` for a disk.
        names: Option<u32>,
    },
    /// The device has a file that is not at the volume's path.
    Gone,
    /// The device has no file, or another volume's.
    Lost,
    /// The disk was removed.
    Unplugged,
    /// The file cannot be read.
    Unreadable(Error),
}

/// A volume's storage, or the disk that is missing.
pub(crate) enum Search<T> {
    Found(T),
    /// No disk of the volume is plugged in yet.
    Missing(Missing),
}

/// The error for a device of one transport that was passed for a volume of another.
fn mixed_up() -> Failure {
    Failure::bug("a device of one transport was passed for a volume of another")
}
