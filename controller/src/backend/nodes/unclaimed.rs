//! Reports volumes that no PersistentVolume has, and snapshots that no VolumeSnapshotContent has.
//! Their data may still be needed, so only a person deletes them. If the disk is gone, the object
//! is deleted, which deletes no data.

use super::Front;
use super::cache::Seen;
use super::figures::show_troubled;
use super::follow::{Follow, Followed};
use super::item::{id, reported};
use crate::kubernetes::{LocalSnapshot, LocalVolume, Phase};
use belay_server::call::Failure;
use std::collections::HashSet;
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// The result of the last list of claims.
#[derive(Default)]
struct Known {
    /// The IDs that were claimed.
    claimed: HashSet<String>,
    /// The IDs that were not claimed. They are in the log.
    unclaimed: HashSet<String>,
    /// The time of the list.
    at: Option<Instant>,
}

impl Front {
    /// Reports unclaimed objects until the task is aborted.
    pub(super) async fn report_unclaimed(self: Arc<Self>) {
        let (mut volumes, mut snapshots) = (Known::default(), Known::default());
        loop {
            sleep(self.limits.check).await;
            let claims = self.client.persistent_volumes(&self.driver);
            let claims = async { Ok(claims.await?.into_iter().map(|it| it.handle).collect()) };
            let claim = "PersistentVolume";
            self.check::<LocalVolume>(&mut volumes, claim, claims).await;
            let claims = self.client.snapshot_contents(&self.driver);
            let claims = async { Ok(claims.await?.into_iter().map(|it| it.handle).collect()) };
            let claim = "VolumeSnapshotContent";
            self.check::<LocalSnapshot>(&mut snapshots, claim, claims)
                .await;
        }
    }

    /// Updates the metric of a kind, and logs each object that is newly unclaimed. Reports nothing
    /// if the claims cannot be listed. Lists them only if an object may be unclaimed that was not
    /// before, or if the last list is old.
    async fn check<R: Followed>(
        &self,
        known: &mut Known,
        claim: &str,
        claims: impl Future<Output = Result<HashSet<String>, Failure>>,
    ) {
        if R::cache(self).current().is_err() {
            return;
        }
        let mut all = R::cache(self).all();
        all.retain(|seen| {
            let phase = reported(&seen.object).map(|reported| reported.phase);
            let is_whole = phase == Some(Phase::Ready) || self.is_gone(&seen.object);
            is_whole && seen.changed.elapsed() >= self.limits.unclaimed
        });
        // An object is deleted only if a new list has no claim for it.
        let is_known = |seen: &Seen<R>| {
            let id = id(&seen.object);
            let is_kept = !self.is_gone(&seen.object);
            known.claimed.contains(id) || is_kept && known.unclaimed.contains(id)
        };
        let is_recent = known.at.is_some_and(|at| at.elapsed() < self.limits.adopt);
        let is_new = all.iter().any(|seen| !is_known(seen));
        if is_new || !is_recent && !all.is_empty() {
            match claims.await {
                Ok(claimed) => known.claimed = claimed,
                Err(failure) => {
                    tracing::warn!("unclaimed objects are not reported: {failure}");
                    return;
                }
            }
            known.at = Some(Instant::now());
        }
        all.retain(|seen| !known.claimed.contains(id(&seen.object)));
        let mut unclaimed = HashSet::new();
        for seen in &all {
            if self.is_gone(&seen.object) {
                let mut follow = Follow::new(self, Arc::clone(&seen.object));
                if let Err(failure) = self.give_up(&mut follow).await {
                    tracing::warn!("an unclaimed object of a gone disk is not deleted: {failure}");
                }
                continue;
            }
            let id = id(&seen.object);
            if !known.unclaimed.contains(id) {
                let what = R::WHAT;
                tracing::warn!(
                    "{what} {id}: no {claim} has it, and nothing deletes it automatically; to \
                     delete it with its data: belayctl local remove {id}"
                );
            }
            unclaimed.insert(id.to_owned());
        }
        known.unclaimed = unclaimed;
        show_troubled::<R>("unclaimed", known.unclaimed.len());
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{ID, unused, volume};
    use super::*;
    use crate::kubernetes::{Event, FINALIZER};
    use metrics_exporter_prometheus::PrometheusBuilder;
    use std::time::Duration;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_unclaimed_once_it_was_ready_for_some_time_without_a_claim() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let _guard = metrics::set_default_local_recorder(&recorder);
        let (nodes, _dir) = unused();
        let front = &nodes.front;
        let mut known = Known::default();
        let page = || recorder.handle().render();
        let shown = |count: u32| format!("{{kind=\"volume\",trouble=\"unclaimed\"}} {count}\n");
        let claims = |ids: &[&str]| {
            let ids = ids.iter().map(|id| (*id).to_owned());
            std::future::ready(Ok(ids.collect()))
        };
        let unlisted = || std::future::ready(Err(Failure::busy("no list")));

        let ready = volume(&[FINALIZER], r#"{"phase": "Ready", "bytes": 2}"#);
        front.volumes.apply(Ok(Event::Listed(vec![ready])));
        let age = front.limits.unclaimed;
        advance(age - Duration::from_millis(1)).await;
        // A list of claims is not needed, so its failure has no effect.
        front.check::<LocalVolume>(&mut known, "", unlisted()).await;
        assert!(page().contains(&shown(0)), "{}", page());
        advance(Duration::from_millis(1)).await;
        let mut known = Known::default();
        front.check::<LocalVolume>(&mut known, "", unlisted()).await;
        assert!(known.at.is_none() && known.unclaimed.is_empty());
        front
            .check::<LocalVolume>(&mut known, "", claims(&["vol-other"]))
            .await;
        assert!(known.unclaimed.contains(ID));
        assert!(page().contains(&shown(1)), "{}", page());
        // Until the list is old, the object is known.
        front
            .check::<LocalVolume>(&mut known, "", claims(&[ID]))
            .await;
        assert!(page().contains(&shown(1)), "{}", page());
        advance(front.limits.adopt).await;
        front
            .check::<LocalVolume>(&mut known, "", claims(&[ID]))
            .await;
        assert!(known.unclaimed.is_empty());
        assert!(page().contains(&shown(0)), "{}", page());

        let making = volume(&[FINALIZER], r#"{"phase": "Making"}"#);
        front.volumes.apply(Ok(Event::Changed(making)));
        advance(age).await;
        let mut known = Known::default();
        front
            .check::<LocalVolume>(&mut known, "", claims(&[]))
            .await;
        assert!(known.unclaimed.is_empty());
    }
}
