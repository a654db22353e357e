//! Records volumes that were unpublished although not all of their data was on the disk. Makes no
//! system call.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use belay_contract::reason::volume;
use belay_server::health::Conditions;
use belay_server::lock::Lock;
use belay_server::request::VolumeId;

/// Maximum number of recorded volumes, far more than a node has.
const KEPT_MAX: usize = 16_384;

/// The volumes with unsynced data. The agent does not store this list, so the list is empty after a
/// restart.
#[derive(Default)]
pub(super) struct Unsynced(Lock<Inner>);

#[derive(Default)]
struct Inner {
    /// The number of the last flush that was started.
    last: u64,
    volumes: BTreeMap<VolumeId, Mark>,
}

/// The reasons why some data of a volume may not be on its disk. At least one field is set.
#[derive(Default)]
struct Mark {
    /// The error of a write whose data is lost. The kernel reports a write error only once and
    /// drops the data, so a later flush succeeds. This field is cleared only when the volume is
    /// unstaged.
    lost: Option<String>,
    /// The number and the state of the last flush that was incomplete when its target was
    /// unmounted. The field is cleared when this flush or a later flush succeeds.
    late: Option<(u64, String)>,
}

/// A flush of a volume. Each flush covers all data that was written before the flush began, so a
/// later flush also covers the data of an earlier flush.
#[derive(Clone)]
pub(super) struct Flush {
    number: u64,
    has_succeeded: Arc<AtomicBool>,
}

impl Unsynced {
    /// Creates a flush with the next number.
    pub(super) fn begin(&self) -> Flush {
        let mut inner = self.0.lock();
        inner.last += 1;
        Flush {
            number: inner.last,
            has_succeeded: Arc::default(),
        }
    }

    /// Records that the flush has written the volume's data to the disk.
    pub(super) fn flushed(&self, id: &VolumeId, flush: &Flush) {
        let mut inner = self.0.lock();
        flush.has_succeeded.store(true, Ordering::Relaxed);
        let Some(mark) = inner.volumes.get_mut(id) else {
            return;
        };
        mark.late.take_if(|(since, _)| *since <= flush.number);
        if mark.lost.is_none() && mark.late.is_none() {
            inner.volumes.remove(id);
        }
    }

    /// Records that a write of the volume's data has failed, even if the volume stays published.
    pub(super) fn failed(&self, id: &VolumeId, why: String) {
        self.0.lock().mark(id, |mark| mark.lost = Some(why));
    }

    /// Records that the volume was unmounted while `flush` was possibly in progress. Returns `true`
    /// if the flush has not succeeded yet.
    pub(super) fn unmounted(&self, id: &VolumeId, flush: &Flush, why: String) -> bool {
        let mut inner = self.0.lock();
        let is_late = !flush.has_succeeded.load(Ordering::Relaxed);
        if is_late {
            inner.mark(id, |mark| mark.late = Some((flush.number, why)));
        }
        is_late
    }

    /// Removes the record of a volume that was unstaged.
    pub(super) fn unstaged(&self, id: &VolumeId) {
        self.0.lock().volumes.remove(id);
    }

    /// Returns the number of volumes with unsynced data.
    pub(super) fn count(&self) -> usize {
        self.0.lock().volumes.len()
    }

    /// Adds the condition `DATA_UNSYNCED` if the volume has unsynced data.
    pub(super) fn add_to(&self, conditions: &mut Conditions, id: &VolumeId) {
        let message = match self.0.lock().volumes.get(id) {
            None => return,
            Some(Mark {
                lost: Some(why), ..
            }) => format!(
                "data that a pod wrote may be lost: a write of the volume failed when it was \
                 unpublished ({why}); check the data"
            ),
            Some(Mark { late, .. }) => {
                let why = late.as_ref().map_or("", |(_, why)| why.as_str());
                format!(
                    "the volume was unpublished before all of its data was on the disk ({why}): \
                     that data is lost if the disk is detached now"
                )
            }
        };
        conditions.add(volume::DATA_UNSYNCED, message);
    }
}

impl Inner {
    fn mark(&mut self, id: &VolumeId, set: impl FnOnce(&mut Mark)) {
        if self.volumes.len() < KEPT_MAX || self.volumes.contains_key(id) {
            set(self.volumes.entry(id.clone()).or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> VolumeId {
        VolumeId::new(format!("vol-{n}")).unwrap()
    }

    fn is_marked(unsynced: &Unsynced, id: &VolumeId) -> bool {
        let mut conditions = Conditions::default();
        unsynced.add_to(&mut conditions, id);
        !conditions.is_empty()
    }

    #[test]
    fn a_flush_that_began_before_the_data_was_written_does_not_end_the_condition() {
        let unsynced = Unsynced::default();
        let (earlier, later) = (unsynced.begin(), unsynced.begin());
        assert!(unsynced.unmounted(&id(1), &later, String::new()));
        unsynced.flushed(&id(1), &earlier);
        unsynced.flushed(&id(2), &later);
        assert!(is_marked(&unsynced, &id(1)) && !is_marked(&unsynced, &id(2)));
        unsynced.flushed(&id(1), &later);
        assert!(!is_marked(&unsynced, &id(1)));
        let again = unsynced.begin();
        assert!(unsynced.unmounted(&id(1), &again, String::new()));
        unsynced.flushed(&id(1), &unsynced.begin());
        assert_eq!(unsynced.count(), 0);
    }

    #[test]
    fn a_flush_that_ends_before_the_unmount_leaves_no_condition() {
        let unsynced = Unsynced::default();
        let flush = unsynced.begin();
        unsynced.flushed(&id(1), &flush);
        assert!(!unsynced.unmounted(&id(1), &flush, String::new()));
        assert_eq!(unsynced.count(), 0);
    }

    #[test]
    fn an_error_is_reported_until_the_unstage_whatever_succeeds_later() {
        let unsynced = Unsynced::default();
        unsynced.failed(&id(1), "EIO".to_owned());
        let late = unsynced.begin();
        unsynced.unmounted(&id(1), &late, String::new());
        unsynced.flushed(&id(1), &late);
        unsynced.flushed(&id(1), &unsynced.begin());
        assert!(is_marked(&unsynced, &id(1)));
        unsynced.unstaged(&id(1));
        assert_eq!(unsynced.count(), 0);
    }

    #[test]
    fn no_more_volumes_are_marked_than_a_node_can_have() {
        let unsynced = Unsynced::default();
        (0..=KEPT_MAX).for_each(|n| unsynced.failed(&id(n), String::new()));
        assert_eq!(unsynced.count(), KEPT_MAX);
        unsynced.failed(&id(0), "again".to_owned());
        assert!(is_marked(&unsynced, &id(0)));
    }
}
