//! Records the volumes of a driver, and their health, as reported by calls. Makes no system call.
//! After a restart of the agent, the record is complete when the kubelet has requested the
//! statistics of each volume, which happens once a minute.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use belay_server::facts::{SHOWN_MAX, Shown};
use belay_server::health::Conditions;
use belay_server::lock::Lock;
use belay_server::request::VolumeId;

/// Maximum number of recorded volumes, far more than a node has. The record needs a few MiB at
/// most.
const KEPT_MAX: usize = 16_384;

/// Maximum age of a health condition that no later call has confirmed. If a condition is older, the
/// kubelet no longer requests the statistics of the volume, and the condition may have ended.
const CONDITION_AGE_MAX: Duration = Duration::from_secs(600);

/// The recorded volumes, by their IDs.
#[derive(Default)]
pub(super) struct Volumes(Lock<HashMap<VolumeId, LastReport>>);

/// The health reasons in the last report about a volume. `since` is the time of this report; `None`
/// if the volume is healthy.
#[derive(Default)]
struct LastReport {
    reasons: Vec<&'static str>,
    since: Option<Instant>,
}

impl Volumes {
    /// Records that the volume was staged.
    pub(super) fn staged(&self, id: &VolumeId) {
        self.note(id, LastReport::default());
    }

    /// Records the health conditions of a mounted volume; `conditions` is empty if the volume is
    /// healthy.
    pub(super) fn mounted(&self, id: &VolumeId, conditions: &Conditions) {
        self.note(id, LastReport::of(conditions));
    }

    /// Records the health conditions of a volume that is possibly not mounted. Does not add a
    /// healthy volume to the record.
    pub(super) fn checked(&self, id: &VolumeId, conditions: &Conditions) {
        if !conditions.is_empty() || self.0.lock().contains_key(id) {
            self.mounted(id, conditions);
        }
    }

    /// Records that the volume was unstaged.
    pub(super) fn unstaged(&self, id: &VolumeId) {
        self.0.lock().remove(id);
    }

    /// Returns the number of recorded volumes.
    pub(super) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns the number of volumes with each health reason.
    pub(super) fn unhealthy(&self) -> BTreeMap<&'static str, u64> {
        let (volumes, now) = (self.0.lock(), Instant::now());
        let mut counts = BTreeMap::new();
        for reason in volumes.values().flat_map(|it| it.reasons_at(now)) {
            *counts.entry(*reason).or_default() += 1;
        }
        counts
    }

    /// Returns the recorded volumes for the status page, unhealthy volumes first.
    pub(super) fn shown(&self) -> Vec<Shown> {
        let (volumes, now) = (self.0.lock(), Instant::now());
        let known = volumes.iter().map(|(id, it)| (it.reasons_at(now), id));
        let mut known: Vec<_> = known.collect();
        known.sort_unstable_by_key(|(reasons, id)| (reasons.is_empty(), *id));
        let shown = known
            .into_iter()
            .take(SHOWN_MAX)
            .map(|(reasons, id)| Shown {
                id: id.as_str().to_owned(),
                reasons: reasons.to_vec(),
                details: Vec::new(),
            });
        shown.collect()
    }

    fn note(&self, id: &VolumeId, condition: LastReport) {
        let mut volumes = self.0.lock();
        if let Some(known) = volumes.get_mut(id) {
            *known = condition;
        } else if volumes.len() < KEPT_MAX {
            volumes.insert(id.clone(), condition);
        }
    }
}

impl LastReport {
    fn of(conditions: &Conditions) -> Self {
        let reasons = conditions.iter().map(|condition| condition.reason.name());
        LastReport {
            reasons: reasons.collect(),
            since: (!conditions.is_empty()).then(Instant::now),
        }
    }

    /// Returns the health reasons; empty if the last report is too old at the time `now`.
    fn reasons_at(&self, now: Instant) -> &[&'static str] {
        match self.since {
            Some(since) if now.duration_since(since) <= CONDITION_AGE_MAX => &self.reasons,
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_contract::reason::volume::{BACKING_FILE_GONE, DEVICE_ERRORS};
    use belay_server::health::Reason;

    fn id(n: u32) -> VolumeId {
        VolumeId::new(format!("vol-{n}")).unwrap()
    }

    fn conditions(reasons: &[Reason]) -> Conditions {
        let mut conditions = Conditions::default();
        for reason in reasons {
            conditions.add(*reason, "");
        }
        conditions
    }

    #[test]
    fn volumes_count_while_they_are_staged_and_by_each_reason_of_their_last_report() {
        let volumes = Volumes::default();
        (0..3).for_each(|n| volumes.staged(&id(n)));
        assert_eq!((volumes.count(), volumes.unhealthy()), (3, [].into()));
        let both = conditions(&[BACKING_FILE_GONE, DEVICE_ERRORS]);
        volumes.mounted(&id(0), &both);
        volumes.mounted(&id(1), &conditions(&[DEVICE_ERRORS]));
        let counts = [("BackingFileGone", 1), ("DeviceErrors", 2)];
        assert_eq!(volumes.unhealthy(), counts.into());
        volumes.mounted(&id(0), &conditions(&[]));
        assert_eq!(volumes.unhealthy(), [("DeviceErrors", 1)].into());
        volumes.unstaged(&id(1));
        assert_eq!((volumes.count(), volumes.unhealthy()), (2, [].into()));
    }

    #[test]
    fn a_healthy_volume_that_is_not_staged_does_not_count() {
        let volumes = Volumes::default();
        volumes.checked(&id(0), &conditions(&[]));
        assert_eq!(volumes.count(), 0);
        volumes.checked(&id(0), &conditions(&[BACKING_FILE_GONE]));
        assert_eq!(volumes.unhealthy(), [("BackingFileGone", 1)].into());
        volumes.checked(&id(0), &conditions(&[]));
        assert_eq!(volumes.unhealthy(), [].into());
    }

    #[test]
    fn a_condition_that_no_call_confirms_ends() {
        let condition = LastReport::of(&conditions(&[DEVICE_ERRORS]));
        let since = condition.since.unwrap();
        let last = since + CONDITION_AGE_MAX;
        assert_eq!(condition.reasons_at(last), ["DeviceErrors"]);
        assert!(
            condition
                .reasons_at(last + Duration::from_secs(1))
                .is_empty()
        );
    }

    #[test]
    fn no_more_volumes_are_noted_than_a_node_can_have() {
        let volumes = Volumes::default();
        (0..=KEPT_MAX).for_each(|n| volumes.staged(&id(u32::try_from(n).unwrap())));
        assert_eq!(volumes.count(), KEPT_MAX);
    }
}
