//! Watches: selection, lost connections, expired versions.

use crate::definitions::done;
use crate::server::Server;
use crate::volume;
use belay_controller::kubernetes::{
    Change, Client, Event, LocalVolume, Metadata, Object, Selector, Watch,
};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// An event without the objects' contents.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Listed(Vec<String>),
    Changed(String),
    Deleted(String),
}

/// Returns the next event. Failures are retried, as a store does.
async fn next(watch: &mut Watch<LocalVolume>) -> Seen {
    let name = |object: Object<LocalVolume>| object.metadata.name;
    let event = async {
        loop {
            match watch.next().await {
                Ok(event) => return event,
                Err(failure) => eprintln!("{failure}"),
            }
        }
    };
    match timeout(Duration::from_secs(60), event).await.unwrap() {
        Event::Listed(objects) => Seen::Listed(objects.into_iter().map(name).collect()),
        Event::Changed(object) => Seen::Changed(name(object)),
        Event::Deleted(object) => Seen::Deleted(name(object)),
    }
}

async fn create(client: &Arc<Client>, number: u32, node: &str) -> Metadata {
    let name = format!("pvc-{number}");
    done(
        client
            .create::<LocalVolume>(&name, &volume(number, node))
            .await,
    )
    .metadata
}

async fn rename_node(client: &Arc<Client>, of: &Metadata, node: &str) -> Metadata {
    let change = Change::<LocalVolume>::Spec(json!({"node": node}));
    done(client.patch(of, change).await).metadata
}

pub(crate) async fn a_watch_shows_only_the_objects_of_its_node(server: &Server) {
    let client = server.client();
    let one = create(&client, 1, "node1").await;
    let other = create(&client, 2, "node2").await;
    let mut watch = Watch::<LocalVolume>::new(Arc::clone(&client), Selector::node("node1"));
    assert_eq!(
        next(&mut watch).await,
        Seen::Listed(vec!["pvc-1".to_owned()])
    );
    let three = create(&client, 3, "node1").await;
    create(&client, 4, "node2").await;
    // A change of the node is a creation for one watch, and a deletion for the other.
    rename_node(&client, &other, "node1").await;
    rename_node(&client, &one, "node2").await;
    done(client.delete::<LocalVolume>(&three).await);
    for expected in [
        Seen::Changed("pvc-3".to_owned()),
        Seen::Changed("pvc-2".to_owned()),
        Seen::Deleted("pvc-1".to_owned()),
        Seen::Deleted("pvc-3".to_owned()),
    ] {
        assert_eq!(next(&mut watch).await, expected);
    }
    server.clear();
}

pub(crate) async fn after_a_cut_the_objects_are_listed_again(server: &Server) {
    // The watch has a separate client, so that changes do not use its connection.
    let mut watch = Watch::<LocalVolume>::new(server.client(), Selector::node("node1"));
    assert_eq!(next(&mut watch).await, Seen::Listed(Vec::new()));
    let client = server.client();
    let one = create(&client, 1, "node1").await;
    assert_eq!(next(&mut watch).await, Seen::Changed("pvc-1".to_owned()));
    let connections = server.connections();
    server.cut();
    let changer = server.client();
    create(&changer, 2, "node1").await;
    done(changer.delete::<LocalVolume>(&one).await);
    assert_eq!(
        next(&mut watch).await,
        Seen::Listed(vec!["pvc-2".to_owned()])
    );
    create(&changer, 3, "node1").await;
    assert_eq!(next(&mut watch).await, Seen::Changed("pvc-3".to_owned()));
    assert!(
        server.connections() > connections + 1,
        "the watch was not cut"
    );
    server.clear();
}

pub(crate) async fn an_expired_version_lists_again(server: &mut Server) {
    let client = server.client();
    let one = create(&client, 1, "node1").await;
    let mut watch = Watch::<LocalVolume>::new(server.client(), Selector::node("node1"));
    assert_eq!(
        next(&mut watch).await,
        Seen::Listed(vec!["pvc-1".to_owned()])
    );
    let two = create(&client, 2, "node1").await;
    assert_eq!(next(&mut watch).await, Seen::Changed("pvc-2".to_owned()));
    // The watch is cut and does not read, so it misses these.
    server.cut();
    let client = server.client();
    done(client.delete::<LocalVolume>(&one).await);
    create(&client, 3, "node1").await;
    rename_node(&client, &two, "node2").await;
    // A new server reads the changes before its start from etcd, which no longer has them.
    server.compact();
    server.restart();
    let seen = next(&mut watch).await;
    assert_eq!(seen, Seen::Listed(vec!["pvc-3".to_owned()]));
    create(&server.client(), 4, "node1").await;
    assert_eq!(next(&mut watch).await, Seen::Changed("pvc-4".to_owned()));
}
