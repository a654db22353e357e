//! The least size of the device of a volume.

use super::Transport;
use crate::kernel::Kernel;

impl<K: Kernel> Transport<K> {
    /// That of a volume of so many bytes: some clouds make disks that are smaller than volumes.
    pub(crate) fn least_of_device(&self, bytes: u64) -> u64 {
        if let Transport::Disks(disks) = self {
            return disks.profile().least_of_disk(bytes);
        }
        bytes
    }
}
