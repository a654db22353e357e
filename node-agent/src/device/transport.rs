//! The two ways in which a driver's volumes reach the node, with one interface for all operations.

mod attached;
mod behind;
mod mapped;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::PublishContext;
use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::request::{Context, VolumeId};

use super::{
    DiskIndex, DiskSeen, DiskVolumes, Guard, Intent, Label, LoopDirs, OpenDevice, Purpose, Search,
    Storage, Verdict, crypt, loops,
};
use crate::kernel::{self, Dev, Ext4Errors, Kernel};

/// The transport of a driver's volumes.
pub(crate) enum Transport<K: Kernel> {
    /// Files in the directories of the node's disks, attached as loop devices.
    Loops(Arc<LoopDirs<K>>),
    /// Disks that a cloud attaches.
    Disks(DiskVolumes),
}

/// Queries about the node's devices, regardless of volumes.
impl<K: Kernel> Transport<K> {
    /// Whether the transport attaches devices of this kind.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn carries_volumes(&self, kernel: &K, dev: Dev) -> kernel::Result<bool> {
        if kernel.is_mapper(dev) {
            return self.is_over_volume(kernel, dev);
        }
        match self {
            Transport::Loops(_) => Ok(loops::carries_volumes(kernel, dev)),
            Transport::Disks(_) => DiskVolumes::carries_volumes(kernel, dev),
        }
    }

    /// Returns the path of a device's node; `None` for a device that this transport does not
    /// attach.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn node_of(&self, kernel: &K, dev: Dev) -> kernel::Result<Option<PathBuf>> {
        if kernel.is_mapper(dev) {
            return Ok(self.is_over_volume(kernel, dev)?.then(|| crypt::node(dev)));
        }
        match self {
            Transport::Loops(_) => Ok(loops::node_of(kernel, dev)),
            Transport::Disks(_) => DiskVolumes::node_of(kernel, dev),
        }
    }

    /// Returns the device whose node is named like the last component of `path`, which may have the
    /// suffix of a removed node.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn dev_named(&self, kernel: &K, path: &Path) -> kernel::Result<Option<Dev>> {
        if let Some(mapper) = crypt::named(kernel, path)? {
            let dev = mapper.dev;
            return Ok(self.is_over_volume(kernel, dev)?.then_some(dev));
        }
        match self {
            Transport::Loops(_) => Ok(loops::dev_named(kernel, path)),
            Transport::Disks(_) => DiskVolumes::dev_named(kernel, path),
        }
    }

    /// Returns the errors that the ext4 on the device has counted; `None` if no ext4 is mounted
    /// from the device.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn ext4_errors(&self, kernel: &K, dev: Dev) -> kernel::Result<Option<Ext4Errors>> {
        match self {
            Transport::Loops(_) if !kernel.is_mapper(dev) => loops::ext4_errors(kernel, dev),
            Transport::Loops(_) | Transport::Disks(_) => kernel.ext4_errors(dev),
        }
    }

    /// Returns the names of the partitions that another process has added to a volume's loop
    /// device, which `is_raw` or has a filesystem. Returns no names for a disk, because a disk's
    /// content may have partitions.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn partitions(
        &self,
        kernel: &K,
        dev: Dev,
        is_raw: bool,
    ) -> kernel::Result<Vec<String>> {
        match self {
            Transport::Loops(_) => loops::partitions(kernel, dev, is_raw),
            Transport::Disks(_) => Ok(Vec::new()),
        }
    }
}

/// Queries about a volume.
impl<K: Kernel> Transport<K> {
    /// Returns the driver of the volumes.
    pub(crate) fn driver(&self) -> &DriverName {
        match self {
            Transport::Loops(dirs) => dirs.driver(),
            Transport::Disks(disks) => disks.driver(),
        }
    }

    /// Whether the label names this volume of this driver.
    pub(crate) fn is_named(&self, volume: &VolumeId, label: &Label) -> bool {
        label.is_of(self.driver(), volume)
    }

    /// Reads the publish context of a volume's attachment; a volume that is a file has no such
    /// context. The volume context may forbid to format the volume.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` with the key if an entry is missing or invalid.
    pub(crate) fn read(
        &self,
        volume: &VolumeId,
        (publish, about): (&Context, &Context),
    ) -> Result<PublishContext, Failure> {
        match self {
            Transport::Loops(_) => Ok(PublishContext::of_file()),
            Transport::Disks(disks) => disks.read(volume, publish, about),
        }
    }

    /// Whether the agent may format a new device that is not all zeros.
    pub(crate) fn accepts_uncleared(&self) -> bool {
        match self {
            Transport::Loops(_) => false,
            Transport::Disks(disks) => disks.accepts_uncleared(),
        }
    }

    /// Returns the disks of the node, if volumes are disks.
    pub(crate) fn disks(&self) -> Option<&DiskIndex> {
        match self {
            Transport::Loops(_) => None,
            Transport::Disks(disks) => Some(disks.index()),
        }
    }

    /// Returns the disks to which the maximum number of volumes applies, and the user of each, if
    /// volumes are disks.
    pub(crate) fn limited_disks(&self) -> Vec<DiskSeen> {
        match self {
            Transport::Loops(_) => Vec::new(),
            Transport::Disks(disks) => disks.limited(),
        }
    }

    /// Returns the volume's storage, opened as the purpose requires. The volume context `about`
    /// names the disk of the node that has the volume's file.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name, or if the file is a symlink;
    /// `NOT_FOUND` if there is no such file; `UNAVAILABLE` if the directory of the disk in the
    /// volume context is not open; `FAILED_PRECONDITION` if there is no such disk, for a disk that
    /// also matches another volume, or if several disks match.
    pub(crate) fn find(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (plan, about): (&PublishContext, &Context),
        purpose: Purpose,
    ) -> Result<Search<Storage<K>>, Failure> {
        match self {
            Transport::Loops(dirs) => {
                let file = dirs.named_in(about)?.find(kernel, volume, purpose)?;
                Ok(Search::Found(Storage::File(file)))
            }
            Transport::Disks(disks) => Ok(match disks.find(kernel, volume, plan)? {
                Search::Found(disk) => Search::Found(Storage::Disk(disk)),
                Search::Missing(missing) => Search::Missing(missing),
            }),
        }
    }

    /// Returns the volume's storage, opened for reading; `None` if the storage does not exist.
    ///
    /// # Errors
    /// Returns the errors of [`Transport::find`] except `NOT_FOUND`; `ABORTED` while a disk that
    /// may belong to the volume has not responded.
    pub(crate) fn find_if_any(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<Storage<K>>, Failure> {
        match self {
            Transport::Loops(dirs) => {
                let file = dirs.of(kernel, volume)?.find_if_any(kernel, volume)?;
                Ok(file.map(Storage::File))
            }
            Transport::Disks(disks) => Ok(disks.find_if_any(volume)?.map(Storage::Disk)),
        }
    }

    /// Whether the volume's storage is on this node. Does not open any device.
    ///
    /// # Errors
    /// Returns the errors of [`Transport::find`], such as `INVALID_ARGUMENT` for an ID that is not
    /// a file name, except `NOT_FOUND`.
    pub(crate) fn is_here(&self, kernel: &K, volume: &VolumeId) -> Result<bool, Failure> {
        match self {
            Transport::Loops(dirs) => {
                let file = dirs.of(kernel, volume)?.name_if_any(kernel, volume)?;
                Ok(file.is_some())
            }
            Transport::Disks(disks) => Ok(disks.known(volume).is_some()),
        }
    }

    /// Records which device belongs to the volume. The next call needs this record if the present
    /// call unmounts the volume and then fails.
    pub(crate) fn remember(&self, volume: &VolumeId, device: &OpenDevice<K>) {
        if let (Transport::Disks(disks), Guard::Disk(disk)) = (self, &device.bottom().guard) {
            disks.remember(volume, disk);
        }
    }

    /// Assigns the device with this name in `/dev/belay` to the volume. Does nothing for a loop
    /// device, which is recognised by its file.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn adopt(&self, kernel: &K, label: &Label) -> kernel::Result<()> {
        match self {
            Transport::Loops(_) => Ok(()),
            Transport::Disks(disks) => disks.adopt(kernel, label),
        }
    }

    /// Returns the volume that the disk with this number belongs to, even if the disk was removed;
    /// `None` for a loop device.
    pub(crate) fn volume_on(&self, dev: Dev) -> Option<VolumeId> {
        match self {
            Transport::Loops(_) => None,
            Transport::Disks(disks) => disks.volume_on(dev),
        }
    }

    /// Whether the volume's device can be distinguished from the devices of all other volumes.
    pub(crate) fn can_recognise(&self, volume: &VolumeId) -> bool {
        match self {
            Transport::Loops(_) => true,
            Transport::Disks(disks) => disks.can_recognise(volume),
        }
    }

    /// Removes the volume from the index of disks. Returns the name in `/dev/belay` that the
    /// volume's disk may still have.
    pub(crate) fn forget(&self, volume: &VolumeId) -> Option<Label> {
        match self {
            Transport::Loops(_) => None,
            Transport::Disks(disks) => disks.forget(volume),
        }
    }

    /// Returns the volume's storage for messages: the path of its file, or the identity of its
    /// disk.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name.
    pub(crate) fn named(&self, kernel: &K, volume: &VolumeId) -> Result<PathBuf, Failure> {
        match self {
            Transport::Loops(dirs) => dirs.path_of(kernel, volume),
            Transport::Disks(disks) => Ok(disks.named(volume).into()),
        }
    }

    /// Returns the error of inspecting the volume's file if the file's disk fails, so that the file
    /// need not be opened. `None` if the disk does not fail.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name.
    pub(crate) fn unreadable(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<kernel::Error>, Failure> {
        match self {
            Transport::Loops(dirs) => dirs.of(kernel, volume)?.unreadable(kernel, volume),
            Transport::Disks(_) => Ok(None),
        }
    }

    /// Returns the relation of the device to the volume, for the `intent`. If `label` names an
    /// attachment, but the device number belongs to a different attachment now, the device is not
    /// the volume's. `said` is the identity of the volume's disk, if the CSI request contains the
    /// identity.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name; otherwise the kernel's error,
    /// including if the device cannot be identified without the storage.
    pub(crate) fn verdict(
        &self,
        kernel: &K,
        volume: &VolumeId,
        dev: Dev,
        label: Option<&Label>,
        (intent, said): (Intent, Option<&DiskIdentity>),
    ) -> Result<Verdict<K>, Failure> {
        match label {
            Some(label) if !self.is_named(volume, label) => return Ok(Verdict::Foreign),
            _ => {}
        }
        if kernel.is_mapper(dev) {
            return self.verdict_on_mapper(kernel, volume, (dev, label), (intent, said));
        }
        let diskseq = label.map(Label::diskseq);
        match self {
            Transport::Loops(dirs) => {
                let dir = dirs.of(kernel, volume)?;
                let verdict = dir.verdict(kernel, volume, (dev, diskseq), intent)?;
                Ok(verdict.guarded(Guard::Loop))
            }
            Transport::Disks(disks) => {
                let verdict = disks.verdict(kernel, volume, (dev, diskseq), (intent, said))?;
                Ok(verdict.guarded(Guard::Disk))
            }
        }
    }

    /// Returns the result of [`Transport::verdict`] for a removed disk whose number is unknown.
    pub(crate) fn verdict_on_removed(&self) -> Verdict<K> {
        match self {
            Transport::Loops(_) => Verdict::Foreign,
            Transport::Disks(_) => Verdict::Removed,
        }
    }
}
