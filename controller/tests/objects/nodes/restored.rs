//! Requests that were withdrawn, or are in a restored backup of etcd, with a real store.

use super::adoption::{has_orphans, is_ready, made};
use super::permission::{delete_persistent, persistent};
use super::{Front, LONG, id_of, refusal, removal_of, request};
use crate::server::Server;
use crate::store::{Node, is_served};
use belay_controller::backend::nodes::Limits;
use belay_controller::kubernetes::{LocalDisk, LocalVolume, Object, Phase};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;
use tokio::task::JoinHandle;
use tonic::{Code, Status};

const DATA: &[u8] = b"data";
/// The number of volumes that are created, and of volumes that are deleted, after the backup.
const COUNT: usize = 20;

/// The codes of failed calls that a sidecar repeats.
const REPEATED: [Code; 2] = [Code::Unavailable, Code::ResourceExhausted];

const QUICK: Limits = Limits {
    check: Duration::from_millis(300),
    adopt: Duration::from_millis(300),
    removal: Duration::from_millis(300),
    ..LONG
};

/// Requests removals while the store does not run. The claims are then kept after all: the
/// PersistentVolumes get the policy `Retain`, so no call is repeated.
pub(crate) async fn a_volume_that_is_kept_after_all_outlives_the_outage_of_its_node(
    server: &Server,
) {
    const NAMES: [&str; 3] = ["off-1", "off-2", "off-3"];
    let mut node = Node::new(server, "off");
    node.start();
    let front = Front::start(server, QUICK).await;
    node.disk_shows("default", is_served).await;
    let mut ids = Vec::new();
    for name in NAMES {
        let volume = made(&front, request(name, &["off"])).await;
        persistent(server, name, &volume.volume_id, "off");
        node.write(&volume.volume_id, DATA);
        ids.push(volume.volume_id);
    }
    node.kill();
    let removal = async |name| removal_of(&front.when(name, |_| true).await);
    // The controller does not know yet that the store does not run.
    let (code, why) = refusal(front.delete(&ids[0]).await);
    assert_eq!(code, Code::Unavailable, "{why}");
    assert_eq!(removal("off-1").await, None);
    // The controller exits during the call, so its attempt remains.
    let killed = Front::start(server, LONG).await;
    let _killed = killed.delete(&ids[1]);
    let attempt = front.when("off-2", |it| removal_of(it).is_some()).await;
    drop(killed);
    let silent = Limits {
        silent: Duration::from_millis(1),
        ..LONG
    };
    let silent = Front::start(server, silent).await;
    silent.room_becomes("off", 0).await;
    let (code, why) = refusal(silent.delete(&ids[2]).await);
    assert_eq!(code, Code::Unavailable, "{why}");
    assert_eq!(removal("off-3").await, None);

    node.start();
    let attempt = removal_of(&attempt).unwrap();
    node.refuses_removal("off-2", attempt).await;
    // The store has seen all objects once it creates another volume.
    let other = made(&front, request("off-4", &["off"])).await;
    for (name, id) in NAMES.iter().zip(&ids) {
        front.when(name, is_ready).await;
        assert_eq!(node.read(id, DATA.len()), DATA, "{name}");
    }
    for name in NAMES {
        delete_persistent(server, name);
    }
    ids.push(other.volume_id);
    for id in ids {
        front.delete(&id).await.unwrap().unwrap();
        assert!(!node.has_file(&id), "{id}");
    }
}

/// Repeats a call until it succeeds. The API server was restarted before.
async fn repeated<T>(call: impl Fn() -> JoinHandle<Result<T, Status>>) -> T {
    loop {
        match call().await.unwrap() {
            Ok(answer) => return answer,
            Err(status) => assert!(REPEATED.contains(&status.code()), "{status}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Creates volumes. Returns their IDs.
async fn all_made(front: &Front, names: &[String]) -> Vec<String> {
    let mut ids = Vec::new();
    for name in names {
        let volume = repeated(|| front.create(request(name, &["restored"]))).await;
        ids.push(volume.volume_id);
    }
    ids
}

fn attempt(server: &Server, number: &Value) {
    let patch = json!({"spec": {"remove": number}}).to_string();
    let words = ["patch", "localvolume", "stays", "--type=merge", "--patch"];
    server.kubectl(&[words.as_slice(), &[&patch]].concat());
}

fn listed_ids(disk: &Object<LocalDisk>) -> BTreeSet<String> {
    let unlisted = super::disk_status(disk).unlisted.unwrap_or_default();
    unlisted.first.into_iter().map(|file| file.id).collect()
}

/// The backup has the objects of volumes that were deleted later, an attempt to remove a volume
/// that was withdrawn later, and no objects of volumes that were created later. All programs of
/// Belay run while it is restored.
pub(crate) async fn a_restored_etcd_creates_and_deletes_no_file(server: &Server) {
    let mut node = Node::new(server, "restored");
    node.start();
    let front = Front::start(server, QUICK).await;
    node.disk_shows("default", is_served).await;
    let stays = made(&front, request("stays", &["restored"])).await;
    node.write(&stays.volume_id, DATA);
    let named = |kind: &str| {
        (0..COUNT)
            .map(|number| format!("{kind}-{number}"))
            .collect()
    };
    let [old, new]: [Vec<String>; 2] = ["old", "new"].map(named);
    let deleted = all_made(&front, &old).await;
    node.kill();
    attempt(server, &7.into());
    server.back_up();
    attempt(server, &Value::Null);
    node.start();
    let created = all_made(&front, &new).await;
    for id in &created {
        node.write(id, DATA);
    }
    for id in &deleted {
        repeated(|| front.delete(id)).await;
    }

    server.restore();
    let mut kept: BTreeSet<_> = created.iter().cloned().collect();
    for is_new_process in [false, true] {
        if is_new_process {
            node.kill();
            node.start();
            // The store has seen all objects once it creates another volume.
            kept.extend(all_made(&front, &["later".to_owned()]).await);
        }
        for name in &old {
            node.is_in(name, Phase::Lost).await;
        }
        node.refuses_removal("stays", 7).await;
        node.disk_shows("default", has_orphans(COUNT)).await;
        let files = fs::read_dir(node.file(&stays.volume_id).parent().unwrap()).unwrap();
        let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let all = kept.iter().chain([&stays.volume_id]).cloned().collect();
        assert_eq!(files.collect::<BTreeSet<_>>(), all);
    }
    let listed = listed_ids(&node.disk_named("default").await);
    assert!(!listed.is_empty() && listed.is_subset(&kept), "{listed:?}");
    for id in created.iter().chain([&stays.volume_id]) {
        assert_eq!(node.read(id, DATA.len()), DATA, "{id}");
    }
    // A claim whose volume is not in the backup gets another volume, and the file is kept.
    let call = || front.create(request("new-1", &["restored"]));
    assert_ne!(repeated(call).await.volume_id, created[1]);
    assert_eq!(node.read(&created[1], DATA.len()), DATA);
    // A file becomes a volume again, and a volume that is lost can be deleted.
    persistent(server, "new-0", &created[0], "restored");
    let adopted = front.when("new-0", is_ready).await;
    assert_eq!(id_of(&adopted), created[0]);
    repeated(|| front.delete(&deleted[0])).await;
    let lost = front.client.get::<LocalVolume>("old-0").await.unwrap();
    assert!(lost.is_none());
    delete_persistent(server, "new-0");
}
