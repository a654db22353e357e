//! Copies of one filesystem on one node: all have its id, and each must show its own files.

use std::fs;

use tonic::Code;

use crate::rig::{Rig, access, least_bytes, refused};

#[test]
#[ignore = "needs root: make test"]
fn copies_of_one_filesystem_that_are_staged_together_show_their_own_files() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs"] {
        let original = rig.volume(least_bytes(kind));
        node.stage(original.stage(access(kind))).expect("stage");
        original.down(&node, &[]);
        let mut volumes = vec![rig.copy_of(&original.file), rig.copy_of(&original.file)];
        volumes.insert(0, original);
        for volume in &mut volumes {
            volume.content = "populated";
        }
        let targets: Vec<_> = volumes.iter().map(|volume| volume.target("a")).collect();
        for (volume, target) in volumes.iter().zip(&targets) {
            node.stage(volume.stage(access(kind))).expect("stage");
            let publish = volume.publish(target, access(kind));
            node.publish(publish).expect("publish");
            fs::write(target.join("whose"), &volume.id).expect("write");
        }
        rig.restart();
        for (volume, target) in volumes.iter().zip(&targets) {
            let whose = fs::read_to_string(target.join("whose")).expect("read");
            assert_eq!(whose, volume.id, "{kind}");
            node.stage(volume.stage(access(kind))).expect("stage again");
            refused(node.unstage(volume.unstage()), Code::FailedPrecondition);
            // What is mounted there is a copy, and not this volume.
            let other = volumes.iter().find(|other| other.id != volume.id);
            let mut astray = other.expect("another").unpublish(target);
            refused(node.unpublish(astray.clone()), Code::FailedPrecondition);
            astray.volume_id.clone_from(&volume.id);
            node.unpublish(astray).expect("unpublish");
        }
        // In the order in which they came, so that each leaves while others stay.
        for volume in &volumes {
            volume.down(&node, &[]);
            node.stage(volume.stage(access(kind))).expect("stage anew");
            let whose = fs::read_to_string(volume.staging.join("whose")).expect("read");
            assert_eq!(whose, volume.id, "{kind}");
            volume.down(&node, &[]);
        }
    }
}
