//! Deletion: attempts that a store executes, refuses or ignores.

use super::{Front, LONG, ROOM, id_of, known, ready, refusal, removal_of, request};
use crate::definitions::done;
use crate::server::Server;
use belay_controller::backend::nodes::Limits;
use belay_controller::kubernetes::{
    Change, LocalDisk, LocalVolume, Phase, Unlisted, UnlistedFile, VolumeStatus,
};
use belay_server::call::Kind;
use std::time::Duration;
use tonic::Code;

pub(crate) async fn a_claimed_removal_deletes_the_object_and_succeeds(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("gone-a", ROOM).await;
    let volume = front.ready(request("gone-1", &["gone-a"])).await;
    let deleted = front.delete(&volume.volume_id);
    front.removed("gone-1").await;
    deleted.await.unwrap().unwrap();
    assert!(
        front
            .client
            .get::<LocalVolume>("gone-1")
            .await
            .unwrap()
            .is_none()
    );
    front.delete(&volume.volume_id).await.unwrap().unwrap();
    front.room_becomes("gone-a", ROOM).await;
}

pub(crate) async fn a_refused_removal_is_cancelled_and_the_next_has_a_higher_number(
    server: &Server,
) {
    let front = Front::start(server, LONG).await;
    front.disk("used-a", ROOM).await;
    let volume = front.ready(request("used-1", &["used-a"])).await;
    let mut last = 0;
    for _ in 0..2 {
        let deleted = front.delete(&volume.volume_id);
        let attempt = front.when("used-1", |it| removal_of(it).is_some()).await;
        let number = removal_of(&attempt).unwrap();
        assert!(number > last, "{number} after {last}");
        last = number;
        let refused = VolumeStatus {
            refused_removal: Some(number),
            failure: Some(known(Kind::Precondition, "in use by a pod")),
            ..ready(&attempt)
        };
        front.status(&attempt, &refused).await;
        let (code, why) = refusal(deleted.await);
        assert_eq!(code, Code::FailedPrecondition, "{why}");
        assert!(why.contains("in use by a pod"), "{why}");
        let kept = front.when("used-1", |_| true).await;
        assert_eq!(removal_of(&kept), None);
    }
    let deleted = front.delete(&volume.volume_id);
    front.removed("used-1").await;
    deleted.await.unwrap().unwrap();
}

pub(crate) async fn an_attempt_without_an_answer_is_cancelled_unless_it_is_claimed(
    server: &Server,
) {
    let front = Front::start(server, LONG).await;
    front.disk("slow-a", ROOM).await;
    let volume = front.ready(request("slow-1", &["slow-a"])).await;
    let hasty = Limits {
        removal: Duration::from_millis(300),
        ..LONG
    };
    let hasty = Front::start(server, hasty).await;
    let (code, why) = refusal(hasty.delete(&volume.volume_id).await);
    assert_eq!(code, Code::Unavailable, "{why}");
    let kept = front.when("slow-1", |_| true).await;
    assert_eq!(removal_of(&kept), None);

    let deleted = hasty.delete(&volume.volume_id);
    let attempt = front.when("slow-1", |it| removal_of(it).is_some()).await;
    let claim = VolumeStatus {
        phase: Phase::Removing,
        ..ready(&attempt)
    };
    let claimed = front.status(&attempt, &claim).await;
    let (code, why) = refusal(deleted.await);
    assert_eq!(code, Code::Unavailable, "{why}");
    assert!(why.contains("being removed"), "{why}");
    let kept = front.when("slow-1", |_| true).await;
    assert_eq!(removal_of(&kept), removal_of(&attempt));

    // A later call waits for the claimed removal.
    let deleted = front.delete(&volume.volume_id);
    front.release(&claimed).await;
    deleted.await.unwrap().unwrap();
    front.gone("slow-1").await;
}

pub(crate) async fn a_silent_store_gets_no_removal(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("still-a", ROOM).await;
    let volume = front.ready(request("still-1", &["still-a"])).await;
    let silent = Limits {
        silent: Duration::from_millis(1),
        ..LONG
    };
    let impatient = Front::start(server, silent).await;
    impatient.room_becomes("still-a", 0).await;
    let before = front.when("still-1", |_| true).await;
    let (code, why) = refusal(impatient.delete(&volume.volume_id).await);
    assert_eq!(code, Code::Unavailable, "{why}");
    let after = front.when("still-1", |_| true).await;
    assert_eq!(after.metadata, before.metadata);
    let grown = impatient.grow(&volume.volume_id, 2 * super::SMALL).await;
    assert_eq!(refusal(grown).0, Code::Unavailable);
    let after = front.when("still-1", |_| true).await;
    assert_eq!(after.metadata, before.metadata);
}

pub(crate) async fn a_removal_after_a_crash_of_the_controller_is_completed(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("crash-a", ROOM).await;
    let volume = front.ready(request("crash-1", &["crash-a"])).await;
    let _killed = front.delete(&volume.volume_id);
    let attempt = front.when("crash-1", |it| removal_of(it).is_some()).await;
    drop(front);
    let front = Front::start(server, LONG).await;
    let deleted = front.delete(&volume.volume_id);
    // The store was restarted, and refuses the attempt that it finds.
    let refused = VolumeStatus {
        refused_removal: removal_of(&attempt),
        failure: Some(known(Kind::Busy, "found at the start")),
        ..ready(&attempt)
    };
    let refused = front.status(&attempt, &refused).await;
    let next = front
        .when("crash-1", |it| removal_of(it) > removal_of(&refused))
        .await;
    let claim = VolumeStatus {
        phase: Phase::Removing,
        ..ready(&next)
    };
    let claimed = front.status(&next, &claim).await;
    front.release(&claimed).await;
    deleted.await.unwrap().unwrap();
}

/// A file without an object is not absent.
pub(crate) async fn an_unlisted_file_is_unavailable_and_not_deleted(server: &Server) {
    let front = Front::start(server, LONG).await;
    let disk = front.disk("file-a", ROOM).await;
    let volume = front.ready(request("file-1", &["file-a"])).await;
    let object = front.when("file-1", |_| true).await;
    let id = id_of(&object).to_owned();
    let file = UnlistedFile {
        id: id.clone(),
        name: None,
        bytes: 1,
    };
    let mut status = super::disk_status(&disk);
    status.unlisted = Some(Unlisted {
        count: 1,
        first: vec![file],
    });
    status.promisable = Some(ROOM / 2);
    let change = Change::<LocalDisk>::Status(&status);
    done(front.client.patch(&disk.metadata, change).await);
    // The object is deleted by hand, and its store keeps the file.
    server.delete_object_only("localvolumes/file-1");
    let marked = front
        .when("file-1", |it| it.metadata.deletion_timestamp.is_some())
        .await;
    front.release(&marked).await;
    front.room_becomes("file-a", ROOM / 2).await;
    let (code, why) = refusal(front.delete(&volume.volume_id).await);
    assert_eq!(code, Code::Unavailable, "{why}");
    assert!(why.contains("has no object"), "{why}");
    let copy = super::copies::clone_of("file-2", "file-a", &id);
    assert_eq!(refusal(front.create(copy).await).0, Code::Internal);
}
