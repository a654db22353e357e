//! The directory of volumes on each supported filesystem. The agent depends on two of the
//! filesystem's features: a file's device number, which identifies volumes, and the map of data,
//! which proves them blank.

use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{Disk, Rig, TestDir, access, least_bytes, refused};

/// Creates a disk with this filesystem and runs `act` with a rig whose volumes are on it.
fn on(host: &str, act: impl FnOnce(&mut Rig)) {
    let test_dir = TestDir::new();
    let disk = Disk::new(&test_dir, host, "disk-mounted");
    let mut rig = Rig::with_volumes_in(test_dir, disk.path().to_owned());
    act(&mut rig);
    rig.kill();
    disk.unmount();
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_live_on_every_filesystem_that_can_hold_their_files() {
    for host in ["ext4", "xfs", "btrfs"] {
        on(host, |rig| {
            for kind in ["ext4", "xfs", "btrfs", "block"] {
                let volume = rig.volume(least_bytes(kind));
                let target = volume.target("a");
                let node = rig.node();
                node.stage(volume.stage(access(kind))).expect("stage");
                let publish = volume.publish(&target, access(kind));
                node.publish(publish.clone()).expect("publish");
                leave_words(kind, &target);
                rig.restart();
                node.stage(volume.stage(access(kind))).expect("stage again");
                node.publish(publish).expect("publish again");
                refused(node.unstage(volume.unstage()), Code::FailedPrecondition);
                expect_words(kind, &target);
                volume.down(&node, &[&target]);
                node.stage(volume.stage(access(kind))).expect("stage again");
                volume.down(&node, &[]);
            }
        });
    }
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_may_lie_in_the_directory_of_the_socket() {
    let test_dir = TestDir::new();
    let directory = test_dir.path().to_owned();
    let mut rig = Rig::with_volumes_in(test_dir, directory);
    let volume = rig.volume(least_bytes("ext4"));
    rig.node()
        .stage(volume.stage(access("ext4")))
        .expect("stage");
    rig.restart();
    volume.down(&rig.node(), &[]);
}
