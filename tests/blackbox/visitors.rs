//! Other programs also open block devices: udevd opens each one for a moment as soon as it is
//! bound. This must neither fail a call nor leave anything behind.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::rig::{Rig, TestDir, access, least_bytes, pause};

/// The length of a visit, in pauses of a few milliseconds.
const VISIT_PAUSES: u32 = 5;
const ROUNDS: u32 = 10;

/// Opens every device of the test directory as it appears, reads a little, and closes it.
fn visit(test_dir: &TestDir, is_over: &AtomicBool) {
    let mut seen = BTreeSet::new();
    while !is_over.load(Ordering::Relaxed) {
        let bound: BTreeSet<_> = test_dir.loops().into_iter().collect();
        for device in bound.difference(&seen) {
            // The device may already be unbound again, and unreadable.
            let Ok(node) = File::open(format!("/dev/loop{}", device.number)) else {
                continue;
            };
            drop(node.read_at(&mut [0; 4096], 0));
            for _ in 0..VISIT_PAUSES {
                pause();
            }
        }
        seen = bound;
        pause();
    }
}

/// Ends the visits when this is dropped, even if the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_others_open_for_a_moment_fails_no_call() {
    let rig = Rig::new();
    let node = rig.node();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let end = End(&is_over);
        scope.spawn(|| visit(rig.test_dir(), &is_over));
        let mut failed = Vec::new();
        for kind in ["ext4", "xfs", "btrfs", "block"] {
            for round in 0..ROUNDS {
                let volume = rig.volume(least_bytes(kind));
                let target = volume.target("a");
                let mut note = |call, answer: Result<(), tonic::Status>| {
                    if let Err(status) = answer {
                        failed.push(format!("{kind}, round {round}, {call}: {status}"));
                    }
                };
                note(
                    "blank stage",
                    node.stage(volume.stage(access(kind))).map(drop),
                );
                note("unstage", node.unstage(volume.unstage()).map(drop));
                note("stage", node.stage(volume.stage(access(kind))).map(drop));
                let publish = volume.publish(&target, access(kind));
                note("publish", node.publish(publish).map(drop));
                note(
                    "unpublish",
                    node.unpublish(volume.unpublish(&target)).map(drop),
                );
                note("unstage", node.unstage(volume.unstage()).map(drop));
            }
        }
        drop(end);
        assert!(failed.is_empty(), "{} failed: {failed:#?}", failed.len());
    });
}
