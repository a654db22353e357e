//! The health of volumes, as their stores report it. Makes no calls for volumes in the cache, so
//! each controller can report all volumes.

use super::item::{disk_of, wanted};
use super::meaning::{LOST, Meaning, meaning};
use super::place::Unusable;
use super::{Front, Nodes, page};
use crate::backend::local::id;
use crate::backend::measured::{Verb, measured};
use crate::backend::{Answer, Backend as _, Health, Unhealthy, UnhealthyPage};
use crate::kubernetes::{LocalVolume, Object};
use belay_contract::reason::volume;
use belay_server::health::{Conditions, Reason};
use belay_server::request::{Secrets, VolumeId};

impl Front {
    /// Returns the health of a volume; `None` if it is not completely created, or is being deleted.
    fn health_of(&self, volume: &Object<LocalVolume>) -> Option<Conditions> {
        let mut conditions = Conditions::default();
        match meaning(volume) {
            Meaning::Usable | Meaning::Odd(_) => {}
            Meaning::Lost => conditions.add(volume::BACKING_FILE_MISSING, LOST),
            Meaning::Ordered
            | Meaning::Refused(_)
            | Meaning::Making
            | Meaning::Removing
            | Meaning::Removed => return None,
        }
        let wanted = wanted(volume)?;
        let disk = disk_of(&wanted);
        let told = volume.known_status().and_then(|it| it.conditions.as_ref());
        for told in told.into_iter().flatten() {
            let mut known = volume::ALL.iter().map(|(reason, _)| *reason);
            // A store of a newer release may report another reason.
            if let Some(reason) = known.find(|it| it.name() == told.reason) {
                conditions.add(reason, format!("disk {disk}: {}", told.message));
            }
        }
        if let Some((reason, why)) = self.trouble(&disk) {
            conditions.add(reason, format!("disk {disk}: {why}"));
        }
        Some(conditions)
    }

    /// Returns the reason and the message for the volumes of a disk that is gone or cannot be used.
    fn trouble(&self, disk: &str) -> Option<(Reason, String)> {
        let Some(seen) = self.disks.named(disk) else {
            let why = "has no LocalDisk; if its node never returns, restore a backup".to_owned();
            let is_gone = self.disks.lacks(disk, self.limits.silent);
            return is_gone.then_some((volume::STORAGE_UNREADABLE, why));
        };
        let why = self.reported(&seen).err()?;
        let reason = match why {
            Unusable::Silent => volume::STORE_SILENT,
            Unusable::ReadOnly => volume::STORAGE_READ_ONLY,
            _ => volume::STORAGE_UNREADABLE,
        };
        Some((reason, why.to_string()))
    }

    /// Returns the volume if it is unhealthy.
    fn unhealthy(&self, volume: &Object<LocalVolume>) -> Option<Unhealthy> {
        let conditions = self.health_of(volume).filter(|it| !it.is_empty())?;
        let id = VolumeId::new(wanted(volume)?.id).ok()?;
        Some(Unhealthy { id, conditions })
    }
}

impl Health for Nodes {
    fn health(&self, id: VolumeId, _: Secrets) -> Answer<'_, Option<Conditions>> {
        measured(Verb::Health, async move {
            if !self.is_volume_id(&id) {
                return Ok(None);
            }
            let volume = self.front.identified::<LocalVolume>(id.as_str()).await?;
            Ok(volume.and_then(|volume| self.front.health_of(&volume)))
        })
    }

    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>> {
        measured(Verb::Conditions, async move {
            let front = &self.front;
            let health = |(id, _): &(VolumeId, u64)| {
                let seen = front.volumes.identified(id.as_str())?;
                front.health_of(&seen.object)
            };
            let all = volumes.iter().map(|it| health(it).unwrap_or_default());
            Ok(all.collect())
        })
    }

    fn list_unhealthy(
        &self,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, UnhealthyPage> {
        measured(Verb::ListUnhealthy, async move {
            let front = &self.front;
            front.volumes.ready().await?;
            let all = front.volumes.all();
            let all = all.iter().filter_map(|seen| front.unhealthy(&seen.object));
            let id_of = |it: &Unhealthy| it.id.as_str().to_owned();
            let (volumes, next) = page(all.collect(), id::VOLUME, after.as_deref(), limit, id_of)?;
            Ok(UnhealthyPage { volumes, next })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{ID, changed, disk, unused, volume};
    use super::*;
    use crate::kubernetes::{Event, FINALIZER};
    use belay_server::call::Failure;
    use tokio::time::advance;

    const WELL: &str = r#"{"promisable": 9}"#;

    /// Returns the reasons for the volume, and checks that all methods agree.
    async fn reasons(nodes: &Nodes) -> Vec<&'static str> {
        let id = || VolumeId::new(ID).unwrap();
        let one = Health::health(nodes, id(), Secrets::default())
            .await
            .unwrap();
        let of = nodes.conditions(vec![(id(), 2)]).await.unwrap();
        let page = nodes.list_unhealthy(None, 9, Secrets::default()).await;
        let listed = page.unwrap().volumes;
        let one = one.unwrap();
        assert_eq!(of.as_slice(), std::slice::from_ref(&one));
        let listed = listed.into_iter().map(|it| it.conditions);
        let expected = (!one.is_empty()).then(|| one.clone());
        assert!(listed.eq(expected));
        one.iter().map(|it| it.reason.name()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_has_the_conditions_of_its_object_and_of_its_disk() {
        let (nodes, _dir) = unused();
        let front = &nodes.front;
        let ready = volume(&[FINALIZER], r#"{"phase": "Ready", "bytes": 2}"#);
        let short = r#"{"conditions": [{"reason": "BackingFileShort", "message": "why"},
            {"reason": "OfANewerRelease", "message": "why"}]}"#;
        let lost = changed(&ready, "status", r#"{"phase": "Lost"}"#);
        let report = |status: &str| front.disks.apply(Ok(Event::Changed(disk(status))));
        for (volume, status, expected) in [
            (&ready, WELL, &[][..]),
            (
                &changed(&ready, "status", short),
                WELL,
                &["BackingFileShort"],
            ),
            (&lost, WELL, &["BackingFileMissing"]),
            (&ready, r#"{"readOnly": true}"#, &["StorageReadOnly"]),
            (
                &changed(&ready, "status", short),
                r#"{"problem": "not mounted"}"#,
                &["BackingFileShort", "StorageUnreadable"],
            ),
        ] {
            let volume = changed(volume, "metadata", "{}");
            front.volumes.apply(Ok(Event::Listed(vec![volume])));
            report(status);
            assert_eq!(reasons(&nodes).await, expected, "{status}");
        }
        front.volumes.apply(Ok(Event::Listed(vec![ready])));
        report(WELL);
        advance(front.limits.silent).await;
        assert_eq!(reasons(&nodes).await, ["StoreSilent"]);
        front.disks.apply(Ok(Event::Listed(Vec::new())));
        assert_eq!(reasons(&nodes).await, [""; 0]);
        advance(front.limits.silent).await;
        assert_eq!(reasons(&nodes).await, ["StorageUnreadable"]);
        front.volumes.apply(Err(Failure::bug("down")));
        let page = nodes.list_unhealthy(None, 9, Secrets::default()).await;
        page.unwrap_err();
    }

    #[tokio::test]
    async fn a_volume_without_a_complete_file_has_no_health() {
        let (nodes, _dir) = unused();
        let front = &nodes.front;
        for (finalizers, status) in [
            (&[][..], "null"),
            (&[FINALIZER], r#"{"phase": "Making"}"#),
            (&[FINALIZER], r#"{"phase": "Removing"}"#),
        ] {
            let volume = volume(finalizers, status);
            front.volumes.apply(Ok(Event::Listed(vec![volume])));
            let id = VolumeId::new(ID).unwrap();
            let health = Health::health(&nodes, id, Secrets::default()).await;
            assert_eq!(health.unwrap(), None, "{status}");
        }
    }
}
