//! `kill -9` of the agent at random instants while it formats a blank volume. Retries must always
//! end with a staged volume, and no leftover may be mistaken for another volume's.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tonic::Code;

use crate::foreign::is_sound;
use crate::lifecycle::{expect_words, leave_words};
use crate::never_format::by_hand;
use crate::rig::{
    Answer, Chance, NodeCalls, Rig, Volume, access, least_bytes, mounts_of, refused_with, retried,
    run, until,
};

/// The offset of the mark of an unfinished format.
const MARK_AT: u64 = 100 << 20;

/// Returns the number of kills that must hit a running stage; `make nightly` runs more.
fn kills_wanted() -> u32 {
    if std::env::var_os("BELAY_NIGHTLY").is_some() {
        300
    } else {
        20
    }
}

/// The additional rounds allowed per kill, since a round in which the response came first does not
/// count.
const ROUNDS_A_KILL: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victims {
    Agent,
    AgentAndMkfs,
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_killed_while_it_formats_ext4_is_made_up_for_by_the_next() {
    kill_at_random_instants("ext4", Victims::Agent);
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_killed_with_its_mkfs_of_ext4_is_made_up_for_by_the_next() {
    kill_at_random_instants("ext4", Victims::AgentAndMkfs);
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_killed_while_it_formats_xfs_is_made_up_for_by_the_next() {
    kill_at_random_instants("xfs", Victims::Agent);
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_killed_with_its_mkfs_of_xfs_is_made_up_for_by_the_next() {
    kill_at_random_instants("xfs", Victims::AgentAndMkfs);
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_killed_while_it_formats_btrfs_is_made_up_for_by_the_next() {
    kill_at_random_instants("btrfs", Victims::Agent);
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_killed_with_its_mkfs_of_btrfs_is_made_up_for_by_the_next() {
    kill_at_random_instants("btrfs", Victims::AgentAndMkfs);
}

fn kill_at_random_instants(kind: &str, victims: Victims) {
    let mut rig = Rig::new();
    let mut chance = Chance::new(&format!("kill {victims:?} while it formats {kind}"));
    let mut met = Met::default();
    let mut whole = undisturbed(&rig, kind);
    for round in 0..kills_wanted() * ROUNDS_A_KILL {
        let volume = rig.volume(least_bytes(kind));
        let answer = stage_aside(&rig.node(), &volume, kind);
        let start = Instant::now();
        let instant = whole * u32::try_from(chance.below(1000)).expect("small") / 1000;
        // Either the response comes first, or the kill.
        let came = answer.recv_timeout(instant).is_ok();
        if came {
            // Stages are faster now than before, so the kills must come earlier.
            whole = start.elapsed();
        }
        kill(&mut rig, victims);
        met.note(&volume, came);
        rig.start();
        met.tries += stage_in_the_end(&rig.node(), &volume, kind);
        let target = volume.target("a");
        let publish = volume.publish(&target, access(kind));
        rig.node().publish(publish).expect("publish");
        leave_words(kind, &target);
        expect_words(kind, &target);
        volume.down(&rig.node(), &[&target]);
        assert!(
            is_sound(kind, &volume.file),
            "{kind} is not sound, round {round}: {met:?}"
        );
        std::fs::remove_file(&volume.file).expect("unlink");
        if !came && met.kills() == kills_wanted() {
            eprintln!("{kind}, {victims:?} killed: {met:?}");
            return;
        }
        if !came {
            // Adapt to the current load of the machine.
            whole = whole.mul_f64(1.05);
        }
    }
    panic!("too few kills hit a running stage: {met:?}");
}

/// The results of the kills.
#[derive(Debug, Default)]
struct Met {
    nothing_written: u32,
    a_mark: u32,
    a_filesystem: u32,
    a_staged_volume: u32,
    /// The number of calls afterwards.
    tries: u32,
}

impl Met {
    fn note(&mut self, volume: &Volume, is_staged: bool) {
        let is_marked = volume.read(MARK_AT, 16).iter().any(|byte| *byte != 0);
        *if is_staged {
            &mut self.a_staged_volume
        } else if is_marked {
            &mut self.a_mark
        } else if volume.contents().is_blank() {
            &mut self.nothing_written
        } else {
            &mut self.a_filesystem
        } += 1;
    }

    /// Returns the number of kills before the response.
    fn kills(&self) -> u32 {
        self.nothing_written + self.a_mark + self.a_filesystem
    }
}

/// Returns the duration of an undisturbed blank stage.
fn undisturbed(rig: &Rig, kind: &str) -> Duration {
    let volume = rig.volume(least_bytes(kind));
    let start = Instant::now();
    rig.node().stage(volume.stage(access(kind))).expect("stage");
    let duration = start.elapsed();
    volume.down(&rig.node(), &[]);
    duration
}

/// Stages the volume on another thread; the response, if any, comes through the channel.
fn stage_aside(node: &NodeCalls, volume: &Volume, kind: &str) -> mpsc::Receiver<Answer<()>> {
    let (node, request) = (node.clone(), volume.stage(access(kind)));
    let (tell, answer) = mpsc::channel();
    // The receiver may have been dropped; the thread ends with the agent's connection.
    thread::spawn(move || drop(tell.send(node.stage(request).map(drop))));
    answer
}

fn kill(rig: &mut Rig, victims: Victims) {
    if victims == Victims::AgentAndMkfs {
        rig.agent().kill_children();
    }
    rig.kill();
}

/// Retries as the kubelet does, and fails on any response that would stop its retries.
fn stage_in_the_end(node: &NodeCalls, volume: &Volume, kind: &str) -> u32 {
    let mut tries = 0;
    retried("the volume is staged", || {
        tries += 1;
        node.stage(volume.stage(access(kind)))
    });
    tries
}

#[test]
#[ignore = "needs root: make test"]
fn a_format_that_was_cut_off_is_ended_for_its_own_volume_and_for_no_other() {
    let mut rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = cut_off(&mut rig, kind);
        let other = rig.copy_of(&volume.file);
        let before = other.contents();
        for is_new in [false, true] {
            if is_new {
                other.mark_new();
            }
            let answer = rig.node().stage(other.stage(access(kind)));
            refused_with(answer, Code::FailedPrecondition, &[&volume.id, "104857600"]);
            before.expect_unchanged(&other.file, "the mark is another volume's");
        }
        stage_in_the_end(&rig.node(), &volume, kind);
        volume.down(&rig.node(), &[]);
    }
}

/// An operator restores a backup's filesystem into a volume whose format was interrupted. The part
/// that the backup does not cover keeps the mark of the format, and the file keeps the attribute
/// that records the unfinished format.
#[test]
#[ignore = "needs root: make test"]
fn a_filesystem_restored_into_a_volume_whose_format_was_cut_off_keeps_its_files() {
    let mut rig = Rig::new();
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = cut_off(&mut rig, "xfs");
        let backup = by_hand(&rig, kind);
        for (first, count) in [(0, 100), (101, u64::MAX)] {
            restore(&backup.file, &volume.file, first, count);
        }
        assert_eq!(volume.read(MARK_AT, 16), b"BELAY-MKFS-MARK\n");
        // The agent may still be freeing the device that the killed one has left.
        stage_in_the_end(&rig.node(), &volume, kind);
        expect_words(kind, &volume.staging);
        volume.down(&rig.node(), &[]);
        assert!(is_sound(kind, &volume.file), "{kind} is not sound");
    }
}

/// Copies `count` MiB starting at MiB `first`, or as many as exist.
fn restore(from: &Path, to: &Path, first: u64, count: u64) {
    let (from, to) = (from.display(), to.display());
    let (skip, seek) = (format!("skip={first}"), format!("seek={first}"));
    let count = format!("count={}", count.min(1 << 20));
    let files = [format!("if={from}"), format!("of={to}")];
    let mut args = vec!["bs=1M", "conv=notrunc", "status=none"];
    args.extend([&files[0], &files[1], &skip, &seek, &count].map(String::as_str));
    run("dd", &args);
}

/// Whether mkfs has ended: it writes the superblock last, and xfs has a field for it.
fn is_complete(kind: &str, volume: &Volume) -> bool {
    match kind {
        "ext4" => volume.read(1080, 2) == b"\x53\xef",
        "xfs" => volume.read(0, 4) == b"XFSB" && volume.read(126, 1) == [0],
        _ => volume.read(65_600, 8) == b"_BHRfS_M",
    }
}

/// Returns a volume whose agent was killed just after starting mkfs, together with mkfs.
fn cut_off(rig: &mut Rig, kind: &str) -> Volume {
    loop {
        let volume = rig.volume(least_bytes(kind));
        let answer = stage_aside(&rig.node(), &volume, kind);
        let mut is_over = false;
        until("mkfs runs", || {
            is_over = answer.try_recv().is_ok();
            is_over || !rig.agent().children().is_empty()
        });
        kill(rig, Victims::AgentAndMkfs);
        rig.start();
        let is_staged = mounts_of("self")
            .iter()
            .any(|it| it.point == volume.staging);
        until("the device is unbound", || {
            rig.test_dir().loops().is_empty() || is_over || is_staged
        });
        let is_marked = volume.read(MARK_AT, 16).iter().any(|byte| *byte != 0);
        if is_marked && !is_staged && !is_complete(kind, &volume) {
            return volume;
        }
        // The format was faster than this test: retry with another volume.
        stage_in_the_end(&rig.node(), &volume, kind);
        volume.down(&rig.node(), &[]);
    }
}
