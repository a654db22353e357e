//! A raw volume whose device was detached by force, and whose number another volume has got: its
//! bind mounts show the other volume, and the mount itself says that they are not.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{NodeCalls, Process, Rig, Volume, access, least_bytes, refused_with, run, until};

/// Other processes take numbers too.
const ATTEMPTS_MAX: usize = 50;

/// The number of the loop device that a path shows.
fn shown(path: &Path) -> u64 {
    let rdev = fs::metadata(path).expect("stat").rdev();
    u64::from(rustix::fs::minor(rdev))
}

fn detach(number: u64) {
    run("losetup", &["--detach", &format!("/dev/loop{number}")]);
}

fn up(node: &NodeCalls, volume: &Volume, kind: &str) {
    node.stage(volume.stage(access(kind))).expect("stage");
    let publish = volume.publish(&volume.target("a"), access(kind));
    node.publish(publish).expect("publish");
}

/// The loop device that has the volume's file.
fn bound(rig: &Rig, volume: &Volume) -> Option<u64> {
    let loops = rig.test_dir().loops().into_iter();
    let mut found = loops.filter(|device| device.file == volume.file);
    found.next().map(|device| u64::from(device.number))
}

/// A published raw volume that lost its device, and a published one that has its number.
fn exchanged(rig: &Rig, kind: &str) -> (Volume, Volume) {
    let node = rig.node();
    for _ in 0..ATTEMPTS_MAX {
        let (lost, got) = (
            rig.volume(least_bytes("block")),
            rig.volume(least_bytes(kind)),
        );
        up(&node, &lost, "block");
        let number = shown(&lost.target("a"));
        detach(number);
        up(&node, &got, kind);
        if bound(rig, &got) == Some(number) {
            return (lost, got);
        }
        got.down(&node, &[&got.target("a")]);
        lost.down(&node, &[&lost.target("a")]);
    }
    panic!("other processes took the number {ATTEMPTS_MAX} times");
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_that_lost_its_number_is_taken_down_and_the_one_that_got_it_is_kept() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["block", "ext4"] {
        for is_restarted in [false, true] {
            let (lost, got) = exchanged(&rig, kind);
            let [lost_target, target] = [&lost, &got].map(|volume| volume.target("a"));
            leave_words(kind, &target);
            if is_restarted {
                rig.restart();
            }
            let publish = lost.publish(&lost.target("b"), access("block"));
            refused_with(
                node.publish(publish),
                Code::FailedPrecondition,
                &["detached"],
            );
            let stats = node.stats(lost.stats(&lost_target));
            refused_with(stats, Code::NotFound, &[&lost.id]);
            node.stats(got.stats(&target)).expect("stats");
            let unstage = node.unstage(got.unstage());
            refused_with(unstage, Code::FailedPrecondition, &["still published"]);
            lost.down(&node, &[&lost_target]);
            expect_words(kind, &target);
            node.stage(lost.stage(access("block"))).expect("stage");
            lost.down(&node, &[]);
            got.down(&node, &[&target]);
            until("nothing is bound", || rig.test_dir().loops().is_empty());
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn the_volume_that_got_a_number_is_taken_down_while_the_one_that_lost_it_is_published() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["block", "ext4"] {
        let (lost, got) = exchanged(&rig, kind);
        rig.restart();
        got.down(&node, &[&got.target("a")]);
        until("nothing is bound", || rig.test_dir().loops().is_empty());
        lost.down(&node, &[&lost.target("a")]);
    }
}

/// An agent of the same driver in another mount namespace, with a volume of the same id: the
/// device has the name that the first agent would have given it.
#[test]
#[ignore = "needs root: make test"]
fn a_device_that_an_agent_in_another_namespace_got_is_not_released() {
    let mut rig = Rig::new();
    let volumes = rig.test_dir().directory("other-volumes");
    let socket = rig.test_dir().path().join("other.sock");
    let flags = [
        "--node-id",
        "node-2",
        "--loop-dir",
        volumes.to_str().expect("UTF-8"),
    ];
    let private = ["unshare", "--mount", "--propagation", "private"];
    let other = Process::start_by(&private, rig.test_dir(), "belay-node", &socket, &flags);
    let (node, other_node) = (rig.node(), NodeCalls::new(socket));
    for is_restarted in [false, true] {
        let mut is_tested = false;
        for _ in 0..ATTEMPTS_MAX {
            let volume = rig.volume(least_bytes("block"));
            let theirs = rig.test_dir().directory("other");
            let theirs = Volume::made(&theirs, &volumes, volume.id.clone());
            let file = fs::File::create(&theirs.file).expect("a file");
            file.set_len(least_bytes("block")).expect("ftruncate");
            drop(file);
            up(&node, &volume, "block");
            let number = shown(&volume.target("a"));
            detach(number);
            up(&other_node, &theirs, "block");
            is_tested = bound(&rig, &theirs) == Some(number);
            if is_restarted {
                rig.restart();
            }
            volume.down(&node, &[&volume.target("a")]);
            node.unstage(volume.unstage()).expect("unstage again");
            assert!(bound(&rig, &theirs).is_some(), "it was released");
            other_node
                .stats(theirs.stats(&theirs.target("a")))
                .expect("stats");
            theirs.down(&other_node, &[&theirs.target("a")]);
            if is_tested {
                break;
            }
        }
        assert!(
            is_tested,
            "other processes took the number {ATTEMPTS_MAX} times"
        );
    }
    other.terminate();
}

/// The file is called like no volume, so that only the mount leads to it.
#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_is_not_staged_twice_whatever_its_file_is_called() {
    let mut rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    up(&node, &volume, "block");
    let aside = volume.file.with_file_name("aside");
    fs::rename(&volume.file, &aside).expect("rename");
    run(
        "cp",
        &[
            "--sparse=always",
            aside.to_str().expect("UTF-8"),
            volume.file.to_str().expect("UTF-8"),
        ],
    );
    rig.restart();
    let mut second = volume.clone();
    second.staging = volume.staging.with_file_name("second");
    fs::create_dir_all(&second.staging).expect("mkdir");
    let stage = node.stage(second.stage(access("block")));
    refused_with(stage, Code::FailedPrecondition, &["replaced"]);
    volume.down(&node, &[&volume.target("a")]);
    until("nothing is bound", || rig.test_dir().loops().is_empty());
}

/// `ls /dev/belay` shows what is staged and no more.
#[test]
#[ignore = "needs root: make test"]
fn the_name_of_a_raw_device_is_there_as_long_as_it_is_staged() {
    let mut rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    let names = || {
        let names = fs::read_dir("/dev/belay/local.csi.belay.dev").expect("names");
        let names = names.map(|name| name.expect("a name").file_name().into_string());
        let names = names.map(|name| name.expect("UTF-8"));
        names.filter(|name| name.starts_with(&volume.id)).count()
    };
    up(&node, &volume, "block");
    assert_eq!(names(), 1);
    rig.restart();
    assert_eq!(names(), 1, "the start took it");
    volume.down(&node, &[&volume.target("a")]);
    assert_eq!(names(), 0);
    node.stage(volume.stage(access("block"))).expect("stage");
    rig.kill();
    rustix::mount::unmount(volume.device(), rustix::mount::UnmountFlags::empty()).expect("umount");
    detach(bound(&rig, &volume).expect("bound"));
    until("it is detached", || bound(&rig, &volume).is_none());
    assert_eq!(names(), 1);
    rig.start();
    assert_eq!(names(), 0, "it would lead to another volume");
}
