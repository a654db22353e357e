//! Reports the health of volumes. A backend with [`Health`] inspects its volumes. For storage that
//! reports a status of each volume, the status in the list of all volumes determines the health, so
//! that no volume requires another request. Does not depend on the words of a single cloud, except
//! `maintenance`.

use super::Operations;
use super::clouds::Cloud;
use super::lookup::{PAGE_ENTRIES_MAX, in_time};
use crate::backend::{Answer, Page, Phase, Unhealthy, UnhealthyPage, Volume, no_volume};
use belay_contract::reason::volume;
use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::{GetVolumeHealth, ListVolumeHealth, Secrets};

/// The status of a Cinder volume that is locked, such as during a migration with `--lock-volume`,
/// or that an administrator has set (`cinder reset-state`).
const MAINTENANCE: &str = "maintenance";

impl Operations {
    /// Returns the health of the volume.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist, and `Unsupported` if the backend does not
    /// report health.
    pub async fn health(&self, request: GetVolumeHealth) -> Result<Conditions, Failure> {
        self.check_health()?;
        let GetVolumeHealth { id, secrets } = request;
        let what = format!("volume {id}");
        let conditions = match self.backend().health() {
            Some(judge) => in_time(&what, judge.health(id.clone(), secrets)).await?,
            None => {
                // The clouds ignore secrets, and the ID of a volume occurs in only one cloud.
                let found = in_time(&what, self.clouds.get_anywhere(id.clone())).await?;
                found.as_ref().map(of_status)
            }
        };
        conditions.ok_or_else(|| no_volume(&id))
    }

    /// Returns a page of unhealthy volumes.
    ///
    /// # Errors
    /// Returns `BadToken` for an unknown token, and `Unsupported` if the backend does not report
    /// health.
    pub async fn list_health(&self, request: ListVolumeHealth) -> Result<UnhealthyPage, Failure> {
        self.check_health()?;
        let limit = request
            .max_entries
            .unwrap_or(PAGE_ENTRIES_MAX)
            .min(PAGE_ENTRIES_MAX);
        let (after, what) = (request.starting_token, "the list of unhealthy volumes");
        match self.backend().health() {
            Some(judge) => in_time(what, judge.list_unhealthy(after, limit, request.secrets)).await,
            None => {
                let list = |after, limit| self.clouds.list_all(after, limit);
                in_time(what, listed(list, after, limit)).await
            }
        }
    }

    /// Returns all unhealthy volumes of one cloud.
    ///
    /// # Errors
    /// Returns the errors of the backend, and `Timeout` if a page takes too long.
    pub(super) async fn unhealthy_in(&self, cloud: &Cloud) -> Result<Vec<Unhealthy>, Failure> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = match cloud.backend.health() {
                Some(judge) => {
                    let secrets = Secrets::default();
                    let asked = judge.list_unhealthy(after, PAGE_ENTRIES_MAX, secrets);
                    in_time("the list of unhealthy volumes", asked).await?
                }
                None => {
                    let list = |after, limit| {
                        let asked = cloud.backend.list(after, limit, Secrets::default());
                        Box::pin(in_time("the list of volumes", asked)) as Answer<'_, Page>
                    };
                    listed(list, after, PAGE_ENTRIES_MAX).await?
                }
            };
            all.extend(page.volumes);
            after = page.next;
            if after.is_none() {
                return Ok(all);
            }
        }
    }

    /// Returns the health of each of these volumes, in the order of `volumes`; `None` if the
    /// backend does not report health. A volume that was deleted meanwhile has no health
    /// conditions.
    ///
    /// # Errors
    /// Returns the errors of the backend.
    pub async fn conditions(&self, volumes: &[Volume]) -> Result<Option<Vec<Conditions>>, Failure> {
        let Some(judge) = self.backend().health() else {
            let each = || volumes.iter().map(of_status).collect();
            return Ok(self.knows_health().then(each));
        };
        let volumes = volumes.iter();
        let volumes = volumes.map(|volume| (volume.id.clone(), volume.bytes));
        let asked = judge.conditions(volumes.collect());
        let conditions = in_time("the condition of volumes", asked).await?;
        Ok(Some(conditions))
    }

    fn check_health(&self) -> Result<(), Failure> {
        match self.knows_health() {
            true => Ok(()),
            false => Err(Failure::unsupported(
                "this driver does not report volume health",
            )),
        }
    }
}

/// Returns the health of a volume from the status that the storage reports.
fn of_status(volume: &Volume) -> Conditions {
    let mut conditions = Conditions::default();
    match &volume.phase {
        Phase::Failed(why) => conditions.add(volume::CLOUD_ERROR, why.message.clone()),
        Phase::Busy(status) if status == MAINTENANCE => conditions.add(
            volume::CLOUD_MAINTENANCE,
            "the cloud reports the status maintenance, and refuses to attach, expand, copy or \
             delete the volume; wait until the migration has ended, or ask the administrator who \
             has set the status",
        ),
        Phase::Deleting => conditions.add(
            volume::CLOUD_DELETING,
            "the cloud is deleting the volume; if its PersistentVolume is still needed, find who \
             has requested the deletion, and restore the data from a snapshot or a backup",
        ),
        Phase::Ready | Phase::Busy(_) => {}
    }
    conditions
}

/// Returns a page of at most `limit` unhealthy volumes, from the pages of a list of all volumes.
async fn listed<'a>(
    list: impl Fn(Option<String>, usize) -> Answer<'a, Page>,
    mut after: Option<String>,
    limit: usize,
) -> Result<UnhealthyPage, Failure> {
    let mut found = UnhealthyPage::default();
    loop {
        let mut page = list(after.clone(), PAGE_ENTRIES_MAX).await?;
        let is_unhealthy = |volume: &Volume| !of_status(volume).is_empty();
        let room = limit - found.volumes.len();
        let all = page.volumes.iter().enumerate();
        let surplus = all.filter(|(_, it)| is_unhealthy(it)).nth(room);
        let surplus = surplus.map(|(at, _)| at);
        if let Some(entries) = surplus {
            // A token refers to the end of a page, so the last page must end before the surplus.
            page = list(after, entries).await?;
        }
        let unhealthy = page.volumes.into_iter().filter(is_unhealthy).take(room);
        found.volumes.extend(unhealthy.map(|volume| Unhealthy {
            conditions: of_status(&volume),
            id: volume.id,
        }));
        if surplus.is_some() || found.volumes.len() == limit || page.next.is_none() {
            found.next = page.next;
            return Ok(found);
        }
        after = page.next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::health::Reason;
    use belay_server::request::VolumeId;

    fn broken(id: &str, phase: Phase) -> Volume {
        Volume::new(VolumeId::new(id).unwrap(), phase)
    }

    fn failed() -> Phase {
        Phase::Failed(Failure::precondition("Cinder reports the status error"))
    }

    #[test]
    fn a_status_is_a_condition_and_a_change_in_progress_is_none() {
        let reasons = |phase| {
            let conditions = of_status(&broken("v", phase));
            let reasons = conditions.iter().map(|it| it.reason);
            reasons.collect::<Vec<Reason>>()
        };
        assert_eq!(reasons(failed()), [volume::CLOUD_ERROR]);
        assert_eq!(reasons(Phase::Deleting), [volume::CLOUD_DELETING]);
        for (status, expected) in [
            (MAINTENANCE, &[volume::CLOUD_MAINTENANCE][..]),
            ("attaching", &[]),
            ("extending", &[]),
            ("retyping", &[]),
        ] {
            assert_eq!(
                reasons(Phase::Busy(status.to_owned())),
                expected,
                "{status}"
            );
        }
        assert_eq!(reasons(Phase::Ready), []);
    }

    /// Lists volumes `0` to `9`, of which the multiples of 3 have failed, in pages of at most 5.
    fn list(after: Option<String>, limit: usize) -> Answer<'static, Page> {
        let first = after.map_or(0, |after| after.parse::<usize>().unwrap());
        let end = (first + limit.min(5)).min(10);
        let phase = |n: usize| {
            if n.is_multiple_of(3) {
                failed()
            } else {
                Phase::Ready
            }
        };
        let volumes = (first..end).map(|n| broken(&n.to_string(), phase(n)));
        let volumes = volumes.collect();
        let next = (end < 10).then(|| end.to_string());
        Box::pin(async { Ok(Page { volumes, next }) })
    }

    #[tokio::test]
    async fn pages_of_any_size_list_every_unhealthy_volume_once() {
        for limit in 1..6 {
            let (mut ids, mut after) = (Vec::new(), None);
            loop {
                let page = listed(list, after, limit).await.unwrap();
                assert!(page.volumes.len() <= limit, "{limit}: {page:?}");
                ids.extend(page.volumes.iter().map(|it| it.id.as_str().to_owned()));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(ids, ["0", "3", "6", "9"], "{limit}");
        }
    }
}
