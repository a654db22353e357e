//! A raw device whose bind lies beneath another mount: no path shows it, and whatever has the
//! device open, or looks beneath that mount later, must never meet another volume there.

use std::fs;
use std::path::{Path, PathBuf};

use tonic::Code;

use crate::forgotten::Bed;
use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{Rig, Volume, access, least_bytes, refused_with, run, until};

/// A tmpfs over a folder, until this is dropped.
struct Cover(PathBuf);

impl Cover {
    fn over(folder: &Path) -> Self {
        run("mount", &["-t", "tmpfs", "cover", text(folder)]);
        Cover(folder.to_owned())
    }
}

impl Drop for Cover {
    fn drop(&mut self) {
        run("umount", &[text(&self.0)]);
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
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
    let bound = rig.place().loops();
    bound.iter().any(|it| it.file == volume.file)
}

/// A volume is published; its staging was taken back by hand, as by a kubelet that lost its state,
/// and its target lies beneath another mount.
fn covered(rig: &Rig, volume: &Volume, target: &Path) -> Cover {
    up(rig, volume, target);
    leave_words("block", target);
    run("umount", &[text(&volume.device())]);
    fs::remove_file(volume.device()).expect("unlink");
    Cover::over(parent(target))
}

/// Another volume comes up and writes; what lies beneath the cover is not it.
fn another_is_elsewhere(rig: &Rig, target: &Path, cover: Cover) {
    let (node, other) = (rig.node(), rig.volume(least_bytes("block")));
    let seen = other.target("a");
    up(rig, &other, &seen);
    fs::write(&seen, vec![0xff; 1 << 16]).expect("write");
    drop(cover);
    expect_words("block", target);
    other.down(&node, &[&seen]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_start_frees_no_device_whose_bind_lies_beneath_another_mount() {
    let mut rig = Rig::new();
    let volume = rig.volume(least_bytes("block"));
    let target = volume.target("disk");
    let cover = covered(&rig, &volume, &target);
    rig.restart();
    // A start that frees it has done so by then: devices are looked through in their order.
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
fn what_lies_beneath_another_mount_is_not_taken_for_unpublished() {
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
        let words = [text(&target), "beneath another mount"];
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
fn a_pending_detach_frees_no_device_whose_bind_lies_beneath_another_mount() {
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
        assert_eq!(bed.detach(&volume).unwrap_err().code(), Code::Aborted);
        // What came before this is over when this is.
        bed.is_detached_in_the_end(&last);
        assert!(is_bound(&bed.rig, &volume), "restarted: {restarted}");
        assert_eq!(bed.detach(&volume).unwrap_err().code(), Code::Aborted);
        drop(cover);
        expect_words("block", &target);
        // The look at the pending detach is a job of the volume's.
        let node = bed.rig.node();
        until("it is unpublished", || {
            node.unpublish(volume.unpublish(&target)).is_ok()
        });
        volume.down(&node, &[]);
        bed.detach(&volume).expect("detach");
        bed.end(&[volume, last]);
    }
}
