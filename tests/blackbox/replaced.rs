//! A volume's file that was restored while the volume is staged: the old file can be taken down
//! like any volume's, and is never shown as the new one.

use std::fs;
use std::path::Path;

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    Disk, NodeCalls, Rig, TestDir, Volume, access, least_bytes, refused_with, run, until,
};

/// How an operator replaces the volume's file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Restore {
    /// The copy is renamed over the file, as rsync and most tools do.
    RenamedOver,
    /// The file is moved aside first.
    MovedAside,
}

/// Restores a copy of the volume's file under its name.
pub(crate) fn restore(volume: &Volume, how: Restore) {
    let (copy, aside) = (
        volume.file.with_extension("copy"),
        volume.file.with_extension("aside"),
    );
    self::copy(&volume.file, &copy);
    if let Restore::MovedAside = how {
        fs::rename(&volume.file, aside).expect("rename");
    }
    fs::rename(copy, &volume.file).expect("rename");
}

fn copy(from: &Path, to: &Path) {
    let [from, to] = [from, to].map(|path| path.to_str().expect("UTF-8"));
    run("cp", &["--sparse=always", from, to]);
}

/// Checks that health reports this reason only, and that statistics agree.
#[track_caller]
fn expect_gone(node: &NodeCalls, volume: &Volume) {
    let text = |path: std::path::PathBuf| path.to_str().expect("UTF-8").to_owned();
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        volume_publish_path: text(volume.target("a")),
        staging_target_path: text(volume.staging.clone()),
    };
    let health = node.volume_health(request).expect("health").volume_health;
    let reasons: Vec<_> = health.expect("always set").health_statuses;
    let reasons: Vec<_> = reasons.into_iter().map(|entry| entry.reason).collect();
    assert_eq!(reasons, ["BackingFileGone"]);
    if let Ok(stats) = node.stats(volume.stats(&volume.target("a"))) {
        let condition = stats.volume_condition.expect("a condition");
        assert!(condition.message.contains("BackingFileGone"));
    }
}

/// Neither the lock nor the device of the file belongs to the volume with that name.
#[test]
#[ignore = "needs root: make test"]
fn a_file_in_use_that_was_moved_to_the_name_of_another_volume_is_not_that_ones() {
    for kind in ["block", "ext4"] {
        let mut rig = Rig::new();
        let node = rig.node();
        let [used, robbed] = [0; 2].map(|_| rig.volume(least_bytes("ext4")));
        let target = used.target("a");
        node.stage(used.stage(access(kind))).expect("stage");
        node.publish(used.publish(&target, access(kind)))
            .expect("publish");
        leave_words(kind, &target);
        let aside = robbed.file.with_extension("aside");
        fs::rename(&robbed.file, &aside).expect("rename");
        fs::rename(&used.file, &robbed.file).expect("rename");
        for is_restarted in [false, true] {
            if is_restarted {
                rig.restart();
            }
            for asked in ["block", "ext4"] {
                let stage = node.stage(robbed.stage(access(asked)));
                refused_with(stage, Code::FailedPrecondition, &[&used.id]);
            }
            node.unstage(robbed.unstage()).expect_err("not its own");
            expect_words(kind, &target);
        }
        fs::rename(&robbed.file, &used.file).expect("rename");
        fs::rename(aside, &robbed.file).expect("rename");
        used.down(&node, &[&target]);
        node.stage(robbed.stage(access(kind))).expect("stage");
        robbed.down(&node, &[]);
    }
}

/// The base name of the file is unchanged, so it does not show that another file now has the
/// volume's path.
#[test]
#[ignore = "needs root: make test"]
fn a_volume_whose_file_was_moved_to_another_directory_is_not_staged_on_the_copy_as_well() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["block", "ext4", "btrfs"] {
        for is_restarted in [false, true] {
            let volume = rig.volume(least_bytes(kind));
            let target = volume.target("a");
            node.stage(volume.stage(access(kind))).expect("stage");
            node.publish(volume.publish(&target, access(kind)))
                .expect("publish");
            leave_words(kind, &target);
            let elsewhere = rig
                .test_dir()
                .directory(format!("elsewhere-{is_restarted}"));
            let moved = elsewhere.join(&volume.id);
            fs::rename(&volume.file, &moved).expect("rename");
            copy(&moved, &volume.file);
            if is_restarted {
                rig.restart();
            }
            let publish = volume.publish(&volume.target("b"), access(kind));
            refused_with(
                node.publish(publish),
                Code::FailedPrecondition,
                &["replaced"],
            );
            expect_one_copy_in_use(&node, &volume, kind);
            expect_words(kind, &target);
            node.unpublish(volume.unpublish(&target))
                .expect("unpublish");
            node.unstage(volume.unstage()).expect("unstage");
            until("nothing is bound", || rig.test_dir().loops().is_empty());
            node.stage(volume.stage(access(kind))).expect("stage again");
            node.publish(volume.publish(&target, access(kind)))
                .expect("publish again");
            expect_words(kind, &target);
            volume.down(&node, &[&target]);
        }
    }
}

/// Checks that the volume is not staged from its new file, and not reported as not staged.
#[track_caller]
fn expect_one_copy_in_use(node: &NodeCalls, volume: &Volume, kind: &str) {
    let stage = volume.stage(access(kind));
    refused_with(node.stage(stage), Code::AlreadyExists, &["replaced"]);
    let mut second = volume.clone();
    second.staging = volume.staging.with_file_name("second");
    fs::create_dir_all(&second.staging).expect("mkdir");
    let stage = node.stage(second.stage(access(kind)));
    refused_with(stage, Code::FailedPrecondition, &["replaced"]);
    let unstage = node.unstage(second.unstage());
    refused_with(unstage, Code::FailedPrecondition, &["replaced"]);
}

/// The kernel keeps 63 bytes of the name under which a device is bound.
#[test]
#[ignore = "needs root: make test"]
fn a_volume_with_the_longest_of_ids_is_known_like_any_other() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["block", "ext4"] {
        let [volume, other] = ["a", "b"].map(|end| {
            let id = format!("{kind}-{}{end}", "x".repeat(120));
            let volume = Volume::made(rig.test_dir().path(), rig.volumes(), id);
            let file = fs::File::create(&volume.file).expect("a file");
            file.set_len(least_bytes(kind)).expect("ftruncate");
            volume.mark_new();
            volume
        });
        for volume in [&volume, &other] {
            node.stage(volume.stage(access(kind))).expect("stage");
            node.stage(volume.stage(access(kind))).expect("stage again");
        }
        rig.restart();
        node.stage(volume.stage(access(kind)))
            .expect("stage after a restart");
        fs::remove_file(&volume.file).expect("unlink");
        node.unstage(volume.unstage()).expect("unstage");
        other.down(&node, &[]);
        until("nothing is bound", || rig.test_dir().loops().is_empty());
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_whose_file_was_restored_while_it_is_staged_is_taken_down_and_staged_again() {
    for filesystem in ["ext4", "btrfs"] {
        let test_dir = TestDir::new();
        let disk = Disk::new(&test_dir, filesystem, "disk-mounted");
        let mut rig = Rig::with_volumes_in(test_dir, disk.path().to_owned());
        for kind in ["ext4", "xfs", "btrfs", "block"] {
            for how in [Restore::RenamedOver, Restore::MovedAside] {
                for is_restarted in [false, true] {
                    live_through(&mut rig, kind, how, is_restarted);
                }
            }
        }
        rig.kill();
        disk.unmount();
    }
}

fn live_through(rig: &mut Rig, kind: &str, how: Restore, is_restarted: bool) {
    let node = rig.node();
    let volume = rig.volume(least_bytes(kind));
    let (target, other) = (volume.target("a"), volume.target("b"));
    node.stage(volume.stage(access(kind))).expect("stage");
    node.publish(volume.publish(&target, access(kind)))
        .expect("publish");
    leave_words(kind, &target);
    restore(&volume, how);
    if is_restarted {
        rig.restart();
    }
    let what = format!("{kind}, {how:?}, restarted: {is_restarted}");
    expect_gone(&node, &volume);
    let publish = volume.publish(&other, access(kind));
    refused_with(
        node.publish(publish),
        Code::FailedPrecondition,
        &["replaced"],
    );
    let stage = volume.stage(access(kind));
    refused_with(node.stage(stage), Code::AlreadyExists, &["replaced"]);
    node.unpublish(volume.unpublish(&target))
        .unwrap_or_else(|status| panic!("{what}: unpublish: {status}"));
    node.unstage(volume.unstage())
        .unwrap_or_else(|status| panic!("{what}: unstage: {status}"));
    let is_bound = |rig: &Rig| rig.test_dir().loops().len() > 1;
    until("only the disk is on a loop device", || !is_bound(rig));
    node.stage(volume.stage(access(kind))).expect("stage again");
    node.publish(volume.publish(&target, access(kind)))
        .expect("publish again");
    expect_words(kind, &target);
    volume.down(&node, &[&target]);
}

/// An operator moves a file to a larger disk and leaves a symlink in its old location.
#[test]
#[ignore = "needs root: make test"]
fn a_volume_whose_file_was_moved_behind_a_symlink_is_reported_and_taken_down() {
    for kind in ["block", "ext4"] {
        for is_restarted in [false, true] {
            let mut rig = Rig::new();
            let node = rig.node();
            let volume = rig.volume(least_bytes(kind));
            let target = volume.target("a");
            node.stage(volume.stage(access(kind))).expect("stage");
            node.publish(volume.publish(&target, access(kind)))
                .expect("publish");
            let moved = rig.test_dir().directory("larger").join(&volume.id);
            fs::rename(&volume.file, &moved).expect("rename");
            std::os::unix::fs::symlink(&moved, &volume.file).expect("symlink");
            if is_restarted {
                rig.restart();
            }
            expect_gone(&node, &volume);
            volume.down(&node, &[&target]);
            until("nothing is bound", || rig.test_dir().loops().is_empty());
            let stage = node.stage(volume.stage(access(kind)));
            refused_with(stage, Code::InvalidArgument, &["symbolic link"]);
        }
    }
}
