//! A snapshot on a filesystem that cannot share blocks: it has the content of the instant of the
//! cut, since the volume is not staged until the copy has ended.

use std::fs;
use std::path::Path;
use std::thread::{self, JoinHandle};

use belay_contract::drivers::local::CLAIM;
use belay_proto::csi::v1 as csi;
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::orders::{create, cut, delete, discard, restore};
use crate::rig::{Answer, Pair, Volume, access, refused_with, run, text, until};

const KIND: &str = "ext4";
/// Enough data that the copy can be interrupted.
const DATA_MIB: u64 = 256;

fn made(pair: &Pair, order: csi::CreateVolumeRequest) -> Volume {
    let made = pair.site().controller().create(order).expect("create");
    let id = made.volume.expect("a volume").volume_id;
    Volume::made(&pair.site().top, &pair.site().volumes(), id)
}

/// Returns an unstaged volume with data.
fn written(pair: &Pair) -> Volume {
    let bytes = i64::try_from(2 * (DATA_MIB << 20)).expect("a size");
    let order = csi::CreateVolumeRequest {
        capacity_range: belay_bed::requests::range(bytes, 0),
        ..create("pvc-1", KIND)
    };
    let (volume, node) = (made(pair, order), pair.site().node());
    node.stage(volume.stage(access(KIND))).expect("stage");
    leave_words(KIND, &volume.staging);
    let bulk = format!("of={}", text(&volume.staging.join("bulk")));
    let count = format!("count={DATA_MIB}");
    let args = ["if=/dev/urandom", &bulk, "bs=1M", &count, "status=none"];
    run("dd", &args);
    volume.down(&node, &[]);
    volume
}

/// The caller of a snapshot that is being copied.
type Caller = JoinHandle<Answer<csi::CreateSnapshotResponse>>;

fn signal_controller(pair: &Pair, signal: Signal) {
    let pid = i32::try_from(pair.controller_pid()).expect("a PID");
    kill_process(Pid::from_raw(pid).expect("a PID"), signal).expect("kill");
}

/// Starts a snapshot, and stops the controller in the middle of the copy.
fn begin_copy(pair: &Pair, volume: &Volume, directory: &Path) -> Caller {
    for _ in 0..10 {
        let (calls, order) = (pair.site().controller(), cut("snap", &volume.id));
        let caller = thread::spawn(move || calls.cut(order));
        until("the copy has begun", || {
            let mut files = fs::read_dir(directory).expect("readdir").flatten();
            files.any(|file| file.metadata().is_ok_and(|stat| stat.len() > 0))
        });
        signal_controller(pair, Signal::STOP);
        if volume.attribute(CLAIM).is_some() {
            return caller;
        }
        // The copy was faster than this test.
        signal_controller(pair, Signal::CONT);
        let made = caller.join().expect("a caller").expect("cut").snapshot;
        let id = made.expect("a snapshot").snapshot_id;
        let discarded = pair.site().controller().discard(discard(&id));
        discarded.expect("discard");
    }
    panic!("each copy has ended before the controller was stopped");
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_is_not_staged_while_it_is_copied_even_if_the_controller_is_killed_meanwhile() {
    let mut pair = Pair::new("ext4");
    let (volume, node) = (written(&pair), pair.site().node());
    let before = volume.contents();
    let directory = pair.site().top.join("state/snapshots");
    let caller = begin_copy(&pair, &volume, &directory);
    for is_killed in [false, true] {
        if is_killed {
            pair.stop_controller();
        }
        for _ in 0..2 {
            let staged = node.stage(volume.stage(access(KIND)));
            let message = refused_with(staged, Code::Aborted, &[&volume.id]);
            assert!(!is_killed || message.contains("is being copied to snap-"));
            pair.restart_agent();
        }
    }
    caller.join().expect("a caller").expect_err("it was killed");

    pair.restart_controller();
    let (controller, mut snapshot) = (pair.site().controller(), None);
    until("the snapshot is ready", || {
        let made = controller.cut(cut("snap", &volume.id)).expect("cut");
        snapshot = made.snapshot.filter(|made| made.ready_to_use);
        snapshot.is_some()
    });
    let id = snapshot.expect("a snapshot").snapshot_id;
    node.stage(volume.stage(access(KIND))).expect("stage");
    fs::write(volume.staging.join("words"), b"what was written since").expect("write");
    run("sync", &["--file-system", text(&volume.staging)]);
    before.expect_unchanged(&directory.join(&id), "the snapshot");
    let restored = made(&pair, restore("pvc-2", KIND, &id));
    node.stage(restored.stage(access(KIND))).expect("stage");
    expect_words(KIND, &restored.staging);
    controller.discard(discard(&id)).expect("discard");
    for volume in [volume, restored] {
        volume.down(&node, &[]);
        controller.delete(delete(&volume.id)).expect("delete");
    }
    pair.end();
}
