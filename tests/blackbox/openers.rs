//! A file that another process has open: staging it could mount two filesystems on one file, or
//! give it two writers.

use std::fs::File;
use std::path::Path;

use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    Disk, Rig, TestDir, Volume, access, bind_loop, least_bytes, refused_with, run, until, with_mode,
};

/// A process that has the file open, until this is dropped.
enum Opener {
    File(#[expect(dead_code, reason = "it is held, not used")] File),
    Loop(String),
}

impl Drop for Opener {
    fn drop(&mut self) {
        if let Opener::Loop(device) = self {
            run("losetup", &["--detach", device]);
        }
    }
}

/// Opens the file in another process in one of these ways.
fn open(how: &str, file: &Path) -> Opener {
    let opened = match how {
        "reader" => File::open(file),
        "writer" => File::options().read(true).write(true).open(file),
        _ => {
            return Opener::Loop(bind_loop(file));
        }
    };
    Opener::File(opened.expect("open"))
}

/// Runs `test` with volumes on each filesystem that can detect an opener.
fn on_each(test: impl Fn(&mut Rig)) {
    for filesystem in ["ext4", "xfs", "btrfs"] {
        let test_dir = TestDir::new();
        let disk = Disk::new(&test_dir, filesystem, "disk-mounted");
        let mut rig = Rig::with_volumes_in(test_dir, disk.path().to_owned());
        test(&mut rig);
        rig.kill();
        disk.unmount();
    }
}

/// Fails unless the stage is refused because of the opener, and succeeds without it.
fn expect_wait(rig: &Rig, volume: &Volume, kind: &str, how: &str) {
    let opener = open(how, &volume.file);
    let loops = rig.test_dir().loops();
    let before = volume.contents();
    let file = volume.file.to_str().expect("UTF-8");
    let answer = rig.node().stage(volume.stage(access(kind)));
    refused_with(answer, Code::Aborted, &[file, "fuser"]);
    before.expect_unchanged(&volume.file, &format!("{kind} with a {how}"));
    until("its device is unbound", || rig.test_dir().loops() == loops);
    drop(opener);
    rig.node()
        .stage(volume.stage(access(kind)))
        .unwrap_or_else(|status| panic!("{kind} without the {how}: {status}"));
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_that_another_process_has_open_is_staged_once_that_is_closed() {
    on_each(|rig| {
        for kind in ["ext4", "block"] {
            let volume = rig.volume(least_bytes(kind));
            for (round, how) in ["writer", "reader", "loop device"].iter().enumerate() {
                expect_wait(rig, &volume, kind, how);
                let target = volume.target("a");
                rig.node()
                    .publish(volume.publish(&target, access(kind)))
                    .expect("publish");
                match round {
                    0 => leave_words(kind, &target),
                    _ => expect_words(kind, &target),
                }
                volume.down(&rig.node(), &[&target]);
            }
        }
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_staged_volume_may_be_staged_again_while_its_file_is_read() {
    on_each(|rig| {
        for kind in ["ext4", "block"] {
            let volume = rig.volume(least_bytes(kind));
            let stage = |rig: &Rig| {
                rig.node()
                    .stage(volume.stage(access(kind)))
                    .expect("stage again");
            };
            stage(rig);
            let reader = open("reader", &volume.file);
            stage(rig);
            rig.restart();
            stage(rig);
            volume.down(&rig.node(), &[]);
            drop(reader);
        }
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_for_reading_waits_for_writers_alone() {
    on_each(|rig| {
        let volume = rig.volume(least_bytes("block"));
        let stage = || {
            let usage = with_mode(access("block"), Mode::SingleNodeReaderOnly);
            rig.node().stage(volume.stage(usage))
        };
        let writer = open("writer", &volume.file);
        refused_with(stage(), Code::Aborted, &["fuser"]);
        drop(writer);
        let reader = open("reader", &volume.file);
        stage().expect("stage next to a reader");
        volume.down(&rig.node(), &[]);
        drop(reader);
    });
}
