//! Which IDs are those of snapshots, not of backups. Old releases of Cinder refuse to look for a
//! backup before they know whether it exists; snapshots can still be deleted there.

use belay_server::request::SnapshotId;
use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most IDs that are kept. One that is not costs a right, not data.
const IDS_MAX: usize = 4096;

/// The snapshots that this process has seen lately.
#[derive(Default)]
pub(super) struct Plain(Mutex<BTreeSet<SnapshotId>>);

impl Plain {
    /// Cinder has a snapshot with that ID.
    pub(super) fn add(&self, id: &SnapshotId) {
        let mut ids = self.ids();
        if ids.contains(id) {
            return;
        }
        if ids.len() >= IDS_MAX {
            ids.clear();
        }
        ids.insert(id.clone());
    }

    pub(super) fn has(&self, id: &SnapshotId) -> bool {
        self.ids().contains(id)
    }

    fn ids(&self) -> MutexGuard<'_, BTreeSet<SnapshotId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_last_ids_and_no_more_than_its_maximum() {
        let plain = Plain::default();
        let nth = |n: usize| SnapshotId::new(format!("{n}")).unwrap();
        for n in 0..=IDS_MAX {
            plain.add(&nth(n));
            plain.add(&nth(n));
            assert!(plain.has(&nth(n)));
        }
        assert!(!plain.has(&nth(0)));
        assert_eq!(plain.ids().len(), 1);
    }
}
