//! Expansion.

use super::{Front, LONG, ROOM, SMALL, known, ready, refusal, request};
use crate::server::Server;
use belay_controller::kubernetes::{LocalVolume, Object, VolumeStatus};
use belay_server::call::Kind;
use tonic::Code;

fn bytes_of(volume: &Object<LocalVolume>) -> u64 {
    volume.spec.known().unwrap().bytes
}

pub(crate) async fn a_growth_counts_while_it_runs_and_a_refused_one_no_longer(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("grow-a", ROOM).await;
    let volume = front.ready(request("grow-1", &["grow-a"])).await;
    for _ in 0..2 {
        let grown = front.grow(&volume.volume_id, 5 * SMALL);
        let asked = front.when("grow-1", |it| bytes_of(it) == 5 * SMALL).await;
        front.room_becomes("grow-a", ROOM - 5 * SMALL).await;
        let refused = VolumeStatus {
            bytes: Some(SMALL),
            failure: Some(known(Kind::Quota, "the disk is full")),
            ..ready(&asked)
        };
        front.status(&asked, &refused).await;
        let (code, why) = refusal(grown.await);
        assert_eq!(code, Code::OutOfRange, "{why}");
        assert!(why.contains("the disk is full"), "{why}");
        let kept = front.when("grow-1", |_| true).await;
        assert_eq!(bytes_of(&kept), SMALL);
        front.room_becomes("grow-a", ROOM - SMALL).await;
    }

    let grown = front.grow(&volume.volume_id, 2 * SMALL);
    let asked = front.when("grow-1", |it| bytes_of(it) == 2 * SMALL).await;
    front.status(&asked, &ready(&asked)).await;
    assert_eq!(
        grown.await.unwrap().unwrap(),
        i64::try_from(2 * SMALL).unwrap()
    );
    // A size that the volume has needs no order.
    let again = front.grow(&volume.volume_id, SMALL).await;
    assert_eq!(again.unwrap().unwrap(), i64::try_from(2 * SMALL).unwrap());
}

/// The growth of an earlier controller was refused, and its size was not restored.
pub(crate) async fn a_growth_after_a_crash_of_the_controller_begins_again(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("halt-a", ROOM).await;
    let volume = front.ready(request("halt-1", &["halt-a"])).await;
    let _killed = front.grow(&volume.volume_id, 5 * SMALL);
    let asked = front.when("halt-1", |it| bytes_of(it) == 5 * SMALL).await;
    drop(front);
    let front = Front::start(server, LONG).await;
    let refused = VolumeStatus {
        bytes: Some(SMALL),
        failure: Some(known(Kind::Quota, "the disk is full")),
        ..ready(&asked)
    };
    front.status(&asked, &refused).await;
    // The refusal counts for the cache of the new controller once its volume is small again.
    front.room_becomes("halt-a", ROOM - SMALL).await;
    let grown = front.grow(&volume.volume_id, 2 * SMALL);
    let asked = front.when("halt-1", |it| bytes_of(it) == 2 * SMALL).await;
    front.status(&asked, &ready(&asked)).await;
    assert_eq!(
        grown.await.unwrap().unwrap(),
        i64::try_from(2 * SMALL).unwrap()
    );
}
