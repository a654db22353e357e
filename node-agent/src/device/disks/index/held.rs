//! The assignment of disks to volumes.

use belay_contract::disk::DiskIdentity;
use belay_server::call::Failure;
use belay_server::identity::DriverName;
use belay_server::request::VolumeId;

use super::{DiskIndex, Identity, Owner, User};
use crate::kernel::{Dev, Disk};

impl DiskIndex {
    /// Returns the disk that was found for the volume earlier, or otherwise the only disk that
    /// matches `wanted`. `None` if no disk or several disks match.
    pub(in crate::device::disks) fn find_if_any(
        &self,
        owner: &Owner,
        wanted: Option<&DiskIdentity>,
    ) -> Option<Disk> {
        let inner = self.lock();
        if let Some(disk) = inner.held_by(owner) {
            return Some(disk.clone());
        }
        let found = inner.only(wanted?).ok().flatten();
        found.map(|(disk, ..)| disk)
    }

    /// Assigns the disk to the volume, because a mount of the volume or a name in `/dev/belay`
    /// refers to this disk. A disk without a sequence number cannot be recognised later.
    pub(in crate::device::disks) fn hold(
        &self,
        owner: &Owner,
        wanted: Option<&DiskIdentity>,
        disk: &Disk,
    ) {
        let user = User {
            wanted: wanted.cloned(),
            held: Some(disk.clone()),
        };
        self.lock().users.insert(owner.clone(), user);
    }

    /// Whether the disk that was found for the volume is plugged in.
    pub(in crate::device::disks) fn has_disk(&self, owner: &Owner) -> bool {
        self.lock().held_by(owner).is_some()
    }

    /// Returns the volume that this disk was found for.
    pub(in crate::device::disks) fn holder(&self, disk: &Disk) -> Option<Owner> {
        let inner = self.lock();
        let mut users = inner.users.iter();
        let found = users.find(|(_, user)| user.has(disk));
        found.map(|(owner, _)| owner.clone())
    }

    /// Returns the driver's volume that a disk with this number was found for.
    pub(in crate::device::disks) fn holder_of(
        &self,
        driver: &DriverName,
        dev: Dev,
    ) -> Option<VolumeId> {
        let inner = self.lock();
        let has = |user: &User| user.held.as_ref().is_some_and(|disk| disk.dev == dev);
        let mut users = inner.users.iter();
        let found = users.find(|(owner, user)| owner.driver == driver.as_str() && has(user));
        found.map(|(owner, _)| owner.volume.clone())
    }

    /// Assigns the disk to the volume, although its serial number may be truncated, if no other
    /// disk or volume matches at present. Disks and volumes that are added later do not change the
    /// assignment.
    ///
    /// # Errors
    /// Returns `FAILED_PRECONDITION` if another disk or volume matches as well; `ABORTED` while a
    /// disk that might match has not responded.
    pub(in crate::device::disks) fn claim(
        &self,
        owner: &Owner,
        wanted: &DiskIdentity,
        disk: &Disk,
        identity: &Identity,
    ) -> Result<(), Failure> {
        let mut inner = self.lock();
        if inner.held_by(owner).is_some_and(|held| held == disk) {
            return Ok(());
        }
        inner.only(wanted)?;
        inner.refuse_taken(owner, disk, identity)?;
        if inner.is_any_awaited() {
            return Err(Failure::busy(format!(
                "{} shows only the beginning of a serial, and another disk that may show the same \
                 has not answered yet; try again",
                disk.name
            )));
        }
        let user = User {
            wanted: Some(wanted.clone()),
            held: Some(disk.clone()),
        };
        inner.users.insert(owner.clone(), user);
        Ok(())
    }
}
