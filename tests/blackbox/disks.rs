//! Several disks of a node in one driver: each has its own directory, and a disk that is missing or
//! hangs stops only its own volumes.

use std::fs::File;
use std::path::PathBuf;

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    Fuse, NodeCalls, Pages, Process, TestDir, Volume, access, least_bytes, refused_with, until,
};

struct Bed {
    agent: Process,
    test_dir: TestDir,
}

impl Bed {
    /// Starts an agent with these values of `--loop-dir`, whose directories are in the test's.
    fn new(test_dir: TestDir, disks: &[&str]) -> Self {
        let agent = start(&test_dir, disks);
        Bed { agent, test_dir }
    }

    /// Kills the agent, and starts another.
    fn restarted(self, disks: &[&str]) -> Self {
        drop(self.agent);
        Bed::new(self.test_dir, disks)
    }

    fn node(&self) -> NodeCalls {
        NodeCalls::new(socket(&self.test_dir))
    }

    /// Returns a new volume in this directory, with an ID that ends with `name`.
    fn volume(&self, directory: &str, name: &str, kind: &str) -> Volume {
        let volumes = self.test_dir.directory(directory);
        let id = format!("vol-{:016x}-{name}", std::process::id());
        let volume = Volume::made(self.test_dir.path(), &volumes, id);
        let file = File::create_new(&volume.file).expect("a new file");
        file.set_len(least_bytes(kind)).expect("ftruncate");
        volume.mark_new();
        volume
    }
}

fn socket(test_dir: &TestDir) -> PathBuf {
    test_dir.path().join("csi.sock")
}

fn start(test_dir: &TestDir, disks: &[&str]) -> Process {
    let disks = disks.iter().map(|disk| {
        let (name, directory) = disk.split_once('=').unwrap_or(("default", disk));
        format!("{name}={}", test_dir.path().join(directory).display())
    });
    let flags = [
        "--node-id=node-1".to_owned(),
        "--http-endpoint=127.0.0.1:0".to_owned(),
        format!("--loop-dir={}", disks.collect::<Vec<_>>().join(",")),
    ];
    let flags = flags.each_ref().map(String::as_str);
    Process::start(test_dir, "belay-node", &socket(test_dir), &flags)
}

/// Returns a request to stage a volume of this disk.
fn stage(volume: &Volume, disk: &str, kind: &str) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_context: [("disk".to_owned(), disk.to_owned())].into(),
        ..volume.stage(access(kind))
    }
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_of_two_disks_live_in_one_driver_also_if_a_disk_appears_later() {
    const DISKS: [&str; 2] = ["volumes", "fast=disk2"];
    let test_dir = TestDir::new();
    test_dir.directory("volumes");
    let bed = Bed::new(test_dir, &DISKS);
    let pages = Pages::of(&bed.agent);
    let kinds = ["ext4", "block"];
    let first = bed.volume("volumes", "1", kinds[0]);
    // The file of the second volume is created when its disk is there.
    let absent = Volume::made(bed.test_dir.path(), bed.test_dir.path(), "vol-2".to_owned());
    let path = bed.test_dir.path().join("disk2").display().to_string();
    let words = [&*path, "No such file or directory"];
    refused_with(
        bed.node().stage(stage(&absent, "fast", "block")),
        Code::Unavailable,
        &words,
    );
    let words = ["on disk slow", "only default, fast", "--loop-dir slow=DIR"];
    refused_with(
        bed.node().stage(stage(&first, "slow", kinds[0])),
        Code::FailedPrecondition,
        &words,
    );
    bed.node()
        .stage(first.stage(access(kinds[0])))
        .expect("stage");

    let second = bed.volume("disk2", "2", kinds[1]);
    until("the second disk is served", || {
        bed.node().stage(stage(&second, "fast", kinds[1])).is_ok()
    });
    let volumes = [&first, &second].map(|volume| (volume, volume.target("data")));
    for ((volume, target), kind) in volumes.iter().zip(kinds) {
        bed.node()
            .publish(volume.publish(target, access(kind)))
            .expect("publish");
        leave_words(kind, target);
    }
    until("the space of both disks is measured", || {
        let driver = "belay_storage_free_bytes{driver=\"local.csi.belay.dev\"";
        let is_measured = |disk: &str| {
            let gauge = format!("{driver},disk=\"{disk}\"}}");
            pages.metric(&gauge).is_some()
        };
        ["default", "fast"].into_iter().all(is_measured)
    });

    let bed = bed.restarted(&DISKS);
    for ((volume, target), kind) in volumes.iter().zip(kinds) {
        until("the agent serves the disk", || {
            let stats = bed.node().stats(volume.stats(target));
            stats.is_ok_and(|stats| stats.volume_condition.is_none_or(|it| !it.abnormal))
        });
        expect_words(kind, target);
        volume.down(&bed.node(), &[target]);
    }
    drop(bed.agent);
    bed.test_dir.expect_nothing_left();
}

#[test]
#[ignore = "needs root: make test"]
fn a_disk_that_hangs_blocks_no_volume_of_another_disk() {
    const DISKS: [&str; 3] = ["hung=point", "volumes", "fast=disk2"];
    let test_dir = TestDir::new();
    test_dir.directory("volumes");
    test_dir.directory("disk2");
    let mut fuse = Fuse::mount(&test_dir, "file");
    std::os::unix::fs::symlink(fuse.point(), test_dir.path().join("point")).expect("symlink");
    let bed = Bed::new(test_dir, &DISKS);
    let volumes = [("volumes", "1", "default"), ("disk2", "2", "fast")]
        .map(|(directory, name, disk)| (bed.volume(directory, name, "ext4"), disk));
    let live = |bed: &Bed| {
        for (volume, disk) in &volumes {
            let (node, target) = (bed.node(), volume.target("data"));
            until("the disk is served", || {
                node.stage(stage(volume, disk, "ext4")).is_ok()
            });
            node.publish(volume.publish(&target, access("ext4")))
                .expect("publish");
            leave_words("ext4", &target);
            node.stats(volume.stats(&target)).expect("stats");
            volume.down(&node, &[&target]);
        }
    };
    live(&bed);
    fuse.silence();
    live(&bed);
    // The next agent cannot open the directory.
    let bed = bed.restarted(&DISKS);
    live(&bed);
    drop(fuse);
    drop(bed.agent);
    bed.test_dir.expect_nothing_left();
}
