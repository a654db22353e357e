//! Mounts in a state that the agent did not create: mirrored, frozen, copied into another
//! namespace, or remounted read-only.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use rustix::fs::CWD;
use rustix::mount::{
    FsPickFlags, MountPropagationFlags, UnmountFlags, fsconfig_reconfigure, fsconfig_set_flag,
    fspick, mount_bind, mount_change, unmount,
};
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    Rig, TestDir, Volume, access, least_bytes, refused, refused_with, run, until, with_mode,
};

/// Stages and publishes a volume in this directory, each time with an agent that has no memory of
/// the previous one.
fn expect_life_in(rig: &mut Rig, directory: &Path) {
    let node = rig.node();
    for kind in ["ext4", "btrfs", "block"] {
        let sole = with_mode(access(kind), Mode::SingleNodeWriter);
        let mut volume = rig.volume(least_bytes(kind));
        volume.staging = directory.join(format!("{}/globalmount", volume.id));
        fs::create_dir_all(&volume.staging).expect("mkdir");
        let target = directory.join(format!("{}/target", volume.id));
        for is_restarted in [false, true] {
            node.stage(volume.stage(sole.clone())).expect("stage");
            if is_restarted {
                rig.restart();
                node.stage(volume.stage(sole.clone())).expect("stage again");
                rig.restart();
            }
            node.publish(volume.publish(&target, sole.clone()))
                .expect("publish");
            leave_words(kind, &target);
            if is_restarted {
                rig.restart();
            }
            node.publish(volume.publish(&target, sole.clone()))
                .expect("publish again");
            expect_words(kind, &target);
            refused(node.unstage(volume.unstage()), Code::FailedPrecondition);
            node.unpublish(volume.unpublish(&target))
                .expect("unpublish");
            if is_restarted {
                rig.restart();
            }
            volume.down(&node, &[]);
            until("the device is free", || rig.test_dir().loops().is_empty());
        }
        node.stage(volume.stage(sole)).expect("stage");
        rig.restart();
        volume.down(&node, &[]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_kubelet_directory_may_be_behind_a_link() {
    let mut rig = Rig::new();
    let link = rig.test_dir().path().join("link");
    std::os::unix::fs::symlink(rig.test_dir().directory("real"), &link).expect("symlink");
    expect_life_in(&mut rig, &link);
}

#[test]
#[ignore = "needs root: make test"]
fn a_kubelet_directory_may_be_a_shared_mount_that_shows_everything_twice() {
    let mut rig = Rig::new();
    let (data, kubelet) = (
        rig.test_dir().directory("data"),
        rig.test_dir().directory("kubelet"),
    );
    mount_bind(&data, &data).expect("bind");
    mount_change(&data, MountPropagationFlags::SHARED).expect("share");
    mount_bind(&data, &kubelet).expect("bind");
    expect_life_in(&mut rig, &kubelet);
    for point in [&kubelet, &data] {
        unmount(point, UnmountFlags::NOFOLLOW).expect("umount");
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_target_that_a_replaced_driver_has_bound_is_the_one_that_is_allowed() {
    let mut rig = Rig::new();
    let kubelet = rig.test_dir().directory("kubelet");
    mount_bind(&kubelet, &kubelet).expect("bind");
    mount_change(&kubelet, MountPropagationFlags::SHARED).expect("share");
    for kind in ["ext4", "xfs", "btrfs"] {
        let sole = with_mode(access(kind), Mode::SingleNodeSingleWriter);
        let mut volume = rig.volume(least_bytes(kind));
        volume.staging = kubelet.join(format!("{}/globalmount", volume.id));
        let [bound, second] = ["bound", "second"].map(|name| kubelet.join(&volume.id).join(name));
        for directory in [&volume.staging, &bound] {
            fs::create_dir_all(directory).expect("mkdir");
        }
        rig.node().stage(volume.stage(sole.clone())).expect("stage");
        // `mount --bind` does the same: a bind of a shared mount is a peer.
        mount_bind(&volume.staging, &bound).expect("bind");
        leave_words(kind, &bound);
        rig.restart();
        let node = rig.node();
        for _ in 0..2 {
            let published = node.publish(volume.publish(&second, sole.clone()));
            refused_with(published, Code::FailedPrecondition, &["bound"]);
            refused_with(
                node.unstage(volume.unstage()),
                Code::FailedPrecondition,
                &["bound"],
            );
            expect_words(kind, &volume.staging);
        }
        node.unpublish(volume.unpublish(&bound)).expect("unpublish");
        node.publish(volume.publish(&second, sole))
            .expect("publish");
        expect_words(kind, &second);
        volume.down(&node, &[&second]);
        until("the device is free", || rig.test_dir().loops().is_empty());
    }
    unmount(&kubelet, UnmountFlags::NOFOLLOW).expect("umount");
}

/// A frozen filesystem. It cannot be unmounted, so it is thawed when a test fails, through any
/// mount that exists or can be created.
struct Frozen<'a> {
    test_dir: &'a TestDir,
}

impl<'a> Frozen<'a> {
    fn new(test_dir: &'a TestDir, volume: &Volume) -> Self {
        let frozen = Frozen { test_dir };
        run("fsfreeze", &["-f", volume.staging.to_str().expect("UTF-8")]);
        frozen
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let point = self.test_dir.directory("thaw");
        for device in self.test_dir.loops() {
            let node = format!("/dev/loop{}", device.number);
            drop(Command::new("mount").arg(node).arg(&point).status());
            drop(Command::new("fsfreeze").arg("-u").arg(&point).status());
            drop(Command::new("umount").arg(&point).status());
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_frozen_filesystem_is_unstaged_and_staged_again() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = rig.volume(least_bytes(kind));
        node.stage(volume.stage(access(kind))).expect("stage");
        leave_words(kind, &volume.staging);
        let frozen = Frozen::new(rig.test_dir(), &volume);
        volume.down(&node, &[]);
        until("the device is free", || rig.test_dir().loops().is_empty());
        node.stage(volume.stage(access(kind))).expect("stage again");
        expect_words(kind, &volume.staging);
        fs::write(volume.staging.join("more"), "it takes writes").expect("write");
        drop(frozen);
        volume.down(&node, &[]);
    }
}

/// A process in a separate mount namespace, with a copy of every mount.
struct Bystander(Child);

impl Bystander {
    fn new() -> Self {
        // The process exits when its input ends, and so at the latest with this process.
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("unshare of util-linux");
        let bystander = Bystander(child);
        let program = format!("/proc/{}/comm", bystander.0.id());
        until("it is in its own namespace", || {
            fs::read_to_string(&program).is_ok_and(|name| name == "cat\n")
        });
        bystander
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_another_namespace_still_has_is_not_unstaged_but_staged_again() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = rig.volume(least_bytes(kind));
        let target = volume.target("a");
        node.stage(volume.stage(access(kind))).expect("stage");
        leave_words(kind, &volume.staging);
        let bystander = Bystander::new();
        for _ in 0..2 {
            expect_still_held(&rig, &volume);
            expect_still_held(&rig, &volume);
            node.stage(volume.stage(access(kind))).expect("stage again");
            expect_words(kind, &volume.staging);
            node.publish(volume.publish(&target, access(kind)))
                .expect("publish");
            expect_words(kind, &target);
            node.unpublish(volume.unpublish(&target))
                .expect("unpublish");
        }
        expect_still_held(&rig, &volume);
        // No process may write to the device of a mounted filesystem.
        let raw = node.stage(volume.stage(access("block")));
        assert_eq!(raw.expect_err("mounted elsewhere").code(), Code::Aborted);
        drop(bystander);
        // The kernel removes the process's mounts a moment after the process.
        until("it is unstaged", || node.unstage(volume.unstage()).is_ok());
        until("the device is free", || rig.test_dir().loops().is_empty());
        node.stage(volume.stage(access(kind))).expect("stage again");
        expect_words(kind, &volume.staging);
        volume.down(&node, &[]);
    }
}

/// Checks that the unstage is refused, since OK would mean that nothing of the volume is left on
/// this node.
#[track_caller]
fn expect_still_held(rig: &Rig, volume: &Volume) {
    let answer = rig.node().unstage(volume.unstage());
    let status = answer.expect_err("it should not be unstaged");
    assert!(
        matches!(status.code(), Code::FailedPrecondition | Code::Aborted),
        "{status:?}"
    );
}

#[test]
#[ignore = "needs root: make test"]
fn what_was_staged_for_reading_only_is_not_published_for_writing() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let target = volume.target("a");
    // A read-only volume is never formatted, so stage the blank volume first.
    node.stage(volume.stage(access("ext4")))
        .expect("stage a blank volume");
    volume.down(&node, &[]);
    let reads = with_mode(access("ext4"), Mode::SingleNodeReaderOnly);
    node.stage(volume.stage(reads.clone())).expect("stage");
    expect_no_writer(&rig, &volume, "ext4");
    node.publish(volume.publish(&target, reads))
        .expect("publish for reading");
    volume.down(&node, &[&target]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_filesystem_that_was_switched_to_reading_only_is_not_published_for_writing() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs"] {
        let volume = rig.volume(least_bytes(kind));
        let target = volume.target("a");
        node.stage(volume.stage(access(kind))).expect("stage");
        leave_words(kind, &volume.staging);
        // Make the filesystem itself read-only, as an error does, and not the mount.
        let context = fspick(CWD, &volume.staging, FsPickFlags::FSPICK_CLOEXEC).expect("fspick");
        fsconfig_set_flag(&context, "ro").expect("fsconfig");
        fsconfig_reconfigure(&context).expect("fsconfig");
        drop(context);
        expect_no_writer(&rig, &volume, kind);
        node.publish(volume.publish_read_only(&target, access(kind)))
            .expect("publish for reading");
        expect_words(kind, &target);
        volume.down(&node, &[&target]);
    }
}

/// Checks that the first attempt is refused like the second, and leaves nothing behind.
#[track_caller]
fn expect_no_writer(rig: &Rig, volume: &Volume, kind: &str) {
    let target = volume.target("writes");
    for _ in 0..2 {
        let answer = rig.node().publish(volume.publish(&target, access(kind)));
        refused(answer, Code::FailedPrecondition);
        assert!(!target.exists(), "the refused target was left");
    }
}

/// An operator confused two directories.
#[test]
#[ignore = "needs root: make test"]
fn a_mount_of_another_volume_over_a_staging_path_is_not_called_a_file_that_was_replaced() {
    let rig = Rig::new();
    let node = rig.node();
    let [volume, other] = ["ext4"; 2].map(|kind| rig.volume(least_bytes(kind)));
    for volume in [&volume, &other] {
        node.stage(volume.stage(access("ext4"))).expect("stage");
    }
    mount_bind(&other.staging, &volume.staging).expect("bind");
    let publish = volume.publish(&volume.target("a"), access("ext4"));
    let words = ["is not mounted at", &volume.id];
    refused_with(node.publish(publish), Code::FailedPrecondition, &words);
    unmount(&volume.staging, UnmountFlags::NOFOLLOW).expect("umount");
    for volume in [&volume, &other] {
        volume.down(&node, &[]);
    }
}
