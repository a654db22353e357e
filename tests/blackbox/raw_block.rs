//! Raw devices: bound as long as they are staged, and never visible to another volume's pod.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use rustix::mount::{UnmountFlags, unmount};

use crate::rig::{Chance, NodeCalls, Rig, Volume, access, least_bytes, retried, until, with_mode};

#[test]
#[ignore = "needs root: make test"]
fn a_raw_device_is_bound_as_long_as_it_is_staged_and_no_longer() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    node.stage(volume.stage(access("block"))).expect("stage");
    let loops = rig.test_dir().loops();
    assert_eq!(loops.len(), 1, "{loops:?}");
    assert_eq!(loops[0].file, volume.file);
    let autoclear = format!("/sys/block/loop{}/loop/autoclear", loops[0].number);
    let autoclear = fs::read_to_string(autoclear).expect("sysfs");
    assert_eq!(
        autoclear.trim(),
        "0",
        "the last close would free it under the pod"
    );
    drop(File::open(volume.device()).expect("open"));
    assert_eq!(rig.test_dir().loops(), loops, "a pod's last close freed it");
    volume.down(&node, &[]);
    until("the device is unbound", || {
        rig.test_dir().loops().is_empty()
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_device_for_readers_takes_no_writes() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    volume.write(0, b"kept");
    let usage = with_mode(access("block"), Mode::SingleNodeReaderOnly);
    let target = volume.target("a");
    node.stage(volume.stage(usage.clone())).expect("stage");
    node.publish(volume.publish(&target, usage))
        .expect("publish");
    let written = File::options()
        .write(true)
        .open(&target)
        .and_then(|device| {
            device
                .write_all_at(b"gone", 0)
                .and_then(|()| device.sync_all())
        });
    assert!(written.is_err(), "a write went through");
    let mut found = [0; 4];
    File::open(&target)
        .and_then(|device| device.read_exact_at(&mut found, 0))
        .expect("read");
    assert_eq!(&found, b"kept");
    volume.down(&node, &[&target]);
    assert_eq!(volume.read(0, 4), b"kept");
}

/// A volume with its expected data and its current state.
struct Model {
    volume: Volume,
    bytes: Vec<u8>,
    staged: bool,
    published: bool,
}

/// The offsets to compare, spread over the device, in bytes.
const OFFSETS: [u64; 3] = [0, 4096 * 7, (16 << 20) - 512];

impl Model {
    /// Makes one step in a random direction; every byte that is read must be the volume's own.
    fn step(&mut self, node: &NodeCalls, chance: &mut Chance) {
        let (volume, target) = (&self.volume, self.volume.target("a"));
        match (self.staged, self.published, chance.below(3)) {
            (false, _, _) => {
                node.stage(volume.stage(access("block"))).expect("stage");
                self.staged = true;
            }
            (true, false, 0) => {
                node.unstage(volume.unstage()).expect("unstage");
                self.staged = false;
            }
            (true, false, _) => {
                node.publish(volume.publish(&target, access("block")))
                    .expect("publish");
                self.published = true;
            }
            (true, true, 0) => {
                node.unpublish(volume.unpublish(&target))
                    .expect("unpublish");
                self.published = false;
            }
            (true, true, _) => {
                expect_bytes(&target, &self.bytes, &volume.id);
                self.bytes = chance.bytes(512);
                let device = File::options().write(true).open(&target).expect("open");
                for offset in OFFSETS {
                    device.write_all_at(&self.bytes, offset).expect("write");
                }
                device.sync_all().expect("fsync");
            }
        }
        if self.staged {
            expect_bytes(&self.volume.device(), &self.bytes, &self.volume.id);
        }
    }
}

#[track_caller]
fn expect_bytes(path: &Path, bytes: &[u8], id: &str) {
    let device = File::open(path).expect("open");
    for offset in OFFSETS {
        let mut found = vec![0; bytes.len()];
        device.read_exact_at(&mut found, offset).expect("read");
        assert!(
            found == bytes,
            "{id} shows other bytes at {offset} of {}",
            path.display()
        );
    }
}

/// The state is as after a killed unstage; sysfs shows the file of the device as deleted.
#[test]
#[ignore = "needs root: make test"]
fn a_device_left_bound_to_a_file_that_was_removed_and_linked_back_is_taken_over() {
    let mut rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    node.stage(volume.stage(access("block"))).expect("stage");
    rig.kill();
    unmount(volume.device(), UnmountFlags::empty()).expect("umount");
    let linked = rig.test_dir().directory("aside").join(&volume.id);
    fs::hard_link(&volume.file, &linked).expect("link");
    fs::remove_file(&volume.file).expect("unlink");
    // While the file is missing, the start releases nothing.
    rig.start();
    fs::hard_link(&linked, &volume.file).expect("link");
    fs::remove_file(&linked).expect("unlink");
    // The start may still be working on the device that was left.
    retried("it is staged", || node.stage(volume.stage(access("block"))));
    until("it has one device", || rig.test_dir().loops().len() == 1);
    volume.down(&node, &[]);
    until("nothing is bound", || rig.test_dir().loops().is_empty());
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_never_see_each_others_bytes_however_they_come_and_go() {
    let mut rig = Rig::new();
    let node = rig.node();
    let mut chance = Chance::new("volumes_never_see_each_others_bytes");
    let mut models: Vec<Model> = (0..3)
        .map(|_| Model {
            volume: rig.volume(least_bytes("block")),
            bytes: vec![0; 512],
            staged: false,
            published: false,
        })
        .collect();
    for step in 0..200 {
        let at = *chance.pick(&[0, 1, 2]);
        models[at].step(&node, &mut chance);
        if step % 40 == 39 {
            rig.restart();
        }
    }
    for model in models {
        model.volume.down(&node, &[&model.volume.target("a")]);
        for offset in OFFSETS {
            assert!(
                model.volume.read(offset, 512) == model.bytes,
                "{}",
                model.volume.id
            );
        }
    }
}
