//! Tests responses of servers other than Cinder and Nova, such as a load balancer while a service
//! restarts, and invalid IDs.

use super::*;
use crate::backend::Snapshots as _;
use belay_server::request::SnapshotId;
use snapshots::{BACKUP, cut};

/// Responses of a proxy, and of Cinder's router to an unknown path.
const FOREIGN: [(&str, &str); 6] = [
    ("404", "<html>\n<h1>404 Not Found</h1>\nnginx</html>"),
    ("404", ""),
    (
        "404",
        r#"{"message": "The resource could not be found.", "code": "404 Not Found"}"#,
    ),
    // Cinder's response if the requested API version lacks the method.
    (
        "404",
        r#"{"itemNotFound": {"code": 404, "message": "The resource could not be found."}}"#,
    ),
    ("400", "<html>400 Bad Request</html>"),
    ("403", "<html>blocked</html>"),
];

impl Twin {
    /// Makes the twin return this response to the next three calls.
    fn answers(&self, part: &'static str, (status, text): (&'static str, &'static str)) {
        self.state().refusals = vec![(part, status, text); 3];
    }

    async fn detach(&self, id: &VolumeId, node: &str) -> Result<Progress<()>, Failure> {
        let node = NodeId::new(node).unwrap();
        let detached = self.backend.detach(id.clone(), node, Secrets::default());
        detached.await
    }
}

/// Checks that the result is a failure that does not mean that the object is missing, and that the
/// failure names the host if another server responded.
fn assert_fault<T: std::fmt::Debug>(answered: Result<T, Failure>, case: &str) {
    let failure = answered.unwrap_err();
    if case.contains("itemNotFound") {
        assert_eq!(failure.kind, Kind::System, "{case}: {failure}");
        return;
    }
    assert_eq!(failure.kind, Kind::Unreachable, "{case}: {failure}");
    for part in ["127.0.0.1:", "a proxy on the way has answered"] {
        assert!(failure.message.contains(part), "{case}: {part}: {failure}");
    }
}

#[tokio::test]
async fn what_a_proxy_answers_is_never_that_a_volume_or_snapshot_is_missing() {
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    let snapshot = twin.backend.cut(cut("snap-1", &id, &[])).await.unwrap().id;
    let backup = SnapshotId::new(BACKUP).unwrap();
    twin.backup(BACKUP, "available");
    twin.backend.attach(to(&id, S1)).await.unwrap();
    let discard = |id: &SnapshotId| twin.backend.discard(id.clone(), Secrets::default());
    for foreign in FOREIGN {
        let case = format!("{foreign:?}");
        twin.answers("/volume/v3/volumes/", foreign);
        assert_fault(twin.get(&id).await, &case);
        assert_fault(twin.delete(&id).await, &case);
        assert_fault(twin.detach(&id, S1).await, &case);
        twin.answers("DELETE /volume/v3/volumes/", foreign);
        assert_fault(twin.delete(&id).await, &case);
        twin.answers("DELETE /compute", foreign);
        assert_fault(twin.detach(&id, S1).await, &case);
        twin.answers("/volume/v3/snapshots/", foreign);
        assert_fault(discard(&snapshot).await, &case);
        let seen = twin.backend.snapshot(snapshot.clone(), Secrets::default());
        assert_fault(seen.await, &case);
        twin.answers("/volume/v3/backups/", foreign);
        assert_fault(discard(&backup).await, &case);
    }
    twin.state().refusals.clear();
    let seen = twin.get(&id).await.unwrap().unwrap();
    assert_eq!(seen.nodes, [NodeId::new(S1).unwrap()]);
    let state = twin.state();
    assert_eq!((state.snapshots.len(), state.backups.len()), (1, 1));
}

#[tokio::test]
async fn a_login_that_finds_no_keystone_leaves_no_volume_missing() {
    for (status, text) in [
        ("404", "<html>404</html>"),
        (
            "404",
            r#"{"error": {"code": 404, "message": "no such path", "title": "Not Found"}}"#,
        ),
    ] {
        let twin = Twin::start().await;
        let id = VolumeId::new(nth(0)).unwrap();
        twin.state().refusals = vec![("/auth/tokens", status, text); 3];
        let failure = twin.delete(&id).await.unwrap_err();
        assert_ne!(failure.kind, Kind::NotFound, "{failure}");
        assert!(twin.get(&id).await.is_err());
    }
}

#[tokio::test]
async fn a_backup_that_cinder_does_not_show_is_not_missing_and_a_snapshot_is_none() {
    let twin = Twin::start().await;
    let of = twin.claimed("pvc-1").await;
    let none = Secrets::default;
    let forbidden = r#"{"forbidden": {"code": 403, "message": "Policy doesn't allow it."}}"#;
    let snapshot = twin.backend.cut(cut("snap-1", &of, &[])).await.unwrap().id;
    let backup = SnapshotId::new(BACKUP).unwrap();
    twin.answers("/volume/v3/backups/", ("403", forbidden));
    let restored = twin.backend.restore(order("pvc-2"), backup.clone()).await;
    for refused in [
        twin.backend.discard(backup.clone(), none()).await.map(drop),
        twin.backend.snapshot(backup, none()).await.map(drop),
        restored.map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, Kind::Denied, "{refused}");
        assert_eq!(refused.certainty, Certainty::NothingHappened);
        for part in ["permit backup:get", "403", "Policy doesn't allow it."] {
            assert!(refused.message.contains(part), "{part}: {refused}");
        }
    }
    twin.answers("/volume/v3/backups/", ("403", forbidden));
    for progress in [Progress::Begun, Progress::Done(())] {
        let deleted = twin.backend.discard(snapshot.clone(), none()).await;
        assert_eq!(deleted, Ok(progress));
        let seen = twin.backend.snapshot(snapshot.clone(), none()).await;
        assert_eq!(seen, Ok(None));
    }
}

#[tokio::test]
async fn an_id_that_is_no_uuid_is_missing_without_a_request_and_another_spelling_is_refused() {
    let twin = Twin::start().await;
    let id = twin.claimed("pvc-1").await;
    twin.backend.attach(to(&id, S1)).await.unwrap();
    twin.state().seen.clear();
    for none in ["none", "../../snapshots", &id.as_str().replace('-', "")] {
        let (none, snapshot) = (VolumeId::new(none).unwrap(), SnapshotId::new(none).unwrap());
        assert_eq!(twin.delete(&none).await, Ok(Progress::Done(())));
        assert_eq!(twin.get(&none).await, Ok(None));
        assert_eq!(twin.detach(&none, S1).await, Ok(Progress::Done(())));
        let refused = twin.backend.attach(to(&none, S1)).await.unwrap_err();
        assert_eq!(refused.kind, Kind::NotFound, "{refused}");
        let discarded = twin.backend.discard(snapshot, Secrets::default());
        assert_eq!(discarded.await, Ok(Progress::Done(())));
    }
    let refused = twin.backend.attach(to(&id, "node-1")).await.unwrap_err();
    assert_eq!(refused.kind, Kind::NotFound, "{refused}");
    assert!(refused.message.starts_with("node node-1: "), "{refused}");

    let (upper, server) = (
        id.as_str().replace("8000", "8ABC"),
        S1.replace("8000", "8ABC"),
    );
    let (upper, snapshot) = (
        VolumeId::new(&*upper).unwrap(),
        SnapshotId::new(&*upper).unwrap(),
    );
    for refused in [
        twin.get(&upper).await.map(drop),
        twin.delete(&upper).await.map(drop),
        twin.detach(&upper, S1).await.map(drop),
        twin.detach(&id, &server).await.map(drop),
        twin.backend.attach(to(&id, &server)).await.map(drop),
        twin.backend
            .discard(snapshot, Secrets::default())
            .await
            .map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid, "{refused}");
        assert!(refused.message.contains("lower case"), "{refused}");
    }
    assert!(twin.state().seen.is_empty(), "{:?}", twin.state().seen);
}
