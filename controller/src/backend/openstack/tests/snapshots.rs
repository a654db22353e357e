//! Snapshots, copies and backups.

use super::*;
use crate::backend::{
    Clones as _, Snapshot, SnapshotClaims as _, SnapshotOrder, SnapshotPage, Snapshots as _,
};
use belay_server::request::SnapshotId;

impl State {
    /// A request for a snapshot or a backup.
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
        let unknown = (404, json!({"itemNotFound": {"message": "not found"}}));
        let bad = |message: &str| json!({"badRequest": {"code": 400, "message": message}});
        match (method, &path[1..]) {
            ("GET", ["detail"]) => list(all, "snapshots", query),
            ("GET", [id]) => match all.get(*id) {
                Some(shown) => (200, json!({ one: shown })),
                None => unknown,
            },
            ("DELETE", [id]) => match all.get_mut(*id) {
                None => unknown,
                Some(shown) if shown["status"] == "available" => {
                    all.remove(*id);
                    (202, Value::Null)
                }
                Some(_) => (400, bad("Invalid snapshot: status must be available")),
            },
            ("POST", []) => {
                let mut snapshot = body["snapshot"].clone();
                let of = snapshot["volume_id"].as_str().unwrap();
                let Some(volume) = self.volumes.get(of) else {
                    return unknown;
                };
                let is_forced = volume["status"] == "in-use" && snapshot["force"] == true;
                if volume["status"] != "available" && !is_forced {
                    return (400, bad("Invalid volume: status must be available"));
                }
                let id = format!("snap-{}", all.len());
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
                    return unknown;
                };
                for (key, value) in body["metadata"].as_object().unwrap() {
                    // As the real one: a key that is added later.
                    assert!(!key.contains('/'), "{key}");
                    shown["metadata"][key] = value.clone();
                }
                (200, json!({ "metadata": shown["metadata"] }))
            }
            other => panic!("{other:?}"),
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

    fn backup(&self, id: &str, status: &str) -> SnapshotId {
        let shown = json!({
            "id": id, "name": "snap-1", "status": status, "size": 2, "volume_id": "v-1",
            "created_at": "2026-11-24T10:00:00.000000", "metadata": {},
        });
        self.state().backups.insert(id.to_owned(), shown);
        SnapshotId::new(id).unwrap()
    }
}

fn cut(name: &str, of: &VolumeId, parameters: &[(&str, &str)]) -> SnapshotOrder {
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
    twin.backend.attach(to(&id, "s-1")).await.unwrap();
    for force in [&[][..], &[("force-create", "true"), ("type", "snapshot")]] {
        twin.cut(cut("snap-1", &id, force)).await.unwrap();
    }
    let unforced = cut("snap-1", &id, &[("force-create", "false")]);
    let refused = twin.cut(unforced).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains("Invalid volume"), "{refused}");
    for (key, value) in [
        ("force-create", "yes"),
        ("type", "backup"),
        ("type", "other"),
    ] {
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
    let unknown = VolumeId::new("none").unwrap();
    let refused = twin.cut(cut("snap-1", &unknown, &[])).await.unwrap_err();
    assert_eq!(refused.kind, Kind::NotFound);
    twin.state().refusals = vec![("POST /volume/v3/snapshots", "413", "{}")];
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
        // Also if Cinder should forget it.
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
    twin.state().snapshots.get_mut("snap-1").unwrap()["created_at"] = Value::Null;
    let ids = |page: &SnapshotPage| -> Vec<String> {
        let ids = page.snapshots.iter();
        ids.map(|snapshot| snapshot.id.to_string()).collect()
    };
    let first = twin.page(None, None).await;
    assert_eq!(ids(&first), ["snap-0"]);
    let second = twin.page(None, first.next).await;
    assert_eq!(ids(&second), ["snap-2", "snap-3"]);
    assert_eq!(second.next, None);
    assert_eq!(ids(&twin.page(Some(&other), None).await), ["snap-3"]);
    let gone = Some("gone".to_owned());
    let refused = twin
        .backend
        .list_snapshots(None, gone, 2, Secrets::default());
    assert_eq!(refused.await.unwrap_err().kind, Kind::BadToken);
}

#[tokio::test]
async fn a_backup_of_the_other_driver_is_found_and_deleted_as_a_snapshot_and_not_restored() {
    let twin = Twin::start().await;
    let id = twin.backup("b-1", "available");
    let seen = twin.snapshot(&id).await.unwrap();
    assert!(seen.ready && seen.mark == Mark::None, "{seen:?}");
    let refusal = ("POST /volume/v3/volumes", "404", "{}");
    twin.state().refusals = vec![refusal];
    let refused = twin.backend.restore(order("pvc-1"), id.clone()).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(refused.message.contains("is a backup"), "{refused}");
    // Whether it is gone only the backups say.
    twin.state().refusals = vec![("GET /volume/v3/backups", "500", "")];
    assert_eq!(twin.discard(&id).await.unwrap_err().kind, Kind::Unreachable);
    assert_eq!(twin.discard(&id).await, Ok(Progress::Begun));
    assert_eq!(twin.discard(&id).await, Ok(Progress::Done(())));
}

#[tokio::test]
async fn a_deletion_that_cinder_refuses_is_judged_by_the_state_of_the_snapshot() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    let id = twin.cut(cut("snap-1", &of, &[])).await.unwrap().id;
    let backup = twin.backup("b-1", "available");
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

/// A claim must not land later than the engine reckons: see `CLAIMS_SETTLE` there.
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
