//! How the volumes of a driver reach this node: one of two ways, with one interface for all verbs.

mod attached;

use std::path::{Path, PathBuf};

use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::PublishContext;
use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::request::{Context, VolumeId};

use super::{
    Backing, DiskIndex, DiskVolumes, Guard, Intent, Label, LoopDir, OpenDevice, Purpose, Search,
    Storage, Verdict, loops,
};
use crate::kernel::{self, Dev, Ext4Errors, Inode, Kernel};

/// The transport of a driver's volumes.
pub(crate) enum Transport<K: Kernel> {
    /// Files in one directory, attached as loop devices.
    Loops(LoopDir<K>),
    /// Disks that a cloud attaches.
    Disks(DiskVolumes),
}

/// Queries about the node's devices, of any volume.
impl<K: Kernel> Transport<K> {
    /// Whether the device is of the kind that volumes are attached as.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn carries_volumes(&self, kernel: &K, dev: Dev) -> kernel::Result<bool> {
        match self {
            Transport::Loops(_) => Ok(loops::carries_volumes(kernel, dev)),
            Transport::Disks(_) => DiskVolumes::carries_volumes(kernel, dev),
        }
    }

    /// The path of the node of a device of the kind that volumes are attached as; `None` for other
    /// devices.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn node_of(&self, kernel: &K, dev: Dev) -> kernel::Result<Option<PathBuf>> {
        match self {
            Transport::Loops(_) => Ok(loops::node_of(kernel, dev)),
            Transport::Disks(_) => DiskVolumes::node_of(kernel, dev),
        }
    }

    /// The device whose node is named like the last component of `path`; the name of a removed node
    /// has a suffix.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn dev_named(&self, kernel: &K, path: &Path) -> kernel::Result<Option<Dev>> {
        match self {
            Transport::Loops(_) => Ok(loops::dev_named(kernel, path)),
            Transport::Disks(_) => DiskVolumes::dev_named(kernel, path),
        }
    }

    /// The errors that the ext4 mounted from the device has counted; `None` if there is no ext4.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn ext4_errors(&self, kernel: &K, dev: Dev) -> kernel::Result<Option<Ext4Errors>> {
        match self {
            Transport::Loops(_) => loops::ext4_errors(kernel, dev),
            Transport::Disks(_) => kernel.ext4_errors(dev),
        }
    }

    /// The names of the partitions that a process has added to a volume's loop device, which
    /// `is_raw` or has a filesystem. A disk is not inspected: its content may have partitions.
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
    /// The driver whose volumes they are.
    pub(crate) fn driver(&self) -> &DriverName {
        match self {
            Transport::Loops(dir) => dir.driver(),
            Transport::Disks(disks) => disks.driver(),
        }
    }

    /// Whether the label names the volume, of this driver.
    pub(crate) fn is_named(&self, volume: &VolumeId, label: &Label) -> bool {
        label.is_of(self.driver(), volume)
    }

    /// Reads the publish context of a volume's attachment; a file has none. In the volume context,
    /// an administrator may forbid to format the volume.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT`, naming the key, if an entry is missing or not valid.
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

    /// Whether a new device that is not all zeros may be formatted.
    pub(crate) fn accepts_uncleared(&self) -> bool {
        match self {
            Transport::Loops(_) => false,
            Transport::Disks(disks) => disks.accepts_uncleared(),
        }
    }

    /// The disks of the node, if volumes are disks.
    pub(crate) fn disks(&self) -> Option<&DiskIndex> {
        match self {
            Transport::Loops(_) => None,
            Transport::Disks(disks) => Some(disks.index()),
        }
    }

    /// The volume's storage, opened as its purpose needs.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is not a file name, or a symlink to another directory,
    /// `NOT_FOUND` if there is no such file, `FAILED_PRECONDITION` for a disk that does not match
    /// only this volume.
    pub(crate) fn find(
        &self,
        kernel: &K,
        volume: &VolumeId,
        plan: &PublishContext,
        purpose: Purpose,
    ) -> Result<Search<Storage<K>>, Failure> {
        match self {
            Transport::Loops(dir) => {
                let file = dir.find(kernel, volume, purpose)?;
                Ok(Search::Found(Storage::File(file)))
            }
            Transport::Disks(disks) => Ok(match disks.find(kernel, volume, plan)? {
                Search::Found(disk) => Search::Found(Storage::Disk(disk)),
                Search::Missing(missing) => Search::Missing(missing),
            }),
        }
    }

    /// The volume's storage, for reading; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns the errors of [`Transport::find`] except `NOT_FOUND`; `ABORTED` while a disk that
    /// may be the volume's has not answered.
    pub(crate) fn find_if_any(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<Storage<K>>, Failure> {
        match self {
            Transport::Loops(dir) => Ok(dir.find_if_any(kernel, volume)?.map(Storage::File)),
            Transport::Disks(disks) => Ok(disks.find_if_any(volume)?.map(Storage::Disk)),
        }
    }

    /// Whether the volume's storage is here. Opens no device.
    ///
    /// # Errors
    /// Returns the errors of [`Transport::find`], such as `INVALID_ARGUMENT` for an ID that is not
    /// a file name, except `NOT_FOUND`.
    pub(crate) fn is_here(&self, kernel: &K, volume: &VolumeId) -> Result<bool, Failure> {
        match self {
            Transport::Loops(dir) => Ok(dir.name_if_any(kernel, volume)?.is_some()),
            Transport::Disks(disks) => Ok(disks.known(volume).is_some()),
        }
    }

    /// Records which device is the volume's. The next call needs this record if the present call
    /// unmounts the volume and is then refused.
    pub(crate) fn remember(&self, volume: &VolumeId, device: &OpenDevice<K>) {
        if let (Transport::Disks(disks), Guard::Disk(disk)) = (self, &device.guard) {
            disks.remember(volume, disk);
        }
    }

    /// Takes the device with that name in `/dev/belay` for the volume's. A loop device is
    /// recognised by its file.
    ///
    /// # Errors
    /// Returns an error if sysfs cannot be read.
    pub(crate) fn adopt(&self, kernel: &K, label: &Label) -> kernel::Result<()> {
        match self {
            Transport::Loops(_) => Ok(()),
            Transport::Disks(disks) => disks.adopt(kernel, label),
        }
    }

    /// The volume that has the disk with that number, also if the disk was removed; `None` for a
    /// loop device.
    pub(crate) fn volume_on(&self, dev: Dev) -> Option<VolumeId> {
        match self {
            Transport::Loops(_) => None,
            Transport::Disks(disks) => disks.volume_on(dev),
        }
    }

    /// Whether the volume's device can be distinguished from those of all other volumes.
    pub(crate) fn can_recognise(&self, volume: &VolumeId) -> bool {
        match self {
            Transport::Loops(_) => true,
            Transport::Disks(disks) => disks.can_recognise(volume),
        }
    }

    /// Drops the volume: nothing of it is left on the node but the name that its disk may have.
    pub(crate) fn forget(&self, volume: &VolumeId) -> Option<Label> {
        match self {
            Transport::Loops(_) => None,
            Transport::Disks(disks) => disks.forget(volume),
        }
    }

    /// The volume's storage for messages: the path of its file, or the identity of its disk.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is not a file name.
    pub(crate) fn named(&self, volume: &VolumeId) -> Result<PathBuf, Failure> {
        match self {
            Transport::Loops(dir) => dir.path_of(volume),
            Transport::Disks(disks) => Ok(disks.named(volume).into()),
        }
    }

    /// The error of inspecting the volume's file if the disk of the file fails; the file is then
    /// not even opened. `None` if the disk does not fail.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is not a file name.
    pub(crate) fn unreadable(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<kernel::Error>, Failure> {
        match self {
            Transport::Loops(dir) => dir.unreadable(kernel, volume),
            Transport::Disks(_) => Ok(None),
        }
    }

    /// The relation of that device to the volume, for the `intent`. If `label` names an attachment
    /// and the number belongs to another attachment now, it is not the volume's device. The call
    /// may have `said` the identity of the volume's disk.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is not a file name; else the kernel's error, also if the
    /// device cannot be identified without the storage.
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
        let diskseq = label.map(Label::diskseq);
        match self {
            Transport::Loops(dir) => {
                let verdict = dir.verdict(kernel, volume, (dev, diskseq), intent)?;
                Ok(verdict.guarded(Guard::Loop))
            }
            Transport::Disks(disks) => {
                let verdict = disks.verdict(kernel, volume, (dev, diskseq), (intent, said))?;
                Ok(verdict.guarded(Guard::Disk))
            }
        }
    }

    /// [`Transport::verdict`] on a removed disk whose number is not known.
    pub(crate) fn verdict_on_removed(&self) -> Verdict<K> {
        match self {
            Transport::Loops(_) => Verdict::Foreign,
            Transport::Disks(_) => Verdict::Removed,
        }
    }

    /// The state of the storage behind a device that is known to be the volume's, as far as names
    /// and memory show it. `known` is the file behind the device. Queries neither the device nor
    /// the disk. Returns `None` if the file is not in memory, unless the call `may_wait`.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn behind(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, known): (Dev, Option<Inode>),
        may_wait: bool,
    ) -> Result<Option<Backing>, Failure> {
        match self {
            Transport::Loops(dir) if may_wait => dir.behind(kernel, volume, (dev, known)).map(Some),
            Transport::Loops(dir) => dir.behind_in_memory(kernel, volume, (dev, known)),
            Transport::Disks(_) => Ok(Some(DiskVolumes::behind(kernel, dev)?)),
        }
    }

    /// Whether the device of a mount that is known to be the volume's has lost the volume's
    /// storage since; `known` is the file behind it. Asks no device. Returns
    /// `None` if only the disk that holds the storage has the answer, and the call may not wait.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn is_replaced(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, known): (Dev, Option<Inode>),
        may_wait: bool,
    ) -> Result<Option<bool>, Failure> {
        match self {
            Transport::Loops(dir) => dir.is_replaced(kernel, volume, (dev, known), may_wait),
            Transport::Disks(_) => {
                let behind = DiskVolumes::behind(kernel, dev)?;
                Ok(Some(matches!(behind, Backing::Unplugged)))
            }
        }
    }

    /// The message about a mount at `path` whose device has lost the volume's storage.
    pub(crate) fn replaced(&self, volume: &VolumeId, path: &Path) -> String {
        let path = path.display();
        match self {
            Transport::Loops(_) => format!(
                "the file of volume {volume} was removed or replaced while it is staged, and \
                 {path} has the old one; delete the pods that use it here, so that it is \
                 unpublished and unstaged"
            ),
            Transport::Disks(_) => format!(
                "the disk of volume {volume} was removed while it is staged, and {path} shows the \
                 removed disk; delete the pods that use it here, so that it is unpublished and \
                 unstaged"
            ),
        }
    }

    /// Whether the device may be, or have been, the volume's, by names and memory. Queries no
    /// device.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn may_be_of(
        &self,
        kernel: &K,
        volume: &VolumeId,
        dev: Dev,
    ) -> Result<bool, Failure> {
        match self {
            Transport::Loops(dir) => dir.may_be_of(kernel, volume, dev),
            Transport::Disks(disks) => Ok(disks.may_be_of(kernel, volume, dev)?),
        }
    }
}
