//! A raw device that is bound out of sight: under another mount, or at a path that no request
//! named. A process that has it open, or opens it there later, must never get another volume.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use tonic::Code;

use crate::forgotten::Bed;
use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{Rig, Volume, access, least_bytes, refused_with, run, text, until};

/// A tmpfs mounted over a directory, until this is dropped.
struct Cover(PathBuf);

impl Cover {
    fn over(directory: &Path) -> Self {
        run("mount", &["-t", "tmpfs", "cover", text(directory)]);
        Cover(directory.to_owned())
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        run("umount", &[text(&self.0)]);
    }
}

/// A bind mount of one path on a new file or directory, until this is dropped.
struct Bind(PathBuf);

impl Bind {
    fn of(source: &Path, at: &Path) -> Self {
        if !at.exists() {
            fs::write(at, "").expect("create");
        }
        run("mount", &["--bind", text(source), text(at)]);
        Bind(at.to_owned())
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        run("umount", &[text(&self.0)]);
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().expect("a parent")
}

fn up(rig: &Rig, volume: &Volume, target: &Path) {
    let node = rig.node();
    node.stage(volume.stage(access("block"))).expect("stage");
    node.publish(volume.publish(target, access("block")))
        .expect("publish");
}

fn is_bound(rig: &Rig, volume: &Volume) -> bool {
    let bound = rig.test_dir().loops();
    bound.iter().any(|it| it.file == volume.file)
}

/// Publishes a volume, removes its staging mount by hand, as if by a kubelet that lost its state,
/// and covers its target with another mount.
fn covered(rig: &Rig, volume: &Volume, target: &Path) -> Cover {
    up(rig, volume, target);
    leave_words("block", target);
    run("umount", &[text(&volume.device())]);
    fs::remove_file(volume.device()).expect("unlink");
    Cover::over(parent(target))
}

/// Brings up another volume and writes to it; the path under the cover, or the target, must not
/// show that volume.
fn another_is_elsewhere<T>(rig: &Rig, target: &Path, cover: T) {
    let (node, other) = (rig.node(), rig.volume(least_bytes("block")));
    let seen = other.target("a");
    up(rig, &other, &seen);
    fs::write(&seen, vec![0xff; 1 << 16]).expect("write");
    drop(cover);
    expect_words("block", target);
    other.down(&node, &[&seen]);
}

/// Checks that the volume is not unstaged while its device is bound at `shown`, however often
/// unstage is called.
fn stays_bound(rig: &Rig, volume: &Volume, shown: &Path) {
    let node = rig.node();
    for _ in 0..2 {
        let answer = node.unstage(volume.unstage());
        refused_with(answer, Code::FailedPrecondition, &[text(shown)]);
        assert!(is_bound(rig, volume));
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_target_that_was_named_by_a_link_and_is_under_another_mount_keeps_its_device() {
    for restarted in [false, true] {
        let mut rig = Rig::new();
        let volume = rig.volume(least_bytes("block"));
        let shown = volume.target("pod").join("disk");
        fs::create_dir(parent(&shown)).expect("mkdir");
        let link = rig.test_dir().path().join("link");
        symlink(parent(parent(&shown)), &link).expect("symlink");
        let target = link.join("pod/disk");
        up(&rig, &volume, &target);
        leave_words("block", &target);
        let cover = Cover::over(parent(&shown));
        if restarted {
            rig.restart();
        }
        // The path does not show the mount, and the mount table lists it under another name.
        let answer = rig.node().unpublish(volume.unpublish(&target));
        refused_with(answer, Code::FailedPrecondition, &["another mount"]);
        stays_bound(&rig, &volume, &shown);
        another_is_elsewhere(&rig, &shown, cover);
        volume.down(&rig.node(), &[&target]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_bind_of_a_target_that_no_request_named_keeps_the_device_from_being_freed() {
    for is_shared in [false, true] {
        let rig = Rig::new();
        let volume = rig.volume(least_bytes("block"));
        let target = volume.target("disk");
        let pods = parent(&target);
        let shared = is_shared.then(|| shared(pods));
        up(&rig, &volume, &target);
        leave_words("block", &target);
        // The kubelet creates a separate one for each pod.
        let shown = volume.target("kubelet");
        let bind = Bind::of(&target, &shown);
        let node = rig.node();
        node.unpublish(volume.unpublish(&target))
            .expect("unpublish");
        stays_bound(&rig, &volume, &shown);
        // The volume is still staged as before.
        node.stage(volume.stage(access("block"))).expect("stage");
        let answer = node.stage(volume.stage(access("ext4")));
        refused_with(answer, Code::AlreadyExists, &["staged"]);
        stays_bound(&rig, &volume, &shown);
        another_is_elsewhere(&rig, &shown, ());
        drop(bind);
        volume.down(&node, &[]);
        drop(shared);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_target_whose_directory_was_renamed_keeps_its_device_from_being_freed() {
    let rig = Rig::new();
    let volume = rig.volume(least_bytes("block"));
    let target = volume.target("pod").join("disk");
    fs::create_dir(parent(&target)).expect("mkdir");
    up(&rig, &volume, &target);
    leave_words("block", &target);
    let shown = volume.target("old").join("disk");
    fs::rename(parent(&target), parent(&shown)).expect("rename");
    let node = rig.node();
    node.unpublish(volume.unpublish(&target))
        .expect("unpublish");
    stays_bound(&rig, &volume, &shown);
    another_is_elsewhere(&rig, &shown, ());
    volume.down(&node, &[&shown]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_bind_of_a_staged_device_on_a_shared_mount_keeps_the_device_from_being_freed() {
    for restarted in [false, true] {
        let mut rig = Rig::new();
        let volume = rig.volume(least_bytes("block"));
        let shared = shared(parent(&volume.staging));
        let node = rig.node();
        node.stage(volume.stage(access("block"))).expect("stage");
        leave_words("block", &volume.device());
        let shown = volume.target("bind");
        let bind = Bind::of(&volume.device(), &shown);
        if restarted {
            rig.restart();
        }
        stays_bound(&rig, &volume, &shown);
        another_is_elsewhere(&rig, &shown, ());
        drop(bind);
        volume.down(&rig.node(), &[]);
        drop(shared);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_whose_file_was_replaced_stays_staged_while_it_is_bound_elsewhere() {
    let rig = Rig::new();
    let volume = rig.volume(least_bytes("block"));
    let target = volume.target("disk");
    up(&rig, &volume, &target);
    leave_words("block", &target);
    let shown = volume.target("bind");
    let bind = Bind::of(&target, &shown);
    let node = rig.node();
    node.unpublish(volume.unpublish(&target))
        .expect("unpublish");
    let aside = volume.file.with_extension("aside");
    fs::rename(&volume.file, &aside).expect("rename");
    for _ in 0..2 {
        let answer = node.unstage(volume.unstage());
        refused_with(answer, Code::FailedPrecondition, &[text(&shown)]);
    }
    another_is_elsewhere(&rig, &shown, ());
    drop(bind);
    volume.down(&node, &[]);
    until("nothing is bound", || rig.test_dir().loops().is_empty());
}

/// Makes the directory a shared mount.
fn shared(directory: &Path) -> Bind {
    let bind = Bind::of(directory, directory);
    run("mount", &["--make-shared", text(directory)]);
    bind
}

#[test]
#[ignore = "needs root: make test"]
fn a_start_frees_no_device_whose_bind_is_under_another_mount() {
    let mut rig = Rig::new();
    let volume = rig.volume(least_bytes("block"));
    let target = volume.target("disk");
    let cover = covered(&rig, &volume, &target);
    rig.restart();
    // If the start released the device, that has happened by now: it inspects devices in order.
    let left = rig.volume(least_bytes("block"));
    rig.node()
        .stage(left.stage(access("block")))
        .expect("stage");
    rig.kill();
    run("umount", &[text(&left.device())]);
    rig.start();
    until("what was left bound is freed", || !is_bound(&rig, &left));
    assert!(is_bound(&rig, &volume));
    another_is_elsewhere(&rig, &target, cover);
    volume.down(&rig.node(), &[&target]);
    left.down(&rig.node(), &[]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_target_under_another_mount_is_not_mistaken_for_unpublished() {
    for restarted in [false, true] {
        let mut rig = Rig::new();
        let volume = rig.volume(least_bytes("block"));
        let target = volume.target("disk");
        up(&rig, &volume, &target);
        leave_words("block", &target);
        let cover = Cover::over(parent(&target));
        if restarted {
            rig.restart();
        }
        let node = rig.node();
        let words = [text(&target), "another mount"];
        for _ in 0..2 {
            let answer = node.unpublish(volume.unpublish(&target));
            refused_with(answer, Code::FailedPrecondition, &words);
            let answer = node.publish(volume.publish(&target, access("block")));
            refused_with(answer, Code::FailedPrecondition, &words);
            let answer = node.unstage(volume.unstage());
            refused_with(answer, Code::FailedPrecondition, &[text(&target)]);
        }
        another_is_elsewhere(&rig, &target, cover);
        volume.down(&node, &[&target]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_pending_deletion_frees_no_device_whose_bind_is_under_another_mount() {
    for restarted in [false, true] {
        let mut bed = Bed::new();
        let (volume, last) = (bed.volume("block"), bed.volume("ext4"));
        let target = volume.target("disk");
        let cover = covered(&bed.rig, &volume, &target);
        if restarted {
            bed.rig.restart();
        }
        let node = bed.rig.node();
        node.stage(last.stage(access("ext4"))).expect("stage");
        bed.is_found_mounted(&volume);
        // All work for earlier claims is finished when this call returns.
        bed.is_unstaged_in_the_end(&last);
        assert!(is_bound(&bed.rig, &volume), "restarted: {restarted}");
        drop(cover);
        expect_words("block", &target);
        // The agent checks the claim in a job of the volume, which may still be in progress.
        let node = bed.rig.node();
        until("it is unpublished", || {
            node.unpublish(volume.unpublish(&target)).is_ok()
        });
        volume.down(&node, &[]);
        bed.end(&[volume, last]);
    }
}
