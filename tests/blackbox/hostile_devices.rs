//! Loop devices that other programs tamper with, and files in the loop directory that are not
//! volumes.

use std::fs;
use std::thread;

use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::reused::{Other, exchanged};
use crate::rig::{Rig, TestDir, Volume, access, least_bytes, refused, run, until};

#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_never_shows_the_one_that_has_its_device_number_by_now() {
    let rig = Rig::new();
    let (node, other) = (rig.node(), Other::start(&rig));
    for kind in ["block", "ext4", "btrfs"] {
        let (first, got) = exchanged(&rig, &other, kind);
        let (target, elsewhere) = (first.target("a"), first.target("b"));
        let theirs = got.target("a");
        leave_words(kind, &other.seen(&theirs));
        for path in [&target, &elsewhere] {
            let answer = node.publish(first.publish(path, access("block")));
            refused(answer, Code::FailedPrecondition);
        }
        assert!(!elsewhere.exists(), "the refused target was left");
        for path in [&target, &first.device()] {
            refused(node.stats(first.stats(path)), Code::NotFound);
            let answer = node.expand(first.expand(path, access("block")));
            refused(answer, Code::NotFound);
        }
        expect_words(kind, &other.seen(&theirs));
        got.down(&other.calls, &[&theirs]);
        first.down(&node, &[&target]);
        rig.test_dir().expect_nothing_left();
        node.stage(first.stage(access("block"))).expect("stage");
        expect_words("block", &first.device());
        first.down(&node, &[]);
    }
    other.process.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_whose_device_was_taken_away_is_staged_again_with_its_own_bytes() {
    let rig = Rig::new();
    let (node, other) = (rig.node(), Other::start(&rig));
    let (first, got) = exchanged(&rig, &other, "block");
    let (target, elsewhere) = (first.target("a"), first.target("b"));
    let theirs = got.target("a");
    fs::write(other.seen(&theirs), "a secret of the other volume").expect("write");
    node.stage(first.stage(access("block")))
        .expect("stage again");
    expect_words("block", &first.device());
    node.publish(first.publish(&elsewhere, access("block")))
        .expect("publish elsewhere");
    expect_words("block", &elsewhere);
    got.down(&other.calls, &[&theirs]);
    first.down(&node, &[&target, &elsewhere]);
    other.process.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_whose_file_was_removed_still_gives_its_device_back() {
    expect_device_back(|volume, _| fs::remove_file(&volume.file).expect("unlink"));
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_whose_file_was_moved_away_still_gives_its_device_back() {
    expect_device_back(|volume, test_dir| {
        fs::rename(&volume.file, test_dir.path().join("aside")).expect("rename");
    });
}

/// Unstages a raw device whose file was lost, with the agent that staged it and with another agent.
#[track_caller]
fn expect_device_back(lose: fn(&Volume, &TestDir)) {
    let mut rig = Rig::new();
    let node = rig.node();
    for is_restarted in [false, true] {
        let volume = rig.volume(least_bytes("block"));
        node.stage(volume.stage(access("block"))).expect("stage");
        lose(&volume, rig.test_dir());
        if is_restarted {
            rig.restart();
        }
        let when = format!("agent restarted: {is_restarted}");
        let answer = node.unstage(volume.unstage());
        assert!(answer.is_ok(), "{when}: {answer:?}");
        until(&format!("the device is free; {when}"), || {
            rig.test_dir().loops().is_empty()
        });
        rig.test_dir().expect_nothing_left();
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_fifo_in_the_loop_directory_is_no_volume_and_blocks_no_call() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let fifos: Vec<Volume> = (0..8)
        .map(|_| {
            let fifo = rig.volume(0);
            fs::remove_file(&fifo.file).expect("unlink");
            run("mkfifo", &[fifo.file.to_str().expect("UTF-8")]);
            fifo
        })
        .collect();
    // Make as many concurrent calls as there could be threads.
    for is_stage in [true, false] {
        thread::scope(|scope| {
            for fifo in &fifos {
                let node = rig.node();
                scope.spawn(move || {
                    if is_stage {
                        let answer = node.stage(fifo.stage(access("ext4")));
                        refused(answer, Code::InvalidArgument);
                    } else {
                        // The result is the same as for a volume whose file was removed.
                        node.unstage(fifo.unstage()).expect("unstage");
                    }
                });
            }
        });
    }
    node.stage(volume.stage(access("ext4"))).expect("stage");
    volume.down(&node, &[]);
}
