//! The disk with the volumes' files has shut down under them: everything can still be taken down,
//! so that the disk can be unmounted and repaired; and no other volume is staged.

use std::fs::{self, File};
use std::path::Path;

use tonic::Code;

use crate::rig::{
    Disk, Rig, TestDir, Volume, access, bind_loop, least_bytes, refused_with, run, until,
};

/// Shuts the filesystem down with `XFS_IOC_GOINGDOWN` (fs/xfs/libxfs/xfs_fs.h), which ext4 also
/// supports.
fn shut_down(disk: &Path) {
    let disk = disk.to_str().expect("UTF-8");
    run("xfs_io", &["-x", "-c", "shutdown", disk]);
}

/// The volumes of a test, one of each requested kind.
struct Up {
    rig: Rig,
    disk: Disk,
    volumes: Vec<(&'static str, Volume)>,
}

impl Up {
    fn new(filesystem: &str) -> Self {
        let test_dir = TestDir::new();
        let disk = Disk::new(&test_dir, filesystem, "disk-mounted");
        let rig = Rig::with_volumes_in(test_dir, disk.path().to_owned());
        let kinds = ["ext4", "xfs", "btrfs", "block"];
        let volumes = kinds.map(|kind| (kind, rig.volume(least_bytes(kind))));
        let volumes = volumes.into();
        Up { rig, disk, volumes }
    }

    fn stage(&self) {
        let node = self.rig.node();
        for (kind, volume) in &self.volumes {
            node.stage(volume.stage(access(kind))).expect("stage");
        }
    }

    fn publish(&self) {
        let node = self.rig.node();
        for (kind, volume) in &self.volumes {
            let target = volume.target("a");
            let request = volume.publish(&target, access(kind));
            node.publish(request).expect("publish");
        }
    }

    fn disk_dies(&self) {
        shut_down(self.disk.path());
    }

    /// Checks that only the disk's own device is still bound, and that it can be released once the
    /// agent has ended.
    fn end(mut self) {
        until("only the disk is on a loop device", || {
            self.rig.test_dir().loops().len() == 1
        });
        self.rig.kill();
        self.disk.unmount();
    }
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_on_a_disk_that_has_shut_itself_down_can_be_unpublished_and_unstaged() {
    for filesystem in ["xfs", "ext4"] {
        for is_restarted in [false, true] {
            let mut up = Up::new(filesystem);
            up.stage();
            up.publish();
            if is_restarted {
                up.rig.restart();
            }
            up.disk_dies();
            for (kind, volume) in &up.volumes {
                let what = format!("{kind} on {filesystem}, restarted: {is_restarted}");
                let (node, target) = (up.rig.node(), volume.target("a"));
                // A target that is still published keeps the device.
                refused_with(
                    node.unstage(volume.unstage()),
                    Code::FailedPrecondition,
                    &["still published"],
                );
                node.unpublish(volume.unpublish(&target))
                    .unwrap_or_else(|status| panic!("{what}: unpublish: {status}"));
                node.unstage(volume.unstage())
                    .unwrap_or_else(|status| panic!("{what}: unstage: {status}"));
                node.unstage(volume.unstage()).expect("unstage again");
            }
            up.end();
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_that_is_not_staged_is_unstaged_on_a_dead_disk_only_without_a_device() {
    for filesystem in ["xfs", "ext4"] {
        let up = Up::new(filesystem);
        let node = up.rig.node();
        let (_, volume) = &up.volumes[0];
        let (_, raw) = up.volumes.last().expect("a volume");
        node.stage(raw.stage(access("block"))).expect("stage");
        // Created while its file can be inspected.
        let stage = volume.stage(access("ext4"));
        up.disk_dies();
        refused_with(node.stage(stage), Code::Internal, &["EIO"]);
        node.unstage(volume.unstage()).expect("unstage");
        // The volume is staged elsewhere: the device is kept, and the path in the message leads to
        // it.
        let mut elsewhere = raw.clone();
        elsewhere.staging = volume.staging.clone();
        let staged_at = raw.device();
        let words = [staged_at.to_str().expect("UTF-8")];
        refused_with(
            node.unstage(elsewhere.unstage()),
            Code::FailedPrecondition,
            &words,
        );
        node.unstage(raw.unstage()).expect("unstage");
        up.end();
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_of_another_disk_stays_where_it_is_though_its_file_has_the_volumes_name() {
    for filesystem in ["xfs", "ext4"] {
        let up = Up::new(filesystem);
        let (_, volume) = &up.volumes[0];
        let namesake = up.rig.test_dir().directory("other").join(&volume.id);
        fs::copy(&volume.file, &namesake).expect("copy");
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let (device, staged) = (&*bind_loop(&namesake), text(&volume.device()));
        File::create_new(&staged).expect("a file");
        run("mount", &["--bind", device, &staged]);
        up.disk_dies();
        let words = [staged.as_str(), "was left there"];
        let answer = up.rig.node().unstage(volume.unstage());
        refused_with(answer, Code::FailedPrecondition, &words);
        run("umount", &[&staged]);
        up.rig.node().unstage(volume.unstage()).expect("unstage");
        // The device is still bound, since it never belonged to the agent.
        run("losetup", &["--detach", device]);
        up.end();
    }
}
