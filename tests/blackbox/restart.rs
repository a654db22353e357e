//! An agent that is killed and restarted needs nothing that was only in its memory.

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    NodeCalls, Process, Rig, access, least_bytes, refused, refused_with, until, with_mode,
};

#[test]
#[ignore = "needs root: make test"]
fn an_agent_goes_on_where_a_killed_one_was() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs", "block"] {
        let volume = rig.volume(least_bytes(kind));
        let (first, second) = (volume.target("first"), volume.target("second"));
        node.stage(volume.stage(access(kind))).expect("stage");
        rig.restart();
        node.stage(volume.stage(access(kind))).expect("stage again");
        rig.restart();
        node.publish(volume.publish(&first, access(kind)))
            .expect("publish");
        leave_words(kind, &first);
        rig.restart();
        node.stage(volume.stage(access(kind)))
            .expect("stage the published volume");
        node.publish(volume.publish(&first, access(kind)))
            .expect("publish again");
        node.stats(volume.stats(&first)).expect("stats");
        expect_words(kind, &first);
        rig.restart();
        let request = volume.publish_read_only(&first, access(kind));
        refused(node.publish(request), Code::AlreadyExists);
        node.publish(volume.publish(&second, access(kind)))
            .expect("publish elsewhere");
        expect_words(kind, &second);
        rig.restart();
        refused(node.unstage(volume.unstage()), Code::FailedPrecondition);
        node.unpublish(volume.unpublish(&first)).expect("unpublish");
        rig.restart();
        node.unpublish(volume.unpublish(&first))
            .expect("unpublish again");
        node.unpublish(volume.unpublish(&second))
            .expect("unpublish");
        rig.restart();
        node.unstage(volume.unstage()).expect("unstage");
        rig.test_dir().expect_nothing_left();
        rig.restart();
        node.unstage(volume.unstage()).expect("unstage again");
        node.stage(volume.stage(access(kind))).expect("stage again");
        node.publish(volume.publish(&first, access(kind)))
            .expect("publish again");
        expect_words(kind, &first);
        volume.down(&node, &[&first]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_second_target_is_still_refused_by_an_agent_that_never_saw_the_first() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "btrfs", "block"] {
        let volume = rig.volume(least_bytes(kind));
        let (first, second) = (volume.target("first"), volume.target("second"));
        let sole = with_mode(access(kind), Mode::SingleNodeSingleWriter);
        node.stage(volume.stage(sole.clone())).expect("stage");
        node.publish(volume.publish(&first, sole.clone()))
            .expect("publish");
        rig.restart();
        let path = first.to_str().expect("UTF-8");
        let answer = node.publish(volume.publish(&second, sole.clone()));
        refused_with(answer, Code::FailedPrecondition, &[path]);
        assert!(!second.exists(), "the refused target was left");
        node.publish(volume.publish(&first, sole.clone()))
            .expect("the same again");
        node.unpublish(volume.unpublish(&first)).expect("unpublish");
        node.publish(volume.publish(&second, sole))
            .expect("now it is free");
        volume.down(&node, &[&second]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_device_shows_the_same_bytes_while_its_agent_is_away() {
    let mut rig = Rig::new();
    let node = rig.node();
    let (volume, other) = (
        rig.volume(least_bytes("block")),
        rig.volume(least_bytes("block")),
    );
    let target = volume.target("a");
    node.stage(volume.stage(access("block"))).expect("stage");
    node.publish(volume.publish(&target, access("block")))
        .expect("publish");
    leave_words("block", &target);
    rig.kill();
    expect_words("block", &target);
    rig.start();
    // If the device had been released, the next volume would get its number.
    node.stage(other.stage(access("block")))
        .expect("stage another");
    expect_words("block", &target);
    assert_eq!(
        rig.test_dir().loops().len(),
        2,
        "each volume has its device"
    );
    other.down(&node, &[]);
    volume.down(&node, &[&target]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_second_agent_serves_a_directory_only_once_the_first_has_ended() {
    let mut rig = Rig::new();
    let (volume, other) = (
        rig.volume(least_bytes("block")),
        rig.volume(least_bytes("block")),
    );
    let first = rig.node();
    first.stage(volume.stage(access("block"))).expect("stage");
    let socket = rig.test_dir().path().join("second.sock");
    let volumes = rig.volumes().to_str().expect("UTF-8").to_owned();
    let flags = ["--node-id", "node-1", "--loop-dir", &volumes];
    let _second = Process::start(rig.test_dir(), "belay-node", &socket, &flags);
    let second = NodeCalls::new(socket);
    let words = ["--loop-dir", &volumes, "another node agent"];
    for answer in [
        second.stage(other.stage(access("block"))).map(drop),
        second.unstage(volume.unstage()).map(drop),
    ] {
        refused_with(answer, Code::Unavailable, &words);
    }
    let target = volume.target("a");
    first
        .publish(volume.publish(&target, access("block")))
        .expect("publish");
    leave_words("block", &target);
    rig.kill();
    until("the second agent serves the directory", || {
        second.stage(other.stage(access("block"))).is_ok()
    });
    expect_words("block", &target);
    volume.down(&second, &[&target]);
    other.down(&second, &[]);
}
