//! Tests changes that Nova or Cinder accepts but does not carry out, and volumes that Cinder does
//! not delete.

use super::*;
use crate::backend::DroppedChange;

/// The time at which the change ended, by Cinder's clock.
const ENDED: &str = "2026-11-28T03:00:30.000000";
const SOON: &str = "2026-11-28T03:00:28.000000";
const EARLIER: &str = "2026-11-28T02:59:29.000000";

const NO_ROOM: &str = "extend volume:Could not find any available weighted backend.";
const NOT_READY: &str = "update attachment:Driver is not initialized at present.";

fn server(id: &str) -> NodeId {
    NodeId::new(id).unwrap()
}

impl Twin {
    /// Creates a volume with this status, attached to these servers.
    async fn left(&self, status: &str, servers: &[&str]) -> VolumeId {
        let id = self.created("pvc-1").await;
        self.show(&id, status, servers);
        id
    }

    fn show(&self, id: &VolumeId, status: &str, servers: &[&str]) {
        let mut state = self.state();
        let volume = state.volumes.get_mut(id.as_str()).unwrap();
        volume["status"] = status.into();
        volume["updated_at"] = ENDED.into();
        let servers = servers.iter().map(|id| json!({ "server_id": id }));
        volume["attachments"] = servers.collect::<Vec<_>>().into();
    }

    async fn why(&self, id: &VolumeId, dropped: DroppedChange) -> Option<Failure> {
        let why = self
            .backend
            .why_dropped(id.clone(), dropped, Secrets::default());
        why.await.unwrap()
    }

    fn messages_read(&self) -> usize {
        let state = self.state();
        let reads = state.seen.iter().filter(|call| call.contains("/messages"));
        reads.count()
    }
}

#[track_caller]
fn assert_says(failure: &Failure, parts: &[&str]) {
    for part in parts {
        assert!(failure.message.contains(part), "{part}: {failure}");
    }
}

#[tokio::test]
async fn an_attachment_that_nova_has_dropped_says_so_and_how_the_volume_is() {
    let twin = Twin::start().await;
    let id = twin.left("available", &[]).await;
    let attach = || DroppedChange::Attach(server(S1));
    let why = twin.why(&id, attach()).await.unwrap();
    assert_eq!(
        (why.kind, why.certainty),
        (Kind::Busy, Certainty::MayBeRunning)
    );
    assert_says(
        &why,
        &[
            id.as_str(),
            &format!("Nova accepted the attachment to server {S1} and dropped it: "),
            "the volume is available, attached to no server",
            "Cinder has no message about it",
            "logs of nova-compute of that server and of cinder-volume",
            "repeat the call",
        ],
    );
    // Other servers share the volume.
    twin.show(&id, "in-use", &[S2, S3]);
    let why = twin.why(&id, attach()).await.unwrap();
    let others = format!("the volume is in-use, attached to server {S2}, {S3}");
    assert_says(&why, &[&others]);
}

#[tokio::test]
async fn a_message_of_cinder_counts_if_it_is_of_the_change_and_of_its_time() {
    let twin = Twin::start().await;
    let id = twin.left("available", &[]).await;
    let attach = || DroppedChange::Attach(server(S1));
    for (event, at, is_meant) in [
        ("VOLUME_VOLUME_004_002", SOON, true),
        ("VOLUME_VOLUME_002_001", ENDED, true),
        ("VOLUME_VOLUME_004_002", EARLIER, false),
        ("VOLUME_VOLUME_007_002", SOON, false),
        ("VOLUME_VOLUME_007_004", SOON, false),
        ("004", SOON, false),
    ] {
        twin.state().message = NOT_READY;
        twin.state().event = Some((event, at));
        let why = twin.why(&id, attach()).await.unwrap();
        let quoted = format!("Cinder's message of {at}: {NOT_READY:?}");
        assert_eq!(why.message.contains(&quoted), is_meant, "{why}");
        let has_none = why.message.contains("Cinder has no message about it");
        assert_eq!(has_none, !is_meant, "{why}");
    }
    // If the messages cannot be read, the error does not mention messages.
    twin.state().refusals = vec![("GET /volume/v3/messages", "403", "{}")];
    let why = twin.why(&id, attach()).await.unwrap();
    assert!(!why.message.contains("message"), "{why}");
    assert_says(&why, &["Nova accepted the attachment"]);
}

#[tokio::test]
async fn an_expansion_without_room_is_of_a_kind_that_says_so_and_changes_nothing() {
    let twin = Twin::start().await;
    let id = twin.left("in-use", &[S1]).await;
    let why = twin.why(&id, DroppedChange::Expand(5 * GIB)).await.unwrap();
    assert_eq!(
        (why.kind, why.certainty),
        (Kind::Busy, Certainty::MayBeRunning)
    );
    assert_says(
        &why,
        &[
            "the expansion to 5 GiB",
            "and has 2 GiB",
            "Cinder has no message",
        ],
    );
    for (at, kind, certainty) in [
        (SOON, Kind::System, Certainty::RolledBack),
        (EARLIER, Kind::Busy, Certainty::MayBeRunning),
    ] {
        twin.state().message = NO_ROOM;
        twin.state().event = Some(("VOLUME_VOLUME_007_003", at));
        let why = twin.why(&id, DroppedChange::Expand(5 * GIB)).await.unwrap();
        assert_eq!((why.kind, why.certainty), (kind, certainty), "{why}");
        assert_eq!(why.message.contains(NO_ROOM), kind == Kind::System, "{why}");
    }
}

#[tokio::test]
async fn a_detachment_and_a_deletion_name_what_keeps_them_and_read_no_messages() {
    let twin = Twin::start().await;
    let id = twin.left("in-use", &[S1]).await;
    let why = twin
        .why(&id, DroppedChange::Detach(server(S1)))
        .await
        .unwrap();
    assert_eq!(
        (why.kind, why.certainty),
        (Kind::Busy, Certainty::MayBeRunning)
    );
    assert_says(
        &why,
        &[
            "detachment from server 51000000",
            "guest",
            "is in-use, attached to server",
        ],
    );
    twin.show(&id, "available", &[]);
    let why = twin.why(&id, DroppedChange::Delete).await.unwrap();
    assert_says(
        &why,
        &["accepted the deletion", "copies", "the volume is available"],
    );
    assert_eq!(twin.messages_read(), 0);
}

#[tokio::test]
async fn nothing_is_said_of_a_volume_that_shows_the_change_now_or_another_one_or_is_gone() {
    let twin = Twin::start().await;
    let id = twin.left("in-use", &[S1]).await;
    let all = || {
        [
            DroppedChange::Attach(server(S2)),
            DroppedChange::Detach(server(S1)),
            DroppedChange::Expand(5 * GIB),
            DroppedChange::Delete,
        ]
    };
    assert_eq!(twin.why(&id, DroppedChange::Attach(server(S1))).await, None);
    assert_eq!(twin.why(&id, DroppedChange::Detach(server(S2))).await, None);
    assert_eq!(twin.why(&id, DroppedChange::Expand(2 * GIB)).await, None);
    for dropped in all() {
        assert!(twin.why(&id, dropped).await.is_some());
    }
    for status in ["reserved", "detaching", "deleting", "error"] {
        twin.show(&id, status, &[S1]);
        for dropped in all() {
            assert_eq!(twin.why(&id, dropped).await, None, "{status}");
        }
    }
    twin.state().volumes.clear();
    for dropped in all() {
        assert_eq!(twin.why(&id, dropped).await, None);
    }
}

#[tokio::test]
async fn a_volume_that_cinder_keeps_has_the_servers_or_the_snapshots_that_keep_it() {
    let twin = Twin::start().await;
    let id = twin.left("in-use", &[S1, S2]).await;
    let refused = twin.delete(&id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    let servers = format!("volume {id}: attached to node {S1}, {S2}; detach it there first: ");
    assert_says(&refused, &[&servers, "400", "Invalid volume"]);

    twin.show(&id, "available", &[]);
    let reason =
        r#"{"badRequest": {"code": 400, "message": "Invalid volume: must not have snapshots"}}"#;
    let refuse = || {
        let refusal = ("DELETE /volume/v3/volumes", "400", reason);
        twin.state().refusals = vec![refusal, refusal];
    };
    refuse();
    let refused = twin.delete(&id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert!(
        !refused.message.contains("such as"),
        "no snapshot: {refused}"
    );
    let snapshot = "77000000-0000-4000-8000-000000000001";
    let kept = json!({"id": snapshot, "volume_id": id.as_str(), "status": "available", "size": 2,
                      "created_at": SOON, "name": "snap-1"});
    twin.state().snapshots.insert(snapshot.to_owned(), kept);
    refuse();
    let refused = twin.delete(&id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    let snapshots = format!("volume {id}: has snapshots, such as {snapshot}; delete them first: ");
    assert_says(&refused, &[&snapshots, "must not have snapshots"]);
    // If the snapshots cannot be read, the error states Cinder's own reason.
    refuse();
    twin.state()
        .refusals
        .push(("GET /volume/v3/snapshots", "403", "{}"));
    let refused = twin.delete(&id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition);
    assert_says(&refused, &["must not have snapshots"]);
}
