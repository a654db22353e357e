//! A volume's file that was truncated or blanked while the volume was unstaged: the node agent
//! refuses it and the controller reports it, even after restarts, until the file is restored. Also
//! a file that was replaced or removed while the volume was staged.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use belay_contract::drivers::local::{BYTES, NEW};
use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::never_format::expect_lost;
use crate::rig::orders::{clone, create, cut, delete, grow};
use crate::rig::{Pair, Volume, access, refused_with, run, text};

const KIND: &str = "ext4";

/// Stages and publishes the volume. Returns the target path.
fn up(pair: &Pair, volume: &Volume) -> PathBuf {
    let (node, target) = (pair.site().node(), volume.target("a"));
    node.stage(volume.stage(access(KIND))).expect("stage");
    node.publish(volume.publish(&target, access(KIND)))
        .expect("publish");
    target
}

fn down(pair: &Pair, volume: &Volume) {
    volume.down(&pair.site().node(), &[&volume.target("a")]);
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

/// Returns an unstaged ext4 with data, and a backup of its file.
fn written(pair: &Pair) -> (Volume, PathBuf) {
    let made = pair.site().controller().create(create("pvc-1", KIND));
    let id = made.expect("create").volume.expect("a volume").volume_id;
    let volume = Volume::made(&pair.site().top, &pair.site().volumes(), id);
    let target = up(pair, &volume);
    leave_words(KIND, &target);
    down(pair, &volume);
    let backup = pair.site().top.join("backup");
    copy(&volume.file, &backup);
    (volume, backup)
}

fn copy(from: &Path, to: &Path) {
    run("cp", &["--sparse=always", text(from), text(to)]);
}

/// Restores the file, checks that the volume is as before, and deletes it.
fn restore(mut pair: Pair, volume: Volume, backup: &Path) {
    copy(backup, &volume.file);
    pair.restart_controller();
    assert_eq!(reasons(&pair, &volume), [""; 0]);
    let target = up(&pair, &volume);
    expect_words(KIND, &target);
    down(&pair, &volume);
    let deleted = pair.site().controller().delete(delete(&volume.id));
    deleted.expect("delete");
    fs::remove_file(backup).expect("unlink");
    pair.end_after_trouble();
}

#[test]
#[ignore = "needs root: make test"]
fn a_truncated_file_is_reported_and_not_staged_until_it_is_restored() {
    let mut pair = Pair::new("ext4");
    let (volume, backup) = written(&pair);
    let whole = volume.bytes();
    for bytes in [whole / 2, 0] {
        set_len(&volume.file, bytes);
        for _ in 0..2 {
            assert_eq!(reasons(&pair, &volume), ["BackingFileShort"]);
            let stage = pair.site().node().stage(volume.stage(access(KIND)));
            refused_with(stage, Code::FailedPrecondition, &["truncated"]);
            pair.restart_controller();
            pair.restart_agent();
        }
        assert_eq!(volume.bytes(), bytes);
    }
    restore(pair, volume, &backup);
}

#[test]
#[ignore = "needs root: make test"]
fn a_blanked_file_is_reported_and_not_staged_until_it_is_restored() {
    let mut pair = Pair::new("ext4");
    let (volume, backup) = written(&pair);
    let whole = volume.bytes();
    set_len(&volume.file, 0);
    set_len(&volume.file, whole);
    for _ in 0..2 {
        assert_eq!(reasons(&pair, &volume), ["BackingFileEmpty"]);
        expect_lost(&pair.site().node(), &volume, "blanked");
        pair.restart_controller();
        pair.restart_agent();
    }
    restore(pair, volume, &backup);
}

/// Location of a volume's old file after an operator has replaced it under a pod.
#[derive(Clone, Copy, Debug)]
enum Old {
    Removed,
    /// In the same directory, with `.bad` after its name.
    Renamed,
    /// In another directory, with its name.
    Moved,
}

/// Replaces the file with the backup. Returns the path of the old file.
fn replace(volume: &Volume, backup: &Path, old: Old) -> Option<PathBuf> {
    let volumes = volume.file.parent().expect("a directory");
    let aside = match old {
        Old::Removed => None,
        Old::Renamed => Some(volumes.join(format!("{}.bad", volume.id))),
        Old::Moved => {
            let elsewhere = volumes.with_file_name("elsewhere");
            fs::create_dir_all(&elsewhere).expect("mkdir");
            Some(elsewhere.join(&volume.id))
        }
    };
    match &aside {
        Some(aside) => fs::rename(&volume.file, aside).expect("rename"),
        None => fs::remove_file(&volume.file).expect("unlink"),
    }
    copy(backup, &volume.file);
    aside
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_that_replaced_the_one_in_use_is_not_changed_copied_or_deleted_until_that_is_unstaged() {
    for old in [Old::Removed, Old::Renamed, Old::Moved] {
        let mut pair = Pair::new("xfs");
        let (volume, backup) = written(&pair);
        let target = up(&pair, &volume);
        fs::write(target.join("since"), b"the backup").expect("write");
        let aside = replace(&volume, &backup, old);
        let controller = pair.site().controller();
        let bytes = i64::try_from(volume.bytes()).expect("a size");
        let id = &volume.id;
        let code = Code::FailedPrecondition;
        let words = [id, "replaced", "losetup --detach /dev/loop"];
        refused_with(controller.delete(delete(id)), code, &words);
        pair.restart_controller();
        refused_with(controller.cut(cut("snap", id)), code, &words);
        refused_with(controller.create(clone("pvc-2", KIND, id)), code, &words);
        refused_with(controller.expand(grow(id, 2 * bytes)), code, &words);
        refused_with(controller.delete(delete(id)), code, &words);
        assert_eq!(volume.bytes(), backup.metadata().expect("stat").len());
        assert_eq!(fs::read(target.join("since")).expect("read"), b"the backup");
        down(&pair, &volume);
        let target = up(&pair, &volume);
        expect_words(KIND, &target);
        assert!(!target.join("since").exists());
        down(&pair, &volume);
        controller.delete(delete(id)).expect("delete");
        for file in aside.iter().chain([&backup]) {
            fs::remove_file(file).expect("unlink");
        }
        pair.end_after_trouble();
    }
}

/// Follows docs/health.md, A removed file.
#[test]
#[ignore = "needs root: make test"]
fn a_file_that_was_removed_under_a_pod_is_copied_out_of_its_loop_device() {
    let pair = Pair::new("ext4");
    let (volume, backup) = written(&pair);
    let target = up(&pair, &volume);
    fs::write(target.join("since"), b"the backup").expect("write");
    fs::remove_file(&volume.file).expect("unlink");
    assert_eq!(reasons(&pair, &volume), ["BackingFileMissing"]);
    let script = r#"
        sync
        device=$(losetup --list --noheadings --output NAME,BACK-FILE | grep "$1" | cut -d ' ' -f 1)
        umask 077
        cp --sparse=always "$device" "$2.new"
    "#;
    run(
        "sh",
        &["-e", "-c", script, "sh", &volume.id, text(&volume.file)],
    );
    down(&pair, &volume);
    let new = format!("{}.new", text(&volume.file));
    fs::rename(new, &volume.file).expect("rename");
    assert_eq!(reasons(&pair, &volume), [""; 0]);
    for name in [NEW, BYTES] {
        assert_eq!(volume.attribute(name), None);
    }
    let target = up(&pair, &volume);
    expect_words(KIND, &target);
    assert_eq!(fs::read(target.join("since")).expect("read"), b"the backup");
    down(&pair, &volume);
    let deleted = pair.site().controller().delete(delete(&volume.id));
    deleted.expect("delete");
    fs::remove_file(backup).expect("unlink");
    pair.end();
}
