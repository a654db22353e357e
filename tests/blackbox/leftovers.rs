//! State that a process sets on a volume's loop device, and that the kernel keeps with the device's
//! number: partitions, the read-only state, dropped flushes. Health reports it while the volume is
//! in use, and no later volume with the number inherits it. Also tests a `/dev` without nodes of
//! loop devices.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use belay_proto::csi::v1 as csi;
use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::reused::up;
use crate::rig::{
    Launch, NodeCalls, Rig, TestDir, Volume, access, least_bytes, loop_numbers, probe,
    refused_with, run, until,
};

/// Maximum number of attempts, since other processes also take numbers.
const ATTEMPTS_MAX: usize = 500;

/// The number of a loop device that a process has changed, and the directory of the test's files.
/// The device is restored when this is dropped, unless a test of another process has it by then.
struct Altered(u32, PathBuf);

impl Altered {
    /// Returns the loop device that is bound to the volume's file.
    fn of(rig: &Rig, volume: &Volume) -> Self {
        let number = bound(rig, volume).expect("it is bound");
        Altered(number, rig.test_dir().path().to_owned())
    }

    fn path(&self) -> String {
        format!("/dev/loop{}", self.0)
    }

    fn sysfs(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/loop{}", self.0)).join(name)
    }

    fn partition(&self) -> PathBuf {
        PathBuf::from(format!("{}p1", self.path()))
    }

    fn is_divided(&self) -> bool {
        self.sysfs(&format!("loop{}p1", self.0)).exists()
    }

    fn add_partition(&self) {
        run("addpart", &[&self.path(), "1", "2048", "2048"]);
        assert!(self.is_divided() && self.partition().exists());
    }
}

impl Drop for Altered {
    fn drop(&mut self) {
        let file = fs::read_to_string(self.sysfs("loop/backing_file"));
        let is_anothers = file.is_ok_and(|file| !Path::new(&file).starts_with(&self.1));
        // An agent that binds the device may remove the partition first.
        if self.is_divided() && !is_anothers {
            drop(Command::new("delpart").args([&self.path(), "1"]).output());
        }
    }
}

fn bound(rig: &Rig, volume: &Volume) -> Option<u32> {
    let loops = rig.test_dir().loops().into_iter();
    let mut found = loops.filter(|device| device.file == volume.file);
    found.next().map(|device| device.number)
}

fn down(rig: &Rig, volume: &Volume) {
    volume.down(&rig.node(), &[&volume.target("a")]);
    until("it is unbound", || bound(rig, volume).is_none());
}

/// Returns the reasons and messages of the volume's health.
fn health(node: &NodeCalls, volume: &Volume) -> Vec<(String, String)> {
    let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        volume_publish_path: text(volume.target("a")),
        staging_target_path: text(volume.staging.clone()),
    };
    let answer = node.volume_health(request).expect("health");
    let all = answer.volume_health.expect("always set").health_statuses;
    all.into_iter().map(|it| (it.reason, it.message)).collect()
}

/// Returns the text of the condition in the volume's statistics, if it is abnormal.
fn condition(node: &NodeCalls, volume: &Volume) -> Option<String> {
    let stats = node.stats(volume.stats(&volume.target("a")));
    let condition = stats.expect("stats").volume_condition;
    let condition = condition.expect("a condition");
    condition.abnormal.then_some(condition.message)
}

#[track_caller]
fn expect_altered(node: &NodeCalls, volume: &Volume, word: &str) {
    let found = health(node, volume);
    let [(reason, message)] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(reason, "DeviceAltered");
    assert!(message.contains(word), "{message}");
}

#[track_caller]
fn expect_healthy(node: &NodeCalls, volume: &Volume) {
    assert_eq!(health(node, volume), []);
    assert_eq!(condition(node, volume), None);
}

/// Changes the device of a volume, takes the volume down, and stages other volumes until one gets
/// the number.
fn next_on(rig: &Rig, kinds: [&str; 2], change: impl Fn(&Altered, &Volume)) -> (Altered, Volume) {
    let (node, _others_wait) = (rig.node(), loop_numbers());
    for _ in 0..ATTEMPTS_MAX {
        let [first, next] = kinds.map(|kind| rig.volume(least_bytes(kind)));
        up(&node, &first, kinds[0]);
        let altered = Altered::of(rig, &first);
        change(&altered, &first);
        down(rig, &first);
        let fillers = rig.test_dir().fill_below(altered.0.into());
        up(&node, &next, kinds[1]);
        drop(fillers);
        if bound(rig, &next) == Some(altered.0) {
            return (altered, next);
        }
        down(rig, &next);
    }
    panic!("other processes took the number {ATTEMPTS_MAX} times");
}

const KINDS: [[&str; 2]; 4] = [
    ["ext4", "ext4"],
    ["ext4", "block"],
    ["block", "ext4"],
    ["block", "block"],
];

#[test]
#[ignore = "needs root: make test"]
fn a_partition_on_the_device_of_a_volume_is_reported_and_shows_nothing_of_the_next_volume() {
    let rig = Rig::new();
    let node = rig.node();
    for kinds in KINDS {
        let (altered, next) = next_on(&rig, kinds, |altered, first| {
            expect_healthy(&node, first);
            altered.add_partition();
            expect_altered(&node, first, &format!("loop{}p1", altered.0));
            let told = condition(&node, first).expect("abnormal");
            assert!(told.contains("DeviceAltered"), "{told}");
        });
        leave_words(kinds[1], &next.target("a"));
        assert!(!altered.is_divided() && !altered.partition().exists());
        expect_healthy(&node, &next);
        expect_words(kinds[1], &next.target("a"));
        down(&rig, &next);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_number_whose_partition_is_open_is_given_to_no_volume() {
    let rig = Rig::new();
    let node = rig.node();
    let [first, next] = [(); 2].map(|()| rig.volume(least_bytes("ext4")));
    up(&node, &first, "ext4");
    let altered = Altered::of(&rig, &first);
    altered.add_partition();
    let partition = File::open(altered.partition()).expect("a partition");
    // The device stays bound to its own volume, and so is not free for another volume.
    let unpublish = first.unpublish(&first.target("a"));
    node.unpublish(unpublish).expect("unpublish");
    drop(node.unstage(first.unstage()));
    assert_eq!(bound(&rig, &first), Some(altered.0));
    drop(partition);
    until("it is unbound", || bound(&rig, &first).is_none());
    // Another process opens the partition of the free device.
    let partition = File::open(altered.partition()).expect("a partition");
    up(&node, &next, "ext4");
    leave_words("ext4", &next.target("a"));
    assert_ne!(bound(&rig, &next), Some(altered.0));
    expect_healthy(&node, &next);
    drop(partition);
    down(&rig, &next);
    first.down(&node, &[]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_was_set_read_only_is_reported_and_the_next_volume_of_its_number_is_written() {
    let rig = Rig::new();
    let node = rig.node();
    for kinds in KINDS {
        let (altered, next) = next_on(&rig, kinds, |altered, first| {
            run("blockdev", &["--setro", &altered.path()]);
            expect_altered(&node, first, "read-only");
            // A filesystem that is already mounted can still be written.
            assert_eq!(condition(&node, first).is_some(), kinds[0] == "block");
        });
        leave_words(kinds[1], &next.target("a"));
        expect_words(kinds[1], &next.target("a"));
        let ro = fs::read_to_string(altered.sysfs("ro")).expect("ro");
        assert_eq!(ro, "0\n", "{kinds:?}");
        expect_healthy(&node, &next);
        down(&rig, &next);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn the_next_volume_of_a_number_whose_flushes_were_dropped_has_them() {
    let rig = Rig::new();
    for kinds in KINDS {
        let (altered, next) = next_on(&rig, kinds, |altered, _| {
            let cache = altered.sysfs("queue/write_cache");
            fs::write(cache, "write through").expect("write_cache");
        });
        let cache = fs::read_to_string(altered.sysfs("queue/write_cache"));
        assert_eq!(cache.expect("write_cache"), "write back\n", "{kinds:?}");
        down(&rig, &next);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_a_published_raw_volume_opened_to_all_is_roots_alone_for_the_next_volume() {
    let rig = Rig::new();
    for kind in ["ext4", "block"] {
        let [first, next] = ["block", kind].map(|kind| rig.volume(least_bytes(kind)));
        let node = rig.node();
        up(&node, &first, "block");
        let target = first.target("a");
        fs::set_permissions(&target, Permissions::from_mode(0o666)).expect("chmod");
        let opened = Altered::of(&rig, &first).path();
        assert_eq!(mode(&opened) & 0o777, 0o666);
        down(&rig, &first);
        up(&node, &next, kind);
        assert_eq!(mode(&Altered::of(&rig, &next).path()) & 0o007, 0, "{kind}");
        down(&rig, &next);
    }
}

fn mode(path: &str) -> u32 {
    fs::metadata(path).expect("a node").permissions().mode()
}

/// Starts a rig with a `/dev` as in a container image, or on a node without devtmpfs, with these
/// nodes.
fn in_dev_with(nodes: &str) -> Rig {
    let script = format!(
        "mount -t tmpfs dev /dev && mknod /dev/null c 1 3 && mknod /dev/urandom c 1 9 && {nodes} \
         && exec \"$0\" \"$@\""
    );
    let command = ["unshare", "--mount", "--propagation", "private", "sh", "-c"];
    let mut command: Vec<_> = command.iter().map(|&word| word.to_owned()).collect();
    command.push(script);
    let test_dir = TestDir::new();
    let volumes = test_dir.directory("volumes");
    let flags = Vec::new();
    Rig::launched(test_dir, volumes, Launch { command, flags })
}

#[test]
#[ignore = "needs root: make test"]
fn a_driver_whose_dev_lacks_loop_devices_is_not_ready_and_a_stage_names_the_cure() {
    for (nodes, missing) in [
        ("true", "/dev/loop-control does not exist"),
        ("mknod /dev/loop-control c 10 237", "does not exist"),
    ] {
        let rig = in_dev_with(nodes);
        let ready = probe(&rig.socket()).expect("an answer").ready;
        assert_eq!(ready, Some(false));
        let volume = rig.volume(least_bytes("ext4"));
        let stage = rig.node().stage(volume.stage(access("ext4")));
        let cure = [missing, "devtmpfs", "mknod"];
        refused_with(stage, Code::Unavailable, &cure);
        assert_eq!(rig.test_dir().loops(), []);
    }
}
