//! Concurrent calls: equal calls share one job, other calls for the same volume must wait, and
//! volumes do not affect each other.

use std::fs::{self, File};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{Rig, Volume, access, least_bytes, pause, probe, refused, until};

/// Starts a volume's blank stage on another thread, and stops its mkfs while `act` runs, which may
/// repeat the call. Then all calls must succeed.
fn while_mkfs_stands_still(rig: &Rig, act: impl Fn(&Volume, &dyn Fn())) {
    loop {
        let volume = rig.volume(least_bytes("ext4"));
        let (tell, answers) = mpsc::channel();
        let ask = || {
            let (node, request) = (rig.node(), volume.stage(access("ext4")));
            let tell = tell.clone();
            thread::spawn(move || tell.send(node.stage(request)));
        };
        ask();
        let mut early = None;
        let mut mkfs: Option<Pid> = None;
        until("mkfs runs", || {
            early = answers.try_recv().ok();
            mkfs = rig.agent().children().first().copied();
            early.is_some() || mkfs.is_some()
        });
        let stopped = mkfs.filter(|pid| kill_process(*pid, Signal::STOP).is_ok());
        // mkfs may have exited before it could be stopped: then retry with another volume.
        let stopped = stopped.filter(|pid| rig.agent().children().contains(pid));
        if let Some(pid) = stopped {
            act(&volume, &ask);
            kill_process(pid, Signal::CONT).expect("kill");
        }
        drop(tell);
        for answer in early.into_iter().chain(answers) {
            answer.expect("stage");
        }
        volume.down(&rig.node(), &[]);
        if stopped.is_some() {
            return;
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn other_calls_about_a_volume_are_aborted_while_it_is_formatted_and_its_neighbours_are_not() {
    let rig = Rig::new();
    let node = rig.node();
    let neighbour = rig.volume(least_bytes("block"));
    while_mkfs_stands_still(&rig, |volume, _| {
        refused(node.stage(volume.stage(access("xfs"))), Code::Aborted);
        refused(node.stage(volume.stage(access("block"))), Code::Aborted);
        refused(node.unstage(volume.unstage()), Code::Aborted);
        let publish = volume.publish(&volume.target("a"), access("ext4"));
        refused(node.publish(publish), Code::Aborted);
        node.stage(neighbour.stage(access("block")))
            .expect("stage a neighbour");
        neighbour.down(&node, &[]);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn the_same_call_joins_the_one_that_runs() {
    let rig = Rig::new();
    let sockets = || rig.agent().sockets();
    // A connection that has just been closed remains open for a moment.
    let idle = (0..50).map(|_| pause()).map(|()| sockets()).min();
    let idle = idle.expect("some looks");
    while_mkfs_stands_still(&rig, |_, ask_again| {
        for n in 2..=4 {
            ask_again();
            until("the agent has accepted the call", || sockets() >= idle + n);
        }
        // This call gets its response after all earlier calls.
        probe(&rig.socket()).expect("probe");
        let children = rig.agent().children();
        assert_eq!(children.len(), 1, "more than one mkfs: {children:?}");
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_dozen_volumes_come_and_go_at_the_same_time() {
    let rig = Rig::new();
    let kinds = ["ext4", "xfs", "btrfs", "block"]
        .into_iter()
        .cycle()
        .take(12);
    let volumes: Vec<_> = kinds
        .map(|kind| (kind, rig.volume(least_bytes(kind))))
        .collect();
    thread::scope(|scope| {
        for (kind, volume) in &volumes {
            let node = rig.node();
            scope.spawn(move || {
                let target = volume.target("a");
                for round in 0..5 {
                    node.stage(volume.stage(access(kind))).expect("stage");
                    node.publish(volume.publish(&target, access(kind)))
                        .expect("publish");
                    if round == 0 {
                        leave_words(kind, &target);
                    }
                    expect_words(kind, &target);
                    node.stats(volume.stats(&target)).expect("stats");
                    volume.down(&node, &[&target]);
                }
            });
        }
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_is_deleted_while_its_stage_waits_for_the_file_is_not_staged() {
    let rig = Rig::new();
    for kind in ["ext4", "block"] {
        let volume = rig.volume(least_bytes(kind));
        // The controller does this: it holds the lock until the file is deleted.
        let file = File::open(&volume.file).expect("open");
        file.lock().expect("flock");
        let (node, request) = (rig.node(), volume.stage(access(kind)));
        let again = request.clone();
        let stage = thread::spawn(move || node.stage(request));
        until("the agent has the file open", || {
            rig.agent().has_open(&volume.file)
        });
        fs::remove_file(&volume.file).expect("unlink");
        drop(file);
        let answer = match stage.join().expect("a thread") {
            // The agent waits for the lock for a second.
            Err(status) if status.code() == Code::Aborted => rig.node().stage(again),
            answer => answer,
        };
        refused(answer, Code::NotFound);
        rig.test_dir().expect_nothing_left();
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_is_unpublished_while_it_is_measured_is_not_mistaken_for_the_filesystem_below() {
    let rig = Rig::new();
    let (node, volume) = (rig.node(), rig.volume(least_bytes("ext4")));
    let target = volume.target("a");
    node.stage(volume.stage(access("ext4"))).expect("stage");
    let (is_over, size) = (AtomicBool::new(false), volume.bytes());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    match rig.node().stats(volume.stats(&target)) {
                        Ok(stats) => assert!(stats.usage[0].total.unsigned_abs() <= size),
                        Err(status) => assert_eq!(status.code(), Code::NotFound, "{status}"),
                    }
                }
            });
        }
        for _ in 0..300 {
            let publish = volume.publish(&target, access("ext4"));
            node.publish(publish).expect("publish");
            node.unpublish(volume.unpublish(&target))
                .expect("unpublish");
        }
        is_over.store(true, Ordering::Relaxed);
    });
    volume.down(&node, &[]);
}
