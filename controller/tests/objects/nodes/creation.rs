//! Creation: orders that a store accepts, refuses or ignores.

use super::{
    Front, LONG, ROOM, SHORT, SMALL, id_of, place_of, ready, refusal, refused, request, topology,
};
use crate::server::Server;
use belay_bed::requests;
use belay_controller::backend::nodes::Limits;
use belay_controller::kubernetes::{Change, FINALIZER, LocalVolume, Phase, VolumeStatus, Written};
use belay_proto::csi::v1 as csi;
use csi::controller_server::Controller as _;
use std::time::Duration;
use tonic::{Code, Request};

pub(crate) async fn an_accepted_order_becomes_a_volume_and_counts(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("made-a", ROOM).await;
    let created = front.create(request("made-1", &["made-a"]));
    let accepted = front.accepted("made-1").await;
    let making = VolumeStatus {
        phase: Phase::Making,
        bytes: None,
        ..ready(&accepted)
    };
    let making = front.status(&accepted, &making).await;
    front.room_becomes("made-a", ROOM - SMALL).await;
    front.status(&making, &ready(&making)).await;
    let volume = created.await.unwrap().unwrap();
    assert_eq!(volume.volume_id, id_of(&accepted));
    assert_eq!(volume.capacity_bytes, i64::try_from(SMALL).unwrap());
    assert_eq!(volume.accessible_topology, [topology("made-a")]);
    assert!(volume.volume_context.is_empty());

    let again = front.create(request("made-1", &["made-a"])).await;
    assert_eq!(again.unwrap().unwrap(), volume);
    let request_of_list = Request::new(csi::ListVolumesRequest::default());
    let all = front.call(|service| async move { service.list_volumes(request_of_list).await });
    let all = all.await.unwrap().unwrap().into_inner().entries;
    let mut ids = all
        .iter()
        .map(|entry| &entry.volume.as_ref().unwrap().volume_id);
    assert!(ids.any(|id| *id == volume.volume_id));
    for (id, code) in [
        (&*volume.volume_id, Code::Ok),
        ("vol-00000000000000000000000000000000", Code::NotFound),
        ("vol-1", Code::NotFound),
    ] {
        let request = Request::new(requests::get(id));
        let got = front.call(|service| async move { service.controller_get_volume(request).await });
        let code_of = |status: tonic::Status| status.code();
        assert_eq!(
            got.await.unwrap().map_or_else(code_of, |_| Code::Ok),
            code,
            "{id}"
        );
    }

    let elsewhere = front.create(request("made-1", &["made-b"])).await;
    assert_eq!(refusal(elsewhere).0, Code::AlreadyExists);
}

pub(crate) async fn an_order_that_no_store_accepts_is_withdrawn(server: &Server) {
    let front = Front::start(server, SHORT).await;
    let disk = front.disk("dead-a", ROOM).await;
    let created = front.create(request("dead-1", &["dead-a"])).await;
    let (code, why) = refusal(created);
    assert_eq!(code, Code::ResourceExhausted, "{why}");
    assert!(why.contains("dead-a: its store has not accepted"), "{why}");
    front.gone("dead-1").await;
    // The disk gets no order until its store reports.
    assert_eq!(front.room(Some("dead-a")).await, 0);
    let again = front.create(request("dead-2", &["dead-a"])).await;
    assert_eq!(refusal(again).0, Code::ResourceExhausted);
    assert!(
        front
            .client
            .get::<LocalVolume>("dead-2")
            .await
            .unwrap()
            .is_none()
    );
    front.report(&disk, 2 * ROOM, None).await;
    front.room_becomes("dead-a", 2 * ROOM).await;

    // With immediate binding, the next place is tried.
    front.disk("dead-b", ROOM).await;
    let created = front.create(request("dead-3", &["dead-a", "dead-b"]));
    let order = front
        .when("dead-3", |order| place_of(order) == "dead-b")
        .await;
    let accepted = front.accept(&order).await;
    front.status(&accepted, &ready(&accepted)).await;
    created.await.unwrap().unwrap();
}

/// The withdrawal and the acceptance exclude each other.
pub(crate) async fn a_withdrawal_that_races_with_the_acceptance_waits_on(server: &Server) {
    let front = Front::start(server, SHORT).await;
    front.disk("race-a", ROOM).await;
    for number in 0..8 {
        let name = format!("race-{number}");
        let created = front.create(request(&name, &["race-a"]));
        let order = front.when(&name, |_| true).await;
        tokio::time::sleep(SHORT.accept + Duration::from_millis(number) - Duration::from_millis(4))
            .await;
        let accept = Change::<LocalVolume>::Finalizers(&[FINALIZER]);
        match front.client.patch(&order.metadata, accept).await.unwrap() {
            Written::Done(accepted) => {
                front.status(&accepted, &ready(&accepted)).await;
                let volume = created.await.unwrap().unwrap();
                assert_eq!(volume.volume_id, id_of(&accepted));
            }
            Written::Conflict | Written::Missing => {
                assert_eq!(refusal(created.await).0, Code::ResourceExhausted);
                assert!(
                    front
                        .client
                        .get::<LocalVolume>(&name)
                        .await
                        .unwrap()
                        .is_none()
                );
                let disk = front.client.get("race-a.example.default").await.unwrap();
                front
                    .report(&disk.unwrap(), ROOM * (number + 2), None)
                    .await;
                let room = || front.room(Some("race-a"));
                while room().await == 0 {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
}

pub(crate) async fn a_refused_order_is_deleted_before_the_answer(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("full-a", ROOM).await;
    let created = front.create(request("full-1", &["full-a"]));
    let order = front.when("full-1", |_| true).await;
    front.status(&order, &refused(&order)).await;
    let (code, why) = refusal(created.await);
    assert_eq!(code, Code::ResourceExhausted, "{why}");
    assert!(why.contains("the disk is full"), "{why}");
    assert!(
        front
            .client
            .get::<LocalVolume>("full-1")
            .await
            .unwrap()
            .is_none()
    );

    // A store that has accepted an order, and cannot carry it out.
    let created = front.create(request("full-2", &["full-a"]));
    let accepted = front.accepted("full-2").await;
    let failed = front.status(&accepted, &refused(&accepted)).await;
    front.release(&failed).await;
    assert_eq!(refusal(created.await).0, Code::ResourceExhausted);
    assert!(
        front
            .client
            .get::<LocalVolume>("full-2")
            .await
            .unwrap()
            .is_none()
    );
}

pub(crate) async fn an_accepted_order_of_a_silent_store_is_unavailable(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("mute-a", ROOM).await;
    let created = front.create(request("mute-1", &["mute-a"]));
    front.accepted("mute-1").await;
    let silent = Limits {
        silent: Duration::from_millis(300),
        ..LONG
    };
    let impatient = Front::start(server, silent).await;
    impatient.room_becomes("mute-a", 0).await;
    let (code, why) = refusal(impatient.create(request("mute-1", &["mute-a"])).await);
    assert_eq!(code, Code::Unavailable, "{why}");
    assert!(why.contains("does not report"), "{why}");
    // A new order would not be accepted either.
    let other = impatient.create(request("mute-2", &["mute-a"])).await;
    assert_eq!(refusal(other).0, Code::ResourceExhausted);
    assert!(
        front
            .client
            .get::<LocalVolume>("mute-2")
            .await
            .unwrap()
            .is_none()
    );
    // The call of the first controller still waits.
    let accepted = front.when("mute-1", |_| true).await;
    front.status(&accepted, &ready(&accepted)).await;
    created.await.unwrap().unwrap();
}

pub(crate) async fn two_controllers_with_one_name_create_one_volume(server: &Server) {
    let fronts = [
        Front::start(server, LONG).await,
        Front::start(server, LONG).await,
    ];
    fronts[0].disk("twice-a", ROOM).await;
    fronts[1].room_becomes("twice-a", ROOM).await;
    let created = fronts
        .each_ref()
        .map(|front| front.create(request("twice-1", &["twice-a"])));
    let accepted = fronts[0].accepted("twice-1").await;
    fronts[0].status(&accepted, &ready(&accepted)).await;
    for created in created {
        let volume = created.await.unwrap().unwrap();
        assert_eq!(volume.volume_id, id_of(&accepted));
    }
}

pub(crate) async fn a_lost_volume_is_created_again_under_another_id(server: &Server) {
    let front = Front::start(server, LONG).await;
    front.disk("lost-a", ROOM).await;
    let first = front.ready(request("lost-1", &["lost-a"])).await;
    let object = front.when("lost-1", |_| true).await;
    let lost = VolumeStatus {
        phase: Phase::Lost,
        ..ready(&object)
    };
    front.status(&object, &lost).await;
    let created = front.create(request("lost-1", &["lost-a"]));
    let attempt = front
        .when("lost-1", |it| super::removal_of(it).is_some())
        .await;
    front.release(&attempt).await;
    let order = front
        .when("lost-1", |it| id_of(it) != first.volume_id)
        .await;
    let accepted = front.accept(&order).await;
    front.status(&accepted, &ready(&accepted)).await;
    assert_eq!(created.await.unwrap().unwrap().volume_id, id_of(&order));
}
