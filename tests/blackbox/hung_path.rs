//! A filesystem whose server does not respond, mounted on a directory in published and staging
//! paths: only calls for these paths wait.

use std::path::Path;
use std::thread::{self, JoinHandle};

use tonic::{Code, Status};

use crate::rig::{Answer, Fuse, NodeCalls, Rig, TestDir, Volume, access, least_bytes, until};

fn stage(rig: &Rig) -> Volume {
    let volume = rig.volume(least_bytes("ext4"));
    let request = volume.stage(access("ext4"));
    rig.node().stage(request).expect("stage");
    volume
}

fn publish(node: &NodeCalls, volume: &Volume, target: &Path) {
    let request = volume.publish(target, access("ext4"));
    node.publish(request).expect("publish");
}

/// Starts a caller in a separate thread, which retries while a query of [`is_looking`] is in
/// progress.
fn caller<T>(act: impl Fn() -> Answer<T> + Send + 'static) -> JoinHandle<()> {
    let is_in_the_way = |reported: &Status| reported.code() == Code::Aborted;
    thread::spawn(move || while act().is_err_and(|reported| is_in_the_way(&reported)) {})
}

/// Waits until a publish of the volume runs on a thread.
fn is_looking(rig: &Rig, volume: &Volume) {
    until("the publish waits for the server", || {
        let query = volume.unpublish(&volume.target("none"));
        rig.node().unpublish(query).is_err_and(|reported| {
            assert_eq!(reported.code(), Code::Aborted, "{reported}");
            reported.message().contains("now in inspect")
        })
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_silent_server_above_a_path_blocks_only_calls_for_that_path() {
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    let pods = test_dir.directory("fuse/pods");
    let mut rig = Rig::with_volumes_in(test_dir, volumes);
    let (sound, read, published) = (stage(&rig), stage(&rig), stage(&rig));
    let node = rig.node();
    publish(&node, &sound, &sound.target("a"));
    publish(&node, &read, &pods.join("read"));
    // Later statistics are read without a thread.
    for _ in 0..2 {
        node.stats(read.stats(&pods.join("read"))).expect("stats");
    }
    let mut fuse = Fuse::mount(rig.test_dir(), "file");
    fuse.silence();
    let (calls, request) = (rig.node(), read.stats(&pods.join("read")));
    let mut hung = vec![caller(move || calls.stats(request.clone()))];
    let request = published.publish(&pods.join("published"), access("ext4"));
    let calls = rig.node();
    hung.push(caller(move || calls.publish(request.clone())));
    is_looking(&rig, &published);
    for _ in 0..3 {
        node.stats(sound.stats(&sound.target("a"))).expect("stats");
        publish(&node, &sound, &sound.target("b"));
        let request = sound.unpublish(&sound.target("b"));
        node.unpublish(request).expect("unpublish");
    }
    assert!(hung.iter().all(|call| !call.is_finished()));

    drop(fuse);
    for call in hung {
        call.join().expect("no panic");
    }
    node.stats(read.stats(&pods.join("read"))).expect("stats");
    publish(&node, &published, &pods.join("published"));
    sound.down(&node, &[&sound.target("a")]);
    read.down(&node, &[&pods.join("read")]);
    published.down(&node, &[&pods.join("published")]);
    rig.kill();
    rig.test_dir().expect_nothing_left();
}
