//! Read-only volumes: shown completely, and never changed by formatting.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::rig::{Rig, access, least_bytes, refused, with_mode};

const FILES: u32 = 100;

#[test]
#[ignore = "needs root: make test"]
fn a_reader_of_a_crashed_filesystem_sees_every_file_that_was_synced() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs"] {
        let original = rig.volume(least_bytes(kind));
        let target = original.target("a");
        node.stage(original.stage(access(kind))).expect("stage");
        node.publish(original.publish(&target, access(kind)))
            .expect("publish");
        for n in 0..FILES {
            synced(&target.join(n.to_string()), n);
        }
        // The copy is in the state after a power loss.
        let crashed = rig.copy_of(&original.file);
        if kind == "ext4" {
            assert!(
                needs_recovery(&crashed.read(1024 + 0x60, 4)),
                "the journal is not dirty"
            );
        }
        let usage = with_mode(access(kind), Mode::SingleNodeReaderOnly);
        let reader = crashed.target("a");
        node.stage(crashed.stage(usage.clone()))
            .expect("stage a dirty filesystem read-only");
        node.publish(crashed.publish(&reader, usage))
            .expect("publish");
        for n in 0..FILES {
            let text = fs::read_to_string(reader.join(n.to_string()));
            assert_eq!(text.ok(), Some(n.to_string()), "{kind}: file {n}");
        }
        let error = fs::write(reader.join("more"), "x").expect_err("a write for a reader");
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        crashed.down(&node, &[&reader]);
        original.down(&node, &[&target]);
    }
}

fn synced(path: &Path, number: u32) {
    let mut file = File::create(path).expect("create");
    file.write_all(number.to_string().as_bytes())
        .expect("write");
    file.sync_all().expect("fsync");
}

/// Whether the journal must be replayed: `s_feature_incompat` of ext4 then has the bit RECOVER, 4.
fn needs_recovery(feature_incompat: &[u8]) -> bool {
    feature_incompat[0] & 4 != 0
}

#[test]
#[ignore = "needs root: make test"]
fn a_blank_volume_is_not_formatted_for_a_reader() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let usage = with_mode(access("ext4"), Mode::SingleNodeReaderOnly);
    refused(node.stage(volume.stage(usage)), Code::FailedPrecondition);
    assert!(volume.contents().is_blank(), "something was written");
}
