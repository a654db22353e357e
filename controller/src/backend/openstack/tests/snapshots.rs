//! Tests snapshots, copies and backups.

use super::*;
use crate::backend::{
    Clones as _, Snapshot, SnapshotClaims as _, SnapshotOrder, SnapshotPage, Snapshots as _,
};
use belay_server::request::SnapshotId;

/// Cinder's response if a quota is exceeded.
const OVER_LIMIT: &str = r#"{"overLimit": {"code": 413, "message": "no gigabytes left"}}"#;
/// The ID of a backup that another program created.
pub(super) const BACKUP: &str = "bac00000-0000-4000-8000-000000001000";

/// Returns the ID of a snapshot by the order of creation, from 0.
fn nth_snapshot(snapshot: usize) -> String {
    format!("5a000000-0000-4000-8000-{snapshot:012}")
}

impl State {
    /// Handles a request for a snapshot or a backup.
    pub(super) fn snapshot(
        &mut self,
        method: &str,
        path: &[&str],
        query: &str,
        body: &Value,
    ) -> (u16, Value) {
        let (all, one) = match path[0] {
            "backups" => (&mut self.backups, "backup"),
            _ => (&mut self.snapshots, "snapshot"),
        };
        let unknown = |id: &str| missing(one, id);
        match (method, &path[1..]) {
            ("GET", ["detail"]) => list(all, path[0], query),
            ("GET", [id]) => match all.get(*id) {
                Some(shown) => (200, json!({ one: shown })),
                None => unknown(id),
            },
            ("DELETE", [id]) => match all.get_mut(*id) {
                None => unknown(id),
                Some(shown) if shown["status"] == "available" => {
                    all.remove(*id);
                    (202, Value::Null)
                }
                Some(_) => bad_request("Invalid snapshot: status must be available"),
            },
            ("POST", []) if one == "backup" => self.back_up(body),
            ("PUT", [id]) => {
                all.get_mut(*id).unwrap()["metadata"] = body["backup"]["metadata"].clone();
                (200, json!({"backup": {"id": id}}))
            }
            ("POST", []) => {
                let mut snapshot = body["snapshot"].clone();
                let of = snapshot["volume_id"].as_str().unwrap();
                let Some(volume) = self.volumes.get(of) else {
                    return missing("Volume", of);
                };
                let is_forced = volume["status"] == "in-use" && snapshot["force"] == true;
                if volume["status"] != "available" && !is_forced {
                    return bad_request("Invalid volume: status must be available");
                }
                let id = nth_snapshot(all.len());
                snapshot["id"] = id.clone().into();
                snapshot["size"] = volume["size"].clone();
                snapshot["status"] = "creating".into();
                snapshot["created_at"] = "2026-11-24T10:00:00.000000".into();
                let answer = snapshot.clone();
                snapshot["status"] = "available".into();
                all.insert(id, snapshot);
                (202, json!({ "snapshot": answer }))
            }
            ("POST", [id, "metadata"]) => {
                let Some(shown) = all.get_mut(*id) else {
                    return unknown(id);
                };
                for (key, value) in body["metadata"].as_object().unwrap() {
                    // The real Cinder refuses to add a key with a slash to an existing snapshot.
                    assert!(!key.contains('/'), "{key}");
                    shown["metadata"][key] = value.clone();
                }
                (200, json!({ "metadata": shown["metadata"] }))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Creates a backup that is being copied from its snapshot.
    fn back_up(&mut self, body: &Value) -> (u16, Value) {
        let mut backup = body["backup"].clone();
        let basis = backup["snapshot_id"].as_str().unwrap();
        let basis = self.snapshots.get_mut(basis).unwrap();
        assert_eq!(basis["volume_id"], backup["volume_id"]);
        if basis["status"] != "available" {
            return bad_request("Invalid snapshot: must be available");
        }
        basis["status"] = "backing-up".into();
        let id = format!("bac00000-0000-4000-8000-{:012}", self.backups.len());
        backup["id"] = id.clone().into();
        backup["size"] = basis["size"].clone();
        backup["status"] = "creating".into();
        // The real Cinder stores this metadata together with the data of the backup, where users
        // cannot read it.
        let of = &self.volumes[backup["volume_id"].as_str().unwrap()];
        backup["carries"] = of["metadata"].clone();
        backup["data_timestamp"] = basis["created_at"].clone();
        backup["created_at"] = "2026-11-24T11:00:00.000000".into();
        self.backups.insert(id.clone(), backup);
        (
            202,
            json!({"backup": {"id": id, "name": body["backup"]["name"]}}),
        )
    }

    /// Completes all backups.
    fn end_backups(&mut self) {
        for kept in self.snapshots.values_mut().chain(self.backups.values_mut()) {
            kept["status"] = "available".into();
        }
    }
}

impl Twin {
    async fn cut(&self, order: SnapshotOrder) -> Result<Snapshot, Failure> {
        self.backend.cut(order).await
    }

    async fn snapshot(&self, id: &SnapshotId) -> Option<Snapshot> {
        let found = self.backend.snapshot(id.clone(), Secrets::default());
        found.await.unwrap()
    }

    async fn discard(&self, id: &SnapshotId) -> Result<Progress<()>, Failure> {
        self.backend.discard(id.clone(), Secrets::default()).await
    }

    async fn page(&self, of: Option<&VolumeId>, after: Option<String>) -> SnapshotPage {
        let page = self
            .backend
            .list_snapshots(of.cloned(), after, 2, Secrets::default());
        page.await.unwrap()
    }

    pub(super) fn backup(&self, id: &str, status: &str) -> SnapshotId {
        let shown = json!({
            "id": id, "name": "snap-1", "status": status, "size": 2, "volume_id": nth(999),
            "created_at": "2026-11-24T10:00:00.000000", "metadata": {}, "carries": {},
        });
        self.state().backups.insert(id.to_owned(), shown);
        SnapshotId::new(id).unwrap()
    }
}

pub(super) fn cut(name: &str, of: &VolumeId, parameters: &[(&str, &str)]) -> SnapshotOrder {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    SnapshotOrder {
        name: Name::new(name).unwrap(),
        attempt: Attempt::new(1, 1),
        source: of.clone(),
        parameters: Context::new("parameters", parameters.iter().map(owned)).unwrap(),
        secrets: Secrets::default(),
    }
}

#[tokio::test]
async fn a_snapshot_is_cut_found_claimed_and_deleted() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    let label = ("csi.storage.k8s.io/volumesnapshot/name", "nightly");
    let made = twin.cut(cut("snap-1", &of, &[label])).await.unwrap();
    assert_eq!(made.mark, Mark::Open(Attempt::new(1, 1)));
    assert_eq!(made.phase, Phase::Busy("creating".to_owned()));
    twin.cut(cut("snap-12", &of, &[])).await.unwrap();
    let name = Name::new("snap-1").unwrap();
    let found = twin.backend.find_snapshots(name, Secrets::default()).await;
    let found = found.unwrap();
    assert_eq!(found.len(), 1, "not the one with a similar name");
    let id = &found[0].id;
    assert!(found[0].ready && *id == made.id, "{found:?}");
    let claim = || twin.backend.claim_snapshot(id.clone(), Secrets::default());
    claim().await.unwrap();
    let seen = twin.snapshot(id).await.unwrap();
    assert_eq!((seen.mark, seen.bytes), (Mark::Claimed, 2 * GIB));
    assert_eq!(seen.source, of);
    {
        let state = twin.state();
        let metadata = &state.snapshots[id.as_str()]["metadata"];
        assert_eq!(metadata[CLUSTER], "k8s");
        assert_eq!(metadata[label.0], label.1);
    }
    assert_eq!(twin.discard(id).await, Ok(Progress::Begun));
    assert_eq!(twin.discard(id).await, Ok(Progress::Done(())));
    assert_eq!(twin.snapshot(id).await, None);
    assert_eq!(claim().await.unwrap_err().kind, Kind::NotFound);
}

#[tokio::test]
async fn a_volume_in_use_has_snapshots_unless_its_class_refuses_that() {
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    twin.backend.attach(to(&id, S1)).await.unwrap();
    for force in [&[][..], &[("force-create", "true"), ("type", "snapshot")]] {
        twin.cut(cut("snap-1", &id, force)).await.unwrap();
    }
    let unforced = cut("snap-1", &id, &[("force-create", "false")]);
    let refused = twin.cut(unforced).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains("Invalid volume"), "{refused}");
    for (key, value) in [("force-create", "yes"), ("type", "other")] {
        let refused = twin.cut(cut("snap-1", &id, &[(key, value)])).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid);
        assert!(refused.message.starts_with(&format!("parameters[{key}]")));
    }
    for (status, kind) in [
        ("extending", Kind::Busy),
        ("deleting", Kind::Busy),
        ("error", Kind::Precondition),
    ] {
        twin.state().volumes.get_mut(id.as_str()).unwrap()["status"] = status.into();
        let refused = twin.cut(cut("snap-1", &id, &[])).await.unwrap_err();
        assert_eq!(refused.kind, kind, "{status}: {refused}");
    }
    let unknown = VolumeId::new(nth(999)).unwrap();
    let refused = twin.cut(cut("snap-1", &unknown, &[])).await.unwrap_err();
    assert_eq!(refused.kind, Kind::NotFound);
    twin.state().refusals = vec![("POST /volume/v3/snapshots", "413", OVER_LIMIT)];
    let refused = twin.cut(cut("snap-1", &id, &[])).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Quota);
}

#[tokio::test]
async fn a_volume_from_a_snapshot_or_a_volume_names_its_source_and_is_populated() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    let snapshot = twin.cut(cut("snap-1", &of, &[])).await.unwrap().id;
    let restored = twin.backend.restore(order("pvc-2"), snapshot.clone()).await;
    let cloned = twin.backend.clone_volume(order("pvc-3"), of.clone()).await;
    for (copy, source, key) in [
        (
            restored.unwrap(),
            ContentSource::Snapshot(snapshot.clone()),
            "snapshot_id",
        ),
        (
            cloned.unwrap(),
            ContentSource::Volume(of.clone()),
            "source_volid",
        ),
    ] {
        assert_eq!(copy.source, Some(source.clone()));
        // The source of the volume is still reported even if Cinder no longer shows the source.
        twin.state().volumes.get_mut(copy.id.as_str()).unwrap()[key] = Value::Null;
        twin.backend
            .claim(copy.id.clone(), Secrets::default())
            .await
            .unwrap();
        let seen = twin.get(&copy.id).await.unwrap().unwrap();
        assert_eq!(seen.source, Some(source));
        assert_eq!(seen.content, Some(Content::Populated));
    }
}

#[tokio::test]
async fn pages_follow_each_other_and_a_snapshot_without_a_time_hides_no_other() {
    let twin = Twin::start().await;
    let (one, other) = (twin.claimed("pvc-1").await, twin.claimed("pvc-2").await);
    for n in 0..4 {
        let of = if n == 3 { &other } else { &one };
        twin.cut(cut(&format!("s-{n}"), of, &[])).await.unwrap();
    }
    twin.state().snapshots.get_mut(&nth_snapshot(1)).unwrap()["created_at"] = Value::Null;
    let ids = |page: &SnapshotPage| -> Vec<String> {
        let ids = page.snapshots.iter();
        ids.map(|snapshot| snapshot.id.to_string()).collect()
    };
    let first = twin.page(None, None).await;
    assert_eq!(ids(&first), [nth_snapshot(0)]);
    let second = twin.page(None, first.next).await;
    assert_eq!(ids(&second), [nth_snapshot(2), nth_snapshot(3)]);
    assert_eq!(second.next, None);
    assert_eq!(ids(&twin.page(Some(&other), None).await), [nth_snapshot(3)]);
    let gone = Some("gone".to_owned());
    let refused = twin
        .backend
        .list_snapshots(None, gone, 2, Secrets::default());
    assert_eq!(refused.await.unwrap_err().kind, Kind::BadToken);
}

#[tokio::test]
async fn a_backup_of_the_other_driver_is_found_restored_and_deleted_as_a_snapshot() {
    let twin = Twin::start().await;
    let id = twin.backup(BACKUP, "available");
    let seen = twin.snapshot(&id).await.unwrap();
    assert!(seen.ready && seen.mark == Mark::None, "{seen:?}");
    let volume = twin
        .backend
        .restore(order("pvc-1"), id.clone())
        .await
        .unwrap();
    assert_eq!(volume.source, Some(ContentSource::Snapshot(id.clone())));
    let none = SnapshotId::new(nth_snapshot(999)).unwrap();
    let refused = twin
        .backend
        .restore(order("pvc-1"), none)
        .await
        .unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid);
    // The driver must read the list of backups to determine whether the ID no longer exists.
    twin.state().refusals = vec![("GET /volume/v3/backups", "500", "")];
    assert_eq!(twin.discard(&id).await.unwrap_err().kind, Kind::Unreachable);
    assert_eq!(twin.discard(&id).await, Ok(Progress::Begun));
    assert_eq!(twin.discard(&id).await, Ok(Progress::Done(())));
}

#[tokio::test]
async fn a_backup_is_copied_from_a_snapshot_that_no_caller_sees_and_that_ends_with_it() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    let order = || {
        cut(
            "nightly",
            &of,
            &[("type", "backup"), ("availability", "az-b")],
        )
    };
    let basis = || twin.backend.basis(order());
    let first = basis().await.unwrap().unwrap();
    assert_eq!(first.phase, Phase::Busy("creating".to_owned()));
    assert_eq!(
        basis().await.unwrap().unwrap().id,
        first.id,
        "no second one"
    );
    let begun = twin.cut(order()).await.unwrap();
    assert_eq!((begun.phase, begun.ready), (Phase::Ready, false));
    assert_eq!(begun.mark, Mark::Open(Attempt::new(1, 1)));
    assert_eq!((begun.source, begun.created), (of.clone(), first.created));
    let id = begun.id;
    assert_eq!(
        twin.state().backups[id.as_str()]["availability_zone"],
        "az-b"
    );
    assert!(twin.page(None, None).await.snapshots.is_empty());
    let name = || Name::new("nightly").unwrap();
    let claims = &twin.backend;
    let shown = claims.find_snapshots(name(), Secrets::default()).await;
    assert!(shown.unwrap().is_empty());
    // Another controller requests the backup at the same time; a snapshot can be the source of only
    // one backup.
    assert_eq!(twin.cut(order()).await.unwrap_err().kind, Kind::Busy);

    let asked = order();
    let claims = twin.backend.snapshot_claims(&asked).unwrap();
    claims
        .claim_snapshot(id.clone(), Secrets::default())
        .await
        .unwrap();
    let found = claims
        .find_snapshots(name(), Secrets::default())
        .await
        .unwrap();
    assert_eq!((found.len(), &found[0].mark), (1, &Mark::Claimed));
    {
        let state = twin.state();
        let metadata = &state.backups[id.as_str()]["metadata"];
        assert_eq!(
            metadata[wire::SNAPSHOT_ATTEMPT],
            Attempt::new(1, 1).as_str()
        );
        assert_eq!(metadata[CLUSTER], "k8s");
    }
    let gone = SnapshotId::new(nth_snapshot(999)).unwrap();
    let lost = claims.claim_snapshot(gone, Secrets::default()).await;
    assert_eq!(lost.unwrap_err().kind, Kind::NotFound);
    for refused in [
        twin.discard(&id).await.map(drop),
        twin.backend.drop_basis(order()).await,
    ] {
        assert_eq!(refused.unwrap_err().kind, Kind::Busy);
    }
    assert!(twin.snapshot(&id).await.is_some());

    twin.state().end_backups();
    assert!(twin.snapshot(&id).await.unwrap().ready);
    twin.backend.drop_basis(order()).await.unwrap();
    assert!(twin.state().snapshots.is_empty());
    assert_eq!(twin.discard(&id).await, Ok(Progress::Begun));
    assert_eq!(twin.discard(&id).await, Ok(Progress::Done(())));
}

#[tokio::test]
async fn a_snapshot_that_is_no_basis_is_never_deleted_for_a_backup() {
    let twin = Twin::start().await;
    let (of, other) = (twin.claimed("pvc-1").await, twin.claimed("pvc-2").await);
    let backup = |of: &VolumeId| cut("nightly", of, &[("type", "backup")]);
    let plain = twin.cut(cut("nightly", &of, &[])).await.unwrap().id;
    let elsewhere = twin
        .backend
        .basis(backup(&other))
        .await
        .unwrap()
        .unwrap()
        .id;
    let own = twin.backend.basis(backup(&of)).await.unwrap().unwrap().id;
    assert!(own != plain && own != elsewhere);
    let begun = twin.cut(backup(&of)).await.unwrap();
    twin.state().end_backups();
    twin.backend.drop_basis(backup(&of)).await.unwrap();
    assert_eq!(twin.discard(&begun.id).await, Ok(Progress::Begun));
    let left: Vec<_> = twin.state().snapshots.keys().cloned().collect();
    assert_eq!(left, [plain.to_string(), elsewhere.to_string()]);
}

#[tokio::test]
async fn a_backup_that_cinder_refuses_leaves_no_snapshot_and_one_that_fails_says_why() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    let order = || cut("nightly", &of, &[("type", "backup")]);
    let (nothing, may_run) = (Certainty::NothingHappened, Certainty::MayBeRunning);
    let undeleted = Some(("DELETE /volume/v3/snapshots", "500", "{}"));
    for (status, text, then, kind, certainty, left) in [
        ("413", OVER_LIMIT, None, Kind::Quota, nothing, 0),
        // The snapshot would be left behind if the caller did not repeat the call.
        ("413", OVER_LIMIT, undeleted, Kind::Quota, may_run, 1),
        ("503", "{}", None, Kind::Unreachable, may_run, 1),
    ] {
        twin.backend.basis(order()).await.unwrap();
        let refusal = ("POST /volume/v3/backups", status, text);
        twin.state().refusals = [refusal].into_iter().chain(then).collect();
        let refused = twin.cut(order()).await.unwrap_err();
        assert_eq!((refused.kind, refused.certainty), (kind, certainty));
        assert_eq!(twin.state().snapshots.len(), left, "{status}");
        assert!(twin.state().refusals.is_empty());
    }
    // A failed snapshot is replaced.
    let failed = twin.backend.basis(order()).await.unwrap().unwrap().id;
    let set = |id: &SnapshotId, status: &str| {
        let mut state = twin.state();
        state.snapshots.get_mut(id.as_str()).unwrap()["status"] = status.into();
    };
    set(&failed, "error");
    twin.state().refusals = vec![("DELETE /volume/v3/snapshots", "202", "")];
    let next = twin.backend.basis(order()).await.unwrap().unwrap().id;
    assert_ne!(next, failed);
    let id = twin.cut(order()).await.unwrap().id;
    {
        let mut state = twin.state();
        let backup = state.backups.get_mut(id.as_str()).unwrap();
        backup["status"] = "error".into();
        backup["fail_reason"] = "no room on the tape".into();
    }
    let Phase::Failed(why) = twin.snapshot(&id).await.unwrap().phase else {
        panic!("it has failed");
    };
    assert!(why.message.contains("no room on the tape"), "{why}");
}

/// Cinder replaces the volume's metadata with the metadata of the volume that was backed up.
#[tokio::test]
async fn a_volume_from_a_backup_is_known_by_its_description_until_it_is_claimed() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    twin.backend
        .basis(cut("b", &of, &[("type", "backup")]))
        .await
        .unwrap();
    let backup = twin
        .cut(cut("b", &of, &[("type", "backup")]))
        .await
        .unwrap()
        .id;
    twin.state().end_backups();
    for is_gone in [false, true] {
        if is_gone {
            twin.state().volumes.remove(of.as_str());
        }
        let made = twin
            .backend
            .restore(order("pvc-2"), backup.clone())
            .await
            .unwrap();
        let seen = || async { twin.get(&made.id).await.unwrap().unwrap() };
        let metadata = twin.state().volumes[made.id.as_str()]["metadata"].clone();
        assert_eq!(metadata[wire::CLAIM], of.as_str(), "as the real one");
        let (open, source) = (
            Mark::Open(Attempt::new(1, 1)),
            ContentSource::Snapshot(backup.clone()),
        );
        let shown = seen().await;
        assert_eq!((shown.mark, shown.source), (open, Some(source.clone())));
        twin.backend
            .claim(made.id.clone(), Secrets::default())
            .await
            .unwrap();
        let shown = seen().await;
        assert_eq!((shown.mark, shown.source), (Mark::Claimed, Some(source)));
        assert_eq!(shown.content, Some(Content::Populated));

        // Another program restores a backup of the volume: Cinder also copies the description.
        let copy = {
            let mut state = twin.state();
            let mut copy = state.volumes[made.id.as_str()].clone();
            let id = nth(998);
            copy["id"] = id.clone().into();
            state.volumes.insert(id.clone(), copy);
            VolumeId::new(id).unwrap()
        };
        let copy = twin.get(&copy).await.unwrap().unwrap();
        assert_eq!(
            (copy.mark, copy.content),
            (Mark::Copied, Some(Content::Populated))
        );
        // Users may change the description.
        twin.state().volumes.get_mut(made.id.as_str()).unwrap()["description"] = Value::Null;
        let attached = twin.backend.attach(to(&made.id, S1)).await.unwrap();
        assert_eq!(attached, Progress::Begun);
        let shown = seen().await;
        assert_eq!(
            shown.content,
            Some(Content::Populated),
            "by Cinder's own key"
        );
    }
}

#[tokio::test]
async fn a_deletion_that_cinder_refuses_is_judged_by_the_state_of_the_snapshot() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    let id = twin.cut(cut("snap-1", &of, &[])).await.unwrap().id;
    let backup = twin.backup(BACKUP, "available");
    for (status, expected) in [
        ("deleting", Ok(Progress::Begun)),
        ("creating", Err(Kind::Busy)),
        ("in-use", Err(Kind::Busy)),
        ("error_deleting", Err(Kind::Precondition)),
    ] {
        {
            let mut state = twin.state();
            state.snapshots.get_mut(id.as_str()).unwrap()["status"] = status.into();
            state.backups.get_mut(backup.as_str()).unwrap()["status"] = status.into();
        }
        for id in [&id, &backup] {
            let deleted = twin.discard(id).await.map_err(|refused| refused.kind);
            assert_eq!(deleted, expected, "{status} {id}");
        }
    }
}

/// A call that claims a snapshot must take effect within the time that `CLAIMS_SETTLE` in
/// `operation::engine` assumes.
#[tokio::test]
async fn a_claim_and_a_login_in_between_have_one_deadline() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    let id = twin.cut(cut("snap-1", &of, &[])).await.unwrap().id;
    for path in ["/volumes/", "/snapshots/"] {
        twin.state().refusals = vec![(path, "401", ""), ("/auth/tokens", "silence", "")];
        let claim = async {
            match path {
                "/volumes/" => twin.backend.claim(of.clone(), Secrets::default()).await,
                _ => {
                    let claim = twin.backend.claim_snapshot(id.clone(), Secrets::default());
                    claim.await
                }
            }
        };
        let late = async {
            while !twin.state().seen.last().unwrap().contains("auth/tokens") {
                tokio::task::yield_now().await;
            }
            later(10).await;
        };
        let (refused, ()) = tokio::join!(claim, late);
        let refused = refused.unwrap_err();
        assert_eq!(
            (refused.kind, refused.certainty),
            (Kind::Timeout, Certainty::MayBeRunning),
            "{refused}"
        );
        assert!(refused.message.contains(path), "{refused}");
        twin.state().seen.clear();
        twin.state().seen.push(String::new());
    }
}
