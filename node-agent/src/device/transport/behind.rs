//! Whether a device still has the volume's storage, judged by names and by data in memory.

use std::path::Path;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::Transport;
use crate::device::{Backing, DiskVolumes, loops};
use crate::kernel::{Dev, Inode, Kernel};

impl<K: Kernel> Transport<K> {
    /// Returns the state of the storage of the volume's device, judged by names and by data in
    /// memory. `known` is the device's file. Queries neither the device nor the disk. Without
    /// `may_wait`, returns `None` if the file is not in memory.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn behind(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, known): (Dev, Option<Inode>),
        may_wait: bool,
    ) -> Result<Option<Backing>, Failure> {
        let Some(dev) = self.below(kernel, dev)? else {
            return Ok(Some(match self {
                Transport::Loops(_) => Backing::Lost,
                Transport::Disks(_) => Backing::Unplugged,
            }));
        };
        match self {
            Transport::Loops(dirs) => match dirs.of_if(kernel, volume, may_wait)? {
                Some(dir) if may_wait => dir.behind(kernel, volume, (dev, known)).map(Some),
                Some(dir) => dir.behind_in_memory(kernel, volume, (dev, known)),
                None => Ok(None),
            },
            Transport::Disks(_) => Ok(Some(DiskVolumes::behind(kernel, dev)?)),
        }
    }

    /// Whether the device of a volume's mount no longer has the volume's storage. `known` is the
    /// device's file. Does not query any device. Without `may_wait`, returns `None` if the check
    /// needs to read the disk with the storage.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn is_replaced(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, known): (Dev, Option<Inode>),
        may_wait: bool,
    ) -> Result<Option<bool>, Failure> {
        let Some(dev) = self.below(kernel, dev)? else {
            return Ok(Some(true));
        };
        match self {
            Transport::Loops(dirs) => match dirs.of_if(kernel, volume, may_wait)? {
                Some(dir) => dir.is_replaced(kernel, volume, (dev, known), may_wait),
                None => Ok(None),
            },
            Transport::Disks(_) => {
                let behind = DiskVolumes::behind(kernel, dev)?;
                Ok(Some(matches!(behind, Backing::Unplugged)))
            }
        }
    }

    /// Returns the message about a mount at `path` whose device no longer has the volume's storage.
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

    /// Whether the device belongs or belonged to the volume, judged by names and by data in memory.
    /// Does not query any device.
    ///
    /// # Errors
    /// Returns the kernel's error.
    pub(crate) fn may_be_of(
        &self,
        kernel: &K,
        volume: &VolumeId,
        dev: Dev,
    ) -> Result<bool, Failure> {
        let Some(dev) = self.below(kernel, dev)? else {
            return Ok(false);
        };
        match self {
            Transport::Loops(_) => Ok(loops::may_be_of(kernel, volume, dev)?),
            Transport::Disks(disks) => Ok(disks.may_be_of(kernel, volume, dev)?),
        }
    }
}
