//! The queries of disks for their serial numbers: which disks must be queried, and the state of
//! each query.

use std::sync::Arc;

use super::{DiskIndex, Entry, Identity, State, is_plugged};
use crate::kernel::{self, Disk, Disks};

/// A repeated query of a disk that has responded without a serial number, or with an error. The
/// first response is valid until the disk responds again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    No,
    Due,
    Running,
}

impl DiskIndex {
    /// Schedules another query of all disks that responded without a serial number, or with an
    /// error.
    pub(crate) fn forgive(&self) {
        for entry in self.lock().disks.values_mut() {
            let is_unsaid = match &entry.state {
                State::Unread(_) => true,
                State::Known(identity) => identity.is_nameless(),
                State::Unasked | State::Asked | State::Late => false,
            };
            if is_unsaid && entry.again == Again::No {
                entry.again = Again::Due;
            }
        }
    }

    /// Returns the disks that must be queried for their serial number, and marks their queries as
    /// running.
    pub(crate) fn take_unasked(&self) -> Vec<Disk> {
        let mut inner = self.lock();
        let take = |entry: &mut Entry| {
            match (&entry.state, entry.again) {
                (State::Unasked, _) => entry.state = State::Asked,
                (_, Again::Due) => entry.again = Again::Running,
                _ => return None,
            }
            Some(entry.disk.clone())
        };
        inner.disks.values_mut().filter_map(take).collect()
    }

    /// Queries a disk that [`DiskIndex::take_unasked`] has returned. Waits for the disk.
    pub(crate) fn ask<K: Disks>(&self, kernel: &K, disk: &Disk) {
        let state = match self.read(kernel, disk) {
            Ok(Some(identity)) => State::Known(identity),
            // The disk was removed; its uevent will follow.
            Ok(None) => State::Unread("removed".to_owned()),
            Err(error) => State::Unread(error.to_string()),
        };
        self.set(disk, state);
    }

    /// Records that the query of the disk has ended without a response.
    pub(crate) fn has_failed(&self, disk: &Disk, why: &str) {
        self.set(disk, State::Unread(why.to_owned()));
    }

    /// Records that the query of the disk takes longer than a healthy disk needs.
    pub(crate) fn is_late(&self, disk: &Disk) {
        let is_asked = |entry: &&mut Entry| {
            entry.disk.diskseq == disk.diskseq && matches!(entry.state, State::Asked)
        };
        let mut inner = self.lock();
        if let Some(entry) = inner.disks.get_mut(&disk.dev).filter(is_asked) {
            entry.state = State::Late;
            drop(inner);
            self.announce();
        }
    }

    /// Returns the descriptions of all disks in messages.
    #[cfg(test)]
    pub(crate) fn described(&self) -> Vec<String> {
        self.lock().disks.values().map(Entry::describe).collect()
    }

    /// Reads the disk's identity by its name. Returns `None` if the name no longer refers to this
    /// disk afterwards.
    pub(super) fn read<K: Disks>(
        &self,
        kernel: &K,
        disk: &Disk,
    ) -> kernel::Result<Option<Arc<Identity>>> {
        let identity = Identity::read(kernel, disk)?;
        let is_same = is_plugged(kernel, disk)?;
        Ok(identity.filter(|_| is_same).map(Arc::new))
    }

    pub(super) fn set(&self, disk: &Disk, state: State) {
        let mut inner = self.lock();
        let entry = inner.disks.get_mut(&disk.dev);
        if let Some(entry) = entry.filter(|entry| entry.disk.diskseq == disk.diskseq) {
            entry.again = Again::No;
            if entry.state.is_like(&state) {
                return;
            }
            entry.state = state;
            drop(inner);
            self.announce();
        }
    }
}

impl State {
    /// Whether both states are the same result of a query.
    fn is_like(&self, other: &State) -> bool {
        match (self, other) {
            (State::Known(one), State::Known(other)) => one == other,
            (State::Unread(one), State::Unread(other)) => one == other,
            _ => false,
        }
    }
}
