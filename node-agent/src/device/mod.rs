//! How a volume becomes a block device, and whose a device is. Nothing here mounts.
//!
//! Operations see a [`Transport`], the [`Storage`] of a volume, a device that is [`Held`], and the
//! [`Verdict`] on a device. What a device is made of is known in its transport's folder alone.

mod disks;
mod held;
mod loops;
mod storage;
mod transport;

use belay_server::call::Failure;

use crate::kernel::{Error, Kernel};

pub(crate) use disks::{DiskIndex, DiskVolumes, Missing};
pub(crate) use held::Held;
pub(crate) use loops::LoopDir;
/// What holds the volumes of one driver, where that is this node's own.
pub(crate) use loops::LoopDir as Folder;
#[cfg(test)]
pub(crate) use loops::loop_path;
pub(crate) use storage::Storage;
pub(crate) use transport::Transport;

/// What guards a device of either transport.
pub(crate) enum Guard<K: Kernel> {
    Loop(loops::Bound<K>),
    Disk(disks::Plugged),
}

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
pub(crate) enum Verdict<K: Kernel, G = Guard<K>> {
    /// It is the volume's.
    Ours(Held<K, G>),
    /// It was attached for the volume, whose storage is gone since, elsewhere, or replaced.
    Stale(Held<K, G>),
    /// It is attached to nothing: what shows it is left over.
    Unbound,
    /// Its disk was removed: what is mounted from it can only be unmounted.
    Removed,
    /// It is another volume's, or no volume's.
    Foreign,
}

impl<K: Kernel, G> Verdict<K, G> {
    /// The device, if it is or was the volume's.
    pub(crate) fn held(&self) -> Option<&Held<K, G>> {
        match self {
            Verdict::Ours(device) | Verdict::Stale(device) => Some(device),
            Verdict::Unbound | Verdict::Removed | Verdict::Foreign => None,
        }
    }

    /// [`Verdict::held`], to keep.
    pub(crate) fn into_held(self) -> Option<Held<K, G>> {
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

/// What has become of the storage behind a volume's device.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// It is behind the device; sizes in bytes.
    There { bytes: u64, device_bytes: u64 },
    /// The device has a file that the volume's name does not lead to.
    Gone,
    /// The device has no file, or another volume's.
    Lost,
    /// The disk was removed.
    Unplugged,
    /// The file cannot be read.
    Unreadable(Error),
}

/// A volume's storage, or what is still to be waited for.
pub(crate) enum Sought<T> {
    Found(T),
    /// No disk of the volume is plugged in yet.
    Missing(Missing),
}

/// A device of one transport cannot be that of a volume of another.
fn mixed_up() -> Failure {
    Failure::bug("a device of one transport was taken for a volume of another")
}
