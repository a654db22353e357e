//! A raw volume whose device was detached by force, and whose number another volume has got: its
//! bind mounts show the other volume, and the mount itself says that they are not.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use tonic::Code;

use crate::lifecycle::{expect_words, leave_words};
use crate::rig::{
    NodeCalls, Process, Rig, Volume, access, least_bytes, loop_numbers, refused_with, retried, run,
    until,
};

/// Maximum number of attempts, since other processes also take numbers.
const ATTEMPTS_MAX: usize = 500;

/// Returns the number of the loop device that a path shows.
fn shown(path: &Path) -> u64 {
    let rdev = fs::metadata(path).expect("stat").rdev();
    u64::from(rustix::fs::minor(rdev))
}

fn detach(number: u64) {
    run("losetup", &["--detach", &format!("/dev/loop{number}")]);
}

/// Stages and publishes the volume.
pub(crate) fn up(node: &NodeCalls, volume: &Volume, kind: &str) {
    // Other processes may take each free device before the agent binds it.
    retried("it is staged", || node.stage(volume.stage(access(kind))));
    let publish = volume.publish(&volume.target("a"), access(kind));
    node.publish(publish).expect("publish");
}

/// Returns the loop device that is bound to the volume's file.
fn bound(rig: &Rig, volume: &Volume) -> Option<u64> {
    let loops = rig.test_dir().loops().into_iter();
    let mut found = loops.filter(|device| device.file == volume.file);
    found.next().map(|device| u64::from(device.number))
}

/// An agent of the same driver in a separate mount namespace, as in another container. It does not
/// see the mounts of the first agent, so it takes the kernel's lowest free number.
pub(crate) struct Other {
    pub(crate) process: Process,
    volumes: PathBuf,
    top: PathBuf,
    pub(crate) calls: NodeCalls,
}

impl Other {
    pub(crate) fn start(rig: &Rig) -> Self {
        let test_dir = rig.test_dir();
        let volumes = test_dir.directory("other-volumes");
        let socket = test_dir.path().join("other.sock");
        let flags = [
            "--node-id",
            "node-2",
            "--loop-dir",
            volumes.to_str().expect("UTF-8"),
        ];
        let private = ["unshare", "--mount", "--propagation", "private"];
        let process = Process::start_by(&private, test_dir, "belay-node", &socket, &flags);
        Other {
            process,
            volumes,
            top: test_dir.directory("other"),
            calls: NodeCalls::new(socket),
        }
    }

    fn volume(&self, id: &str, kind: &str) -> Volume {
        let volume = Volume::made(&self.top, &self.volumes, id.to_owned());
        let file = fs::File::create(&volume.file).expect("a file");
        file.set_len(least_bytes(kind)).expect("ftruncate");
        volume.mark_new();
        volume
    }

    /// Returns a path as seen in the agent's mount namespace.
    pub(crate) fn seen(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.process.pid()));
        root.join(path.strip_prefix("/").expect("an absolute path"))
    }
}

/// Returns a published raw volume with data that has lost its device, and a published volume of the
/// other agent that has the device's number.
pub(crate) fn exchanged(rig: &Rig, other: &Other, kind: &str) -> (Volume, Volume) {
    let (node, _others_wait) = (rig.node(), loop_numbers());
    for _ in 0..ATTEMPTS_MAX {
        let lost = rig.volume(least_bytes("block"));
        let got = other.volume(&format!("of-{}", lost.id), kind);
        up(&node, &lost, "block");
        leave_words("block", &lost.target("a"));
        let number = shown(&lost.target("a"));
        detach(number);
        let fillers = rig.test_dir().fill_below(number);
        up(&other.calls, &got, kind);
        drop(fillers);
        if bound(rig, &got) == Some(number) {
            return (lost, got);
        }
        got.down(&other.calls, &[&got.target("a")]);
        lost.down(&node, &[&lost.target("a")]);
    }
    panic!("other processes took the number {ATTEMPTS_MAX} times");
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_that_lost_its_number_is_taken_down_and_the_one_that_got_it_is_kept() {
    let mut rig = Rig::new();
    let other = Other::start(&rig);
    let node = rig.node();
    for kind in ["block", "ext4"] {
        for is_restarted in [false, true] {
            let (lost, got) = exchanged(&rig, &other, kind);
            let [lost_target, target] = [&lost, &got].map(|volume| volume.target("a"));
            leave_words(kind, &other.seen(&target));
            if is_restarted {
                rig.restart();
            }
            let publish = lost.publish(&lost.target("b"), access("block"));
            refused_with(
                node.publish(publish),
                Code::FailedPrecondition,
                &["detached"],
            );
            let stats = node.stats(lost.stats(&lost_target));
            refused_with(stats, Code::NotFound, &[&lost.id]);
            let unstage = node.unstage(lost.unstage());
            refused_with(unstage, Code::FailedPrecondition, &["still published"]);
            lost.down(&node, &[&lost_target]);
            expect_words(kind, &other.seen(&target));
            other.calls.stats(got.stats(&target)).expect("stats");
            node.stage(lost.stage(access("block"))).expect("stage");
            lost.down(&node, &[]);
            got.down(&other.calls, &[&target]);
            until("nothing is bound", || rig.test_dir().loops().is_empty());
        }
    }
    other.process.terminate();
}

#[test]
#[ignore = "needs root: make test"]
fn the_number_of_a_raw_volume_that_lost_its_device_is_not_given_to_the_next_one() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["block", "ext4"] {
        for is_restarted in [false, true] {
            let (lost, next) = (
                rig.volume(least_bytes("block")),
                rig.volume(least_bytes(kind)),
            );
            up(&node, &lost, "block");
            let number = shown(&lost.target("a"));
            detach(number);
            if is_restarted {
                rig.restart();
            }
            up(&node, &next, kind);
            leave_words(kind, &next.target("a"));
            assert_ne!(bound(&rig, &next).expect("bound"), number);
            lost.down(&node, &[&lost.target("a")]);
            expect_words(kind, &next.target("a"));
            next.down(&node, &[&next.target("a")]);
        }
    }
}

#[test]
#[ignore = "needs root: make test"]
fn the_name_of_a_raw_device_that_was_removed_is_restored_by_the_next_stage() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    up(&node, &volume, "block");
    leave_words("block", &volume.target("a"));
    let names = fs::read_dir("/dev/belay/local.csi.belay.dev").expect("names");
    let names = names.map(|name| name.expect("a name").path());
    let is_ours = |name: &PathBuf| name.to_string_lossy().contains(&volume.id);
    for name in names.filter(is_ours) {
        fs::remove_dir_all(name).expect("rm -r");
    }
    let publish = || node.publish(volume.publish(&volume.target("b"), access("block")));
    refused_with(
        publish(),
        Code::FailedPrecondition,
        &["stage", "/dev/belay"],
    );
    node.stage(volume.stage(access("block"))).expect("stage");
    publish().expect("publish");
    expect_words("block", &volume.target("b"));
    volume.down(&node, &[&volume.target("a"), &volume.target("b")]);
    until("nothing is bound", || rig.test_dir().loops().is_empty());
}

/// An agent of the same driver in another mount namespace has a volume with the same ID: the device
/// has the name that the first agent would have given it.
#[test]
#[ignore = "needs root: make test"]
fn a_device_that_an_agent_in_another_namespace_got_is_not_released() {
    let mut rig = Rig::new();
    let other = Other::start(&rig);
    let node = rig.node();
    for is_restarted in [false, true] {
        let (mut is_tested, _others_wait) = (false, loop_numbers());
        for _ in 0..ATTEMPTS_MAX {
            let volume = rig.volume(least_bytes("block"));
            let theirs = other.volume(&volume.id, "block");
            up(&node, &volume, "block");
            let number = shown(&volume.target("a"));
            detach(number);
            let fillers = rig.test_dir().fill_below(number);
            up(&other.calls, &theirs, "block");
            drop(fillers);
            is_tested = bound(&rig, &theirs) == Some(number);
            if is_restarted {
                rig.restart();
            }
            volume.down(&node, &[&volume.target("a")]);
            retried("it is unstaged again", || node.unstage(volume.unstage()));
            assert!(bound(&rig, &theirs).is_some(), "it was released");
            other
                .calls
                .stats(theirs.stats(&theirs.target("a")))
                .expect("stats");
            theirs.down(&other.calls, &[&theirs.target("a")]);
            if is_tested {
                break;
            }
        }
        assert!(
            is_tested,
            "other processes took the number {ATTEMPTS_MAX} times"
        );
    }
    other.process.terminate();
}

/// The file's name is not a volume's, so only the mount leads to the file.
#[test]
#[ignore = "needs root: make test"]
fn a_raw_volume_is_not_staged_twice_whatever_its_file_is_called() {
    let mut rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    up(&node, &volume, "block");
    let aside = volume.file.with_file_name("aside");
    fs::rename(&volume.file, &aside).expect("rename");
    run(
        "cp",
        &[
            "--sparse=always",
            aside.to_str().expect("UTF-8"),
            volume.file.to_str().expect("UTF-8"),
        ],
    );
    rig.restart();
    let mut second = volume.clone();
    second.staging = volume.staging.with_file_name("second");
    fs::create_dir_all(&second.staging).expect("mkdir");
    let stage = node.stage(second.stage(access("block")));
    refused_with(stage, Code::FailedPrecondition, &["replaced"]);
    volume.down(&node, &[&volume.target("a")]);
    until("nothing is bound", || rig.test_dir().loops().is_empty());
}

/// `ls /dev/belay` lists exactly the staged raw volumes.
#[test]
#[ignore = "needs root: make test"]
fn the_name_of_a_raw_device_is_there_as_long_as_it_is_staged() {
    let mut rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    let names = || {
        let names = fs::read_dir("/dev/belay/local.csi.belay.dev").expect("names");
        let names = names.map(|name| name.expect("a name").file_name().into_string());
        let names = names.map(|name| name.expect("UTF-8"));
        names.filter(|name| name.starts_with(&volume.id)).count()
    };
    up(&node, &volume, "block");
    assert_eq!(names(), 1);
    rig.restart();
    assert_eq!(names(), 1, "the start took it");
    volume.down(&node, &[&volume.target("a")]);
    assert_eq!(names(), 0);
    node.stage(volume.stage(access("block"))).expect("stage");
    rig.kill();
    rustix::mount::unmount(volume.device(), rustix::mount::UnmountFlags::empty()).expect("umount");
    detach(bound(&rig, &volume).expect("bound"));
    until("it is detached", || bound(&rig, &volume).is_none());
    // An agent of another process's test may have removed it before.
    rig.start();
    assert_eq!(names(), 0, "it would lead to another volume");
}
