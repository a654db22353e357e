//! Surveys the health of the volumes of each cloud once a minute, for metrics, the status page and
//! the log. CSI calls do not use the results. A cloud whose list fails is asked less often.

use super::Operations;
use crate::backend::Unhealthy;
use belay_contract::reason::{Reporter, volume};
use belay_server::call::Failure;
use belay_server::facts::{Facts, Known, Measuring, SHOWN_MAX, Shown};
use belay_server::health::Conditions;
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The time between two lists of a cloud. The first list is read after this time. A fault is
/// reported within a minute, which includes the time for the list.
const INTERVAL: Duration = Duration::from_secs(50);
/// The maximum time between two lists of a cloud that has refused the last ones. Each pause is
/// twice as long as the previous pause.
const PAUSE_MAX: Duration = Duration::from_secs(800);

/// The unhealthy volumes of all clouds.
pub struct Survey {
    operations: Arc<Operations>,
    /// The results of the last list, by the number of the cloud.
    seen: Lock<BTreeMap<usize, Seen>>,
}

/// The unhealthy volumes of a cloud.
#[derive(Debug, Default)]
struct Seen {
    unhealthy: BTreeMap<VolumeId, Conditions>,
    /// Volumes whose deletion only the last list shows. DeleteVolume, also of another controller,
    /// usually ends before the next list.
    deleting: BTreeSet<VolumeId>,
}

impl Survey {
    /// Creates the survey, which begins with [`Self::watch`].
    #[must_use]
    pub fn new(operations: Arc<Operations>) -> Self {
        Self {
            operations,
            seen: Lock::default(),
        }
    }

    /// Lists the unhealthy volumes of the cloud with this number, counted from 0, for as long as
    /// the program runs.
    pub async fn watch(&self, cloud: usize) {
        let mut pause = INTERVAL;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.look(cloud).await {
                Ok(()) => INTERVAL,
                Err(failure) => {
                    tracing::debug!("the health of volumes is not known: {failure}");
                    PAUSE_MAX.min(pause * 2)
                }
            };
        }
    }

    /// Lists the unhealthy volumes of a cloud. After a failure, the last results are kept.
    async fn look(&self, cloud: usize) -> Result<(), Failure> {
        let at = self.operations.clouds.nth(cloud)?;
        let found = self.operations.unhealthy_in(at).await?;
        let mut all = self.seen.lock();
        let seen = all.entry(cloud).or_default();
        *seen = seen.next(found);
        Ok(())
    }
}

impl Seen {
    /// Returns the results of the next list, and logs each volume that has become unhealthy, or is
    /// no longer unhealthy.
    fn next(&self, found: Vec<Unhealthy>) -> Self {
        let mut next = Self::default();
        for Unhealthy { id, conditions } in found {
            let is_deleting = conditions
                .iter()
                .any(|it| it.reason == volume::CLOUD_DELETING);
            let is_known = self.unhealthy.contains_key(&id) || self.deleting.contains(&id);
            match is_deleting && !is_known {
                true => drop(next.deleting.insert(id)),
                false => drop(next.unhealthy.insert(id, conditions)),
            }
        }
        for (id, conditions) in &next.unhealthy {
            if !self
                .unhealthy
                .get(id)
                .is_some_and(|it| is_same(it, conditions))
            {
                let why = conditions.volume_condition().message;
                tracing::warn!(volume = id.as_str(), "the volume is unhealthy: {why}");
            }
        }
        for id in self.unhealthy.keys() {
            if !next.unhealthy.contains_key(id) {
                let volume = id.as_str();
                tracing::info!(volume, "the volume is no longer reported unhealthy");
            }
        }
        next
    }
}

/// Whether the reasons are the same. Messages may contain sizes and times.
fn is_same(one: &Conditions, other: &Conditions) -> bool {
    let reasons = |conditions: &Conditions| -> Vec<_> {
        let each = conditions.iter().map(|it| it.reason.name());
        each.collect()
    };
    reasons(one) == reasons(other)
}

impl Facts for Survey {
    fn reasons(&self) -> Vec<&'static str> {
        // Clouds report a status. Of the other backends, only `local` of all nodes has a survey.
        let reporter = match self.operations.backend().health() {
            Some(_) => Reporter::Controller,
            None => Reporter::Remote,
        };
        reporter.volume_reasons()
    }

    fn known(&self) -> Known {
        let mut known = Known::default();
        for conditions in self
            .seen
            .lock()
            .values()
            .flat_map(|it| it.unhealthy.values())
        {
            for condition in conditions.iter() {
                *known.unhealthy.entry(condition.reason.name()).or_default() += 1;
            }
        }
        known
    }

    fn shown(&self) -> Vec<Shown> {
        let all = self.seen.lock();
        let unhealthy = all.values().flat_map(|it| &it.unhealthy).take(SHOWN_MAX);
        let shown = |(id, conditions): (&VolumeId, &Conditions)| Shown {
            id: id.as_str().to_owned(),
            reasons: conditions.iter().map(|it| it.reason.name()).collect(),
            details: conditions.iter().map(|it| it.message.clone()).collect(),
        };
        unhealthy.map(shown).collect()
    }

    /// Measures nothing: a page must not cause requests to a cloud.
    fn measure(self: Arc<Self>) -> Measuring {
        Box::pin(async {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::health::Reason;

    fn id(id: &str) -> VolumeId {
        VolumeId::new(id).unwrap()
    }

    fn found(all: &[(&str, Reason)]) -> Vec<Unhealthy> {
        let unhealthy = |(name, reason): &(&str, Reason)| {
            let mut conditions = Conditions::default();
            conditions.add(*reason, "why");
            let id = id(name);
            Unhealthy { id, conditions }
        };
        all.iter().map(unhealthy).collect()
    }

    fn counted(seen: &Seen) -> Vec<&str> {
        seen.unhealthy.keys().map(VolumeId::as_str).collect()
    }

    #[test]
    fn a_volume_counts_from_the_first_list_to_the_last_and_a_deletion_from_the_second_list() {
        let (error, deleting) = (volume::CLOUD_ERROR, volume::CLOUD_DELETING);
        let none = Seen::default();
        let first = none.next(found(&[("a", error), ("b", deleting), ("c", deleting)]));
        assert_eq!(counted(&first), ["a"]);
        let second = first.next(found(&[("a", deleting), ("b", deleting), ("d", error)]));
        assert_eq!(counted(&second), ["a", "b", "d"]);
        let third = second.next(found(&[("b", deleting), ("c", deleting)]));
        assert_eq!(counted(&third), ["b"]);
        assert_eq!(counted(&third.next(Vec::new())), [""; 0]);
    }
}
