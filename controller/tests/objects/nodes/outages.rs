//! Crashes of the controller, and a restart of the API server.

use super::{Front, LONG, ROOM, id_of, ready, refused, request};
use crate::server::Server;
use belay_controller::backend::nodes::Limits;
use belay_controller::kubernetes::{LocalVolume, Phase, VolumeStatus};
use std::time::Duration;

/// Kills the controller at each step of a creation.
pub(crate) async fn a_creation_after_a_crash_of_the_controller_is_completed(server: &Server) {
    let store = Front::start(server, LONG).await;
    store.disk("kill-a", ROOM).await;
    for step in 0..3 {
        let name = format!("kill-{step}");
        let front = Front::start(server, LONG).await;
        let _killed = front.create(request(&name, &["kill-a"]));
        let order = store.when(&name, |_| true).await;
        let state = match step {
            0 => order,
            _ => store.accept(&order).await,
        };
        if step == 2 {
            let making = VolumeStatus {
                phase: Phase::Making,
                bytes: None,
                ..ready(&state)
            };
            store.status(&state, &making).await;
        }
        drop(front);
        let front = Front::start(server, LONG).await;
        let created = front.create(request(&name, &["kill-a"]));
        let order = store.when(&name, |_| true).await;
        let accepted = match step {
            0 => store.accept(&order).await,
            _ => order,
        };
        store.status(&accepted, &ready(&accepted)).await;
        let volume = created.await.unwrap().unwrap();
        assert_eq!(volume.volume_id, id_of(&accepted));
    }
}

pub(crate) async fn orders_that_no_call_waits_for_are_deleted(server: &Server) {
    let store = Front::start(server, LONG).await;
    store.disk("left-a", ROOM).await;
    let front = Front::start(server, LONG).await;
    let names = ["left-1", "left-2", "left-3"];
    let _killed = names.map(|name| front.create(request(name, &["left-a"])));
    let mut orders = Vec::new();
    for name in names {
        orders.push(store.when(name, |_| true).await);
    }
    drop(front);
    drop(store);
    // The second was refused, and the third was accepted.
    let quick = Limits {
        idle: Duration::from_millis(300),
        ..LONG
    };
    let store = Front::start(server, LONG).await;
    store.status(&orders[1], &refused(&orders[1])).await;
    store.accept(&orders[2]).await;
    let sweeper = Front::start(server, quick).await;
    store.gone("left-1").await;
    store.gone("left-2").await;
    sweeper.room_becomes("left-a", 0).await;
    let kept = store.client.get::<LocalVolume>("left-3").await.unwrap();
    assert_eq!(id_of(&kept.unwrap()), id_of(&orders[2]));
}

pub(crate) async fn a_creation_survives_a_restart_of_the_api_server(server: &mut Server) {
    let front = Front::start(server, LONG).await;
    front.disk("boot-a", ROOM).await;
    let created = front.create(request("boot-1", &["boot-a"]));
    let accepted = front.accepted("boot-1").await;
    server.restart();
    front.status(&accepted, &ready(&accepted)).await;
    let volume = created.await.unwrap().unwrap();
    assert_eq!(volume.volume_id, id_of(&accepted));
    let deleted = front.delete(&volume.volume_id);
    front.removed("boot-1").await;
    deleted.await.unwrap().unwrap();
}
