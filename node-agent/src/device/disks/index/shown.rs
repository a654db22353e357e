//! Disks that only a mount has shown to be a volume's. After a start no call has described the
//! volumes that are staged, and the names of some clouds' disks are not made of the volume's ID.

use std::sync::Arc;

use super::{DiskIndex, Identity, Owner, State, User};
use crate::kernel::Disk;
use belay_contract::disk::DiskIdentity;

/// What an attachment says of a volume's disk, until a mount has proven it: dropped before, it is
/// as if it had not been said. The next call may say something else.
#[must_use]
pub(crate) struct Learned<'a>(Option<(&'a DiskIndex, Owner)>);

impl Learned<'_> {
    /// Nothing new was said.
    pub(in crate::device) const NOTHING: Self = Learned(None);

    /// Whether anything new was said.
    pub(crate) fn is_anything(&self) -> bool {
        self.0.is_some()
    }

    /// A mount has proven it, or it needs no proof.
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Learned<'_> {
    fn drop(&mut self) {
        if let Some((index, owner)) = self.0.take() {
            index.lock().users.remove(&owner);
        }
    }
}

impl DiskIndex {
    /// The volume's mount, which is about to be unmounted, shows that disk. A disk without a
    /// sequence number cannot be recognised later, and is not kept.
    pub(in crate::device::disks) fn show(&self, owner: &Owner, disk: &Disk) {
        if disk.diskseq != 0 {
            let held = (disk.dev, disk.diskseq);
            self.lock().shown.insert(owner.clone(), held);
        }
    }

    /// The disk that [`DiskIndex::show`] has for the volume, if it is still plugged in.
    pub(in crate::device::disks) fn shown(&self, owner: &Owner) -> Option<(Disk, Arc<Identity>)> {
        let inner = self.lock();
        let (dev, diskseq) = inner.shown.get(owner)?;
        let entry = inner.disks.get(dev)?;
        match &entry.state {
            State::Known(identity) if entry.disk.diskseq == *diskseq => {
                Some((entry.disk.clone(), Arc::clone(identity)))
            }
            _ => None,
        }
    }

    /// What the volume's disk is recognised by, unless a call has said it before.
    pub(in crate::device::disks) fn learn(
        &self,
        owner: Owner,
        wanted: &DiskIdentity,
    ) -> Learned<'_> {
        let mut inner = self.lock();
        if inner.users.contains_key(&owner) {
            return Learned::NOTHING;
        }
        let user = User {
            wanted: wanted.clone(),
            held: None,
        };
        inner.users.insert(owner.clone(), user);
        Learned(Some((self, owner)))
    }

    /// A disk that has not been asked yet, or has not answered, may be the wanted one.
    pub(in crate::device::disks) fn is_any_unknown(&self) -> bool {
        self.lock().is_any_awaited()
    }
}
