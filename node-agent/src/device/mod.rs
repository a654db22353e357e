//! Provides the block device of a volume, and determines which volume a device belongs to. Does not
//! mount.
//!
//! Operations use a [`Transport`], the [`Storage`] of a volume, an [`OpenDevice`], and the
//! [`Verdict`] on a device. Only the module of a transport knows how the transport's devices are
//! attached. An encrypted volume has a mapper over the device of its transport.

pub(crate) mod crypt;
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
#[cfg(test)]
pub(crate) use loops::loop_path;
pub(crate) use loops::{IsShown, LoopDir, LoopDirs, lacking_nodes, linked};
/// The directories of the volumes of one driver, if the volumes are files on this node.
pub(crate) use loops::{LoopDir as VolumeDir, LoopDirs as VolumeDirs};
pub(crate) use open_device::OpenDevice;
pub(crate) use storage::Storage;
pub(crate) use transport::Transport;

/// The part of an open device that depends on its kind.
pub(crate) enum Guard<K: Kernel> {
    Loop(loops::Bound<K>),
    Disk(disks::Plugged),
    /// The mapper of an encrypted volume, over a device of either transport.
    Crypt(Box<crypt::Opened<K>>),
}

/// The purpose of a volume's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A filesystem, which keeps the device in use while it is mounted.
    Filesystem,
    /// The device itself, as a raw volume. The bind mount of a raw volume does not keep the device
    /// in use.
    Raw { read_only: bool },
}

/// The caller's intention for a device of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The caller uses the volume.
    Use,
    /// The caller detaches the volume, so storage that cannot be read counts as removed.
    TakeDown,
}

/// The relation of a device to a volume.
pub(crate) enum Verdict<K: Kernel, G = Guard<K>> {
    /// The device belongs to the volume.
    Ours(OpenDevice<K, G>),
    /// The device was attached for the volume, but the volume's storage was removed, moved or
    /// replaced since.
    Stale(OpenDevice<K, G>),
    /// The device has no storage; its mounts are left over.
    Unbound,
    /// The disk was removed; its mounts can only be unmounted.
    Removed,
    /// The device belongs to another volume, or to no volume.
    Foreign,
}

impl<K: Kernel, G> Verdict<K, G> {
    /// Returns the device, if it belongs or belonged to the volume.
    pub(crate) fn held(&self) -> Option<&OpenDevice<K, G>> {
        match self {
            Verdict::Ours(device) | Verdict::Stale(device) => Some(device),
            Verdict::Unbound | Verdict::Removed | Verdict::Foreign => None,
        }
    }

    /// Returns the device by value, if it belongs or belonged to the volume.
    pub(crate) fn into_held(self) -> Option<OpenDevice<K, G>> {
        match self {
            Verdict::Ours(device) | Verdict::Stale(device) => Some(device),
            Verdict::Unbound | Verdict::Removed | Verdict::Foreign => None,
        }
    }

    fn guarded<H>(self, guard: impl FnOnce(G) -> H) -> Verdict<K, H> {
        self.map(|device| device.guarded(guard))
    }

    /// Replaces the device, if it belongs or belonged to the volume.
    fn map<H>(self, with: impl FnOnce(OpenDevice<K, G>) -> OpenDevice<K, H>) -> Verdict<K, H> {
        match self {
            Verdict::Ours(device) => Verdict::Ours(with(device)),
            Verdict::Stale(device) => Verdict::Stale(with(device)),
            Verdict::Unbound => Verdict::Unbound,
            Verdict::Removed => Verdict::Removed,
            Verdict::Foreign => Verdict::Foreign,
        }
    }
}

/// The state of the storage of a volume's device.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// The device has the volume's storage. Sizes are in bytes.
    There {
        bytes: u64,
        device_bytes: u64,
        /// The allocated bytes of the file, without holes; `None` for a disk.
        allocated: Option<u64>,
        /// The number of the file's hard links; `None` for a disk.
        names: Option<u32>,
    },
    /// The device has a file that is no longer at the volume's path.
    Gone,
    /// The device has no file, or the file of another volume.
    Lost,
    /// The disk was removed.
    Unplugged,
    /// The file cannot be read.
    Unreadable(Error),
}

/// The result of a search for a volume's storage.
pub(crate) enum Search<T> {
    Found(T),
    /// No disk that matches the volume is plugged in yet.
    Missing(Missing),
}

/// Returns the error for a device of one transport that was passed for a volume of another
/// transport.
fn mixed_up() -> Failure {
    Failure::bug("a device of one transport was passed for a volume of another")
}
