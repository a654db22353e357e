//! A foreign loop device whose storage does not respond: the agent does not query it, neither at
//! start nor when it searches for a device that a crash left bound.

use std::process::Command;

use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{Fuse, NodeCalls, Rig, TestDir, Volume, access, bind_loop, least_bytes, until};

const FILE: &str = "foreign.img";

/// The device, bound and hung. When this is dropped, its storage is ended and it is unbound.
struct Foreigner {
    device: String,
    fuse: Option<Fuse>,
}

impl Foreigner {
    fn new(test_dir: &TestDir) -> Self {
        let mut fuse = Fuse::mount(test_dir, FILE);
        let file = fuse.point().join(FILE);
        let device = bind_loop(&file);
        // The mount table then contains a loop device at a path that cannot be resolved.
        mount_bind(&device, &file).expect("mount --bind");
        fuse.silence();
        let fuse = Some(fuse);
        Foreigner { device, fuse }
    }
}

impl Drop for Foreigner {
    fn drop(&mut self) {
        drop(self.fuse.take());
        // The device's path is no longer below a test directory, so no cleanup would find it.
        let detached = Command::new("losetup")
            .args(["--detach", &self.device])
            .status();
        assert!(
            detached.is_ok_and(|status| status.success()) || std::thread::panicking(),
            "{} stays bound",
            self.device
        );
    }
}

fn lives(node: &NodeCalls, volume: &Volume, kind: &str) {
    let target = volume.target("a");
    // The start releases devices in a job of the volume, so the first call may have to be repeated.
    until("the volume is staged", || {
        let answer = node.stage(volume.stage(access(kind)));
        let is_over = !answer.as_ref().is_err_and(|it| it.code() == Code::Aborted);
        if is_over {
            answer.expect("stage");
        }
        is_over
    });
    node.publish(volume.publish(&target, access(kind)))
        .expect("publish");
    leave_words(kind, &target);
    expect_words(kind, &target);
    node.stats(volume.stats(&target)).expect("stats");
    volume.down(node, &[&target]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_foreign_device_whose_storage_hangs_stops_no_start_and_no_volume() {
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    let foreigner = Foreigner::new(&test_dir);
    let mut rig = Rig::with_volumes_in(test_dir, volumes);
    for kind in ["ext4", "block"] {
        lives(&rig.node(), &rig.volume(least_bytes(kind)), kind);
    }
    rig.restart();
    lives(&rig.node(), &rig.volume(least_bytes("ext4")), "ext4");
    drop(foreigner);
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_a_crash_left_bound_is_found_beside_one_that_hangs() {
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    let foreigner = Foreigner::new(&test_dir);
    let mut rig = Rig::with_volumes_in(test_dir, volumes);
    let volume = rig.volume(least_bytes("block"));
    let node = rig.node();
    let leave_bound = || {
        node.stage(volume.stage(access("block"))).expect("stage");
        unmount(volume.device(), UnmountFlags::NOFOLLOW).expect("umount");
        assert_eq!(ours(&rig, &volume), 1);
    };
    // The state is as after a crash between the bind of the device and its mount.
    leave_bound();
    lives(&node, &volume, "block");
    leave_bound();
    node.unstage(volume.unstage()).expect("unstage");
    until("the device is unbound", || ours(&rig, &volume) == 0);
    leave_bound();
    rig.restart();
    until("the start has freed the device", || {
        ours(&rig, &volume) == 0
    });
    lives(&rig.node(), &volume, "block");
    drop(foreigner);
}

/// Returns the number of devices that are bound to the volume's file.
fn ours(rig: &Rig, volume: &Volume) -> usize {
    let bound = rig.test_dir().loops();
    bound.iter().filter(|it| it.file == volume.file).count()
}
