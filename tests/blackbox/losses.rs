//! A volume's file that was truncated or blanked while the volume was detached: both programs
//! report and refuse it, even after restarts, until the file is restored. Also a file that was
//! replaced or removed while the volume was staged.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;

use belay_proto::csi::v1 as csi;
use tonic::{Code, Status};

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::orders::{attach, clone, create, cut, delete, detach, grow};
use crate::rig::{Pair, Volume, access, refused, refused_with, retried, run, until};

const KIND: &str = "ext4";

/// Returns a new volume of 1 GiB, so that its mkfs takes a moment.
fn made(pair: &Pair, name: &str) -> Volume {
    let request = csi::CreateVolumeRequest {
        capacity_range: Some(csi::CapacityRange {
            required_bytes: 1 << 30,
            limit_bytes: 0,
        }),
        ..create(name, KIND)
    };
    let made = pair.site().controller().create(request);
    let id = made.expect("create").volume.expect("a volume").volume_id;
    Volume::made(&pair.site().top, &pair.site().volumes(), id)
}

/// Attaches the volume.
fn attached(pair: &Pair, volume: &Volume) -> Result<HashMap<String, String>, Status> {
    let answer = pair.site().controller().attach(attach(&volume.id, KIND));
    Ok(answer?.publish_context)
}

/// Attaches, stages and publishes the volume. Returns the target path.
fn up(pair: &Pair, volume: &mut Volume) -> std::path::PathBuf {
    volume.context = Some(attached(pair, volume).expect("attach"));
    let (node, target) = (pair.site().node(), volume.target("a"));
    node.stage(volume.stage(access(KIND))).expect("stage");
    node.publish(volume.publish(&target, access(KIND)))
        .expect("publish");
    target
}

fn down(pair: &Pair, volume: &Volume) {
    volume.down(&pair.site().node(), &[&volume.target("a")]);
    detached(pair, volume);
}

fn detached(pair: &Pair, volume: &Volume) {
    // The lock of the file may be released a moment after its device.
    let calls = pair.site().controller();
    retried("it is detached", || calls.detach(detach(&volume.id)));
}

/// Returns the reasons that the controller reports.
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

fn set_len(file: &Path, bytes: u64) {
    let file = File::options().write(true).open(file).expect("open");
    file.set_len(bytes).expect("ftruncate");
}

/// Returns a detached ext4 with data, and a backup of its file.
fn written(pair: &Pair) -> (Volume, std::path::PathBuf) {
    let made = pair.site().controller().create(create("pvc-1", KIND));
    let id = made.expect("create").volume.expect("a volume").volume_id;
    let mut volume = Volume::made(&pair.site().top, &pair.site().volumes(), id);
    let target = up(pair, &mut volume);
    leave_words(KIND, &target);
    down(pair, &volume);
    let backup = pair.site().top.join("backup");
    copy(&volume.file, &backup);
    (volume, backup)
}

fn copy(from: &Path, to: &Path) {
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    run("cp", &["--sparse=always", &text(from), &text(to)]);
}

/// Restores the file, checks that the volume is as before, and deletes it.
fn restore(mut pair: Pair, mut volume: Volume, backup: &Path) {
    copy(backup, &volume.file);
    pair.restart_controller();
    assert_eq!(reasons(&pair, &volume), [""; 0]);
    let target = up(&pair, &mut volume);
    expect_words(KIND, &target);
    down(&pair, &volume);
    let deleted = pair.site().controller().delete(delete(&volume.id));
    deleted.expect("delete");
    fs::remove_file(backup).expect("unlink");
    pair.end_after_trouble();
}

#[test]
#[ignore = "needs root: make test"]
fn a_truncated_file_is_reported_and_refused_until_it_is_restored() {
    let mut pair = Pair::new("ext4");
    let (volume, backup) = written(&pair);
    let whole = volume.bytes();
    for bytes in [whole / 2, 0] {
        set_len(&volume.file, bytes);
        for _ in 0..2 {
            assert_eq!(reasons(&pair, &volume), ["BackingFileShort"]);
            refused(attached(&pair, &volume), Code::FailedPrecondition);
            // A kubelet with an older VolumeAttachment makes this call.
            let stage = volume.stage(access(KIND));
            refused(pair.site().node().stage(stage), Code::FailedPrecondition);
            pair.restart_controller();
        }
        assert_eq!(volume.bytes(), bytes);
    }
    restore(pair, volume, &backup);
}

#[test]
#[ignore = "needs root: make test"]
fn a_blanked_file_is_refused_until_it_is_restored() {
    let pair = Pair::new("ext4");
    let (mut volume, backup) = written(&pair);
    let whole = volume.bytes();
    volume.context = Some(attached(&pair, &volume).expect("attach"));
    set_len(&volume.file, 0);
    set_len(&volume.file, whole);
    let stage = volume.stage(access(KIND));
    refused(pair.site().node().stage(stage), Code::FailedPrecondition);
    assert!(volume.contents().is_blank());
    detached(&pair, &volume);
    assert_eq!(reasons(&pair, &volume), ["BackingFileEmpty"]);
    refused(attached(&pair, &volume), Code::FailedPrecondition);
    restore(pair, volume, &backup);
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_whose_formatting_was_interrupted_can_be_detached_and_formatted_by_its_next_stage() {
    let mut pair = Pair::new("ext4");
    for attempt in 1.. {
        let mut volume = made(&pair, &format!("pvc-{attempt}"));
        volume.context = Some(attached(&pair, &volume).expect("attach"));
        let (node, request) = (pair.site().node(), volume.stage(access(KIND)));
        let stage = std::thread::spawn(move || node.stage(request));
        until("mkfs runs", || {
            stage.is_finished() || !pair.agent().children().is_empty()
        });
        pair.agent().kill_children();
        pair.restart_agent();
        // The process may have exited before.
        let interrupted = stage.join().expect("a thread").is_err();
        // It may be staged although the caller got no response.
        retried("it is unstaged", || {
            pair.site().node().unstage(volume.unstage())
        });
        until("the device is unbound", || pair.site().loops().is_empty());
        detached(&pair, &volume);
        let target = up(&pair, &mut volume);
        let content = volume.context.as_ref().expect("attached")["content"].clone();
        leave_words(KIND, &target);
        down(&pair, &volume);
        let deleted = pair.site().controller().delete(delete(&volume.id));
        deleted.expect("delete");
        // The mark of an unfinished format is data, too.
        if interrupted && content == "populated" {
            break;
        }
    }
    pair.end();
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_whose_file_was_replaced_while_it_was_staged_is_detached_only_once_it_is_unstaged() {
    for aside in [None, Some("volumes/old.img"), Some("old.img")] {
        let pair = Pair::new("xfs");
        let (mut volume, backup) = written(&pair);
        let target = up(&pair, &mut volume);
        fs::write(target.join("since"), b"the backup").expect("write");
        // Replace the file as a restore does, while the pod continues to use the old file.
        let state = pair
            .site()
            .volumes()
            .parent()
            .expect("a directory")
            .to_owned();
        let aside = aside.map(|name| state.join(name));
        match &aside {
            Some(aside) => fs::rename(&volume.file, aside).expect("rename"),
            None => fs::remove_file(&volume.file).expect("unlink"),
        }
        copy(&backup, &volume.file);
        let controller = pair.site().controller();
        let refused = controller.detach(detach(&volume.id));
        refused_with(refused, Code::Aborted, &[&volume.id]);
        // The new file is not mistaken for the file in use either.
        let words = [volume.id.as_str(), "replaced"];
        let bytes = i64::try_from(volume.bytes()).expect("a size");
        refused_with(
            controller.cut(cut("snap", &volume.id)),
            Code::FailedPrecondition,
            &words,
        );
        refused_with(
            controller.create(clone("pvc-2", KIND, &volume.id)),
            Code::FailedPrecondition,
            &words,
        );
        refused_with(
            controller.expand(grow(&volume.id, 2 * bytes)),
            Code::FailedPrecondition,
            &words,
        );
        assert_eq!(fs::read(target.join("since")).expect("read"), b"the backup");
        down(&pair, &volume);
        let target = up(&pair, &mut volume);
        expect_words(KIND, &target);
        assert!(!target.join("since").exists());
        down(&pair, &volume);
        let deleted = controller.delete(delete(&volume.id));
        deleted.expect("delete");
        if aside.is_none() {
            // The file has no other name, so it is kept.
            let kept = state.join("attached").join(format!("{}.1", volume.id));
            fs::remove_file(kept).expect("the file with the data since the backup");
        }
        for file in aside.iter().chain([&backup]) {
            fs::remove_file(file).expect("unlink");
        }
        pair.end();
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_that_was_removed_while_its_volume_is_attached_gets_its_name_back() {
    let pair = Pair::new("ext4");
    let (mut volume, backup) = written(&pair);
    let target = up(&pair, &mut volume);
    fs::write(target.join("since"), b"the backup").expect("write");
    let state = pair
        .site()
        .volumes()
        .parent()
        .expect("a directory")
        .to_owned();
    let kept = state.join("attached").join(&volume.id);
    let take_name = || {
        fs::remove_file(&volume.file).expect("unlink");
        assert_eq!(reasons(&pair, &volume), ["BackingFileMissing"]);
    };
    let give_name = || {
        fs::hard_link(&kept, &volume.file).expect("link");
        assert_eq!(reasons(&pair, &volume), [""; 0]);
    };
    // The file is removed under a running pod, and the volume unstaged against all advice.
    let node = pair.site().node();
    for is_late in [false, true] {
        take_name();
        if !is_late {
            give_name();
        }
        volume.down(&node, &[&target]);
        if is_late {
            refused(
                pair.site().controller().detach(detach(&volume.id)),
                Code::FailedPrecondition,
            );
            give_name();
        }
        let context = attached(&pair, &volume);
        context.expect("attached still");
        node.stage(volume.stage(access(KIND))).expect("stage");
        node.publish(volume.publish(&target, access(KIND)))
            .expect("publish");
        expect_words(KIND, &target);
        assert_eq!(fs::read(target.join("since")).expect("read"), b"the backup");
    }
    down(&pair, &volume);
    let deleted = pair.site().controller().delete(delete(&volume.id));
    deleted.expect("delete");
    fs::remove_file(backup).expect("unlink");
    pair.end();
}
