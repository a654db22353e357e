//! A tool that replaces equal files with hard links has merged the files of two volumes, or of a
//! volume and its snapshot: both programs refuse the file until the command in the message has
//! separated it again.

use std::path::Path;

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::orders::{clone, create, cut, delete, discard, grow, restore};
use crate::rig::{Pair, Volume, access, refused, refused_with, run, text};

const KIND: &str = "xfs";

fn made(pair: &Pair, request: csi::CreateVolumeRequest) -> Volume {
    let made = pair.site().controller().create(request).expect("create");
    let id = made.volume.expect("a volume").volume_id;
    Volume::made(&pair.site().top, &pair.site().volumes(), id)
}

/// Stages and publishes the volume. Returns the target path.
fn up(pair: &Pair, volume: &Volume) -> std::path::PathBuf {
    let (node, target) = (pair.site().node(), volume.target("a"));
    node.stage(volume.stage(access(KIND))).expect("stage");
    let publish = volume.publish(&target, access(KIND));
    node.publish(publish).expect("publish");
    target
}

fn down(pair: &Pair, volume: &Volume) {
    volume.down(&pair.site().node(), &[&volume.target("a")]);
}

fn reasons(pair: &Pair, volume: &Volume) -> Vec<String> {
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        ..Default::default()
    };
    let answer = pair.site().controller().volume_health(request);
    let health = answer.expect("health").volume_health.expect("always set");
    let all = health.health_statuses.into_iter();
    all.map(|entry| entry.reason).collect()
}

/// Replaces a file with a hard link, as a deduplicating tool does.
fn dedup(kept: &Path, replaced: &Path) {
    run("ln", &["--force", text(kept), text(replaced)]);
}

/// Runs the command of a refusal, as an operator would.
fn separate(refusal: &str) {
    let (_, command) = refusal.split_once("`cp ").expect("a command");
    let (command, _) = command.split_once('`').expect("its end");
    run("sh", &["-c", &format!("cp {command}")]);
}

#[test]
#[ignore = "needs root: make test"]
fn two_new_volumes_that_are_one_file_are_refused_by_every_verb_until_they_are_two_again() {
    let mut pair = Pair::new("xfs");
    let (controller, node) = (pair.site().controller(), pair.site().node());
    let both = ["pvc-1", "pvc-2"].map(|name| made(&pair, create(name, KIND)));
    let code = Code::FailedPrecondition;
    dedup(&both[0].file, &both[1].file);
    let mut refusal = String::new();
    for _ in 0..2 {
        for volume in &both {
            let words = [text(&volume.file), "has 2 names", "instead of one", "find "];
            let id = &volume.id;
            refused_with(node.stage(volume.stage(access(KIND))), code, &words);
            refused_with(controller.expand(grow(id, 1 << 30)), code, &words);
            refused_with(controller.cut(cut("snap", id)), code, &words);
            refused_with(controller.create(clone("pvc-3", KIND, id)), code, &words);
            refusal = refused_with(controller.delete(delete(id)), code, &words);
            assert_eq!(reasons(&pair, volume), ["BackingFileForeign"]);
        }
        pair.restart_controller();
    }
    separate(&refusal);
    let target = up(&pair, &both[0]);
    leave_words(KIND, &target);
    let empty = up(&pair, &both[1]);
    assert!(!empty.join("words").exists());
    for volume in &both {
        assert_eq!(reasons(&pair, volume), [""; 0]);
        let snapshot = controller.cut(cut(&format!("of-{}", volume.id), &volume.id));
        let snapshot = snapshot.expect("cut").snapshot.expect("a snapshot");
        let discarded = controller.discard(discard(&snapshot.snapshot_id));
        discarded.expect("discard");
    }
    expect_words(KIND, &target);
    for volume in &both {
        down(&pair, volume);
        controller.delete(delete(&volume.id)).expect("delete");
    }
    pair.end_after_trouble();
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_in_use_that_is_linked_to_its_snapshot_is_reported_and_the_snapshot_not_restored() {
    let pair = Pair::new("xfs");
    let (controller, node) = (pair.site().controller(), pair.site().node());
    let volume = made(&pair, create("pvc-1", KIND));
    let target = up(&pair, &volume);
    leave_words(KIND, &target);
    let snapshot = controller.cut(cut("snap", &volume.id)).expect("cut");
    let snapshot = snapshot.snapshot.expect("a snapshot").snapshot_id;
    let file = pair.site().top.join("state/snapshots").join(&snapshot);
    dedup(&volume.file, &file);
    assert_eq!(reasons(&pair, &volume), ["BackingFileForeign"]);
    let code = Code::FailedPrecondition;
    let words = [text(&file), "has 2 names"];
    let order = || restore("pvc-2", KIND, &snapshot);
    refused_with(controller.create(order()), code, &words);
    refused_with(controller.discard(discard(&snapshot)), code, &words);
    let expand = volume.expand(&target, access(KIND));
    refused_with(node.expand(expand), code, &["has 2 names"]);
    expect_words(KIND, &target);
    down(&pair, &volume);
    separate(&refused(controller.discard(discard(&snapshot)), code));
    let restored = made(&pair, order());
    controller.discard(discard(&snapshot)).expect("discard");
    for volume in [&volume, &restored] {
        assert_eq!(reasons(&pair, volume), [""; 0]);
        controller.delete(delete(&volume.id)).expect("delete");
    }
    pair.end_after_trouble();
}

#[test]
#[ignore = "needs root: make test"]
fn a_copy_with_another_filesystem_than_its_source_is_refused_when_it_is_created() {
    let pair = Pair::new("xfs");
    let controller = pair.site().controller();
    let volume = made(&pair, create("pvc-1", KIND));
    let target = up(&pair, &volume);
    leave_words(KIND, &target);
    let snapshot = controller.cut(cut("snap", &volume.id)).expect("cut");
    let snapshot = snapshot.snapshot.expect("a snapshot").snapshot_id;
    down(&pair, &volume);
    let words = ["contains xfs, but ext4 is requested"];
    for order in [
        restore("pvc-2", "ext4", &snapshot),
        clone("pvc-2", "ext4", &volume.id),
    ] {
        refused_with(controller.create(order), Code::InvalidArgument, &words);
    }
    for kind in ["xfs", "block"] {
        let restored = made(&pair, restore(&format!("pvc-{kind}"), kind, &snapshot));
        controller.delete(delete(&restored.id)).expect("delete");
    }
    controller.discard(discard(&snapshot)).expect("discard");
    controller.delete(delete(&volume.id)).expect("delete");
    pair.end();
}
