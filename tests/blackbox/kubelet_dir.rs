//! The kubelet's directory: calls stay within it, and an agent whose mounts would not reach the
//! kubelet reports that and makes no mounts. Namespaces and propagation are real.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use belay_proto::csi::v1 as csi;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use tonic::Code::{FailedPrecondition, InvalidArgument};

use crate::rig::{
    Launch, Pages, Rig, TestDir, Volume, World, access, least_bytes, mounts_of, probe, refused_with,
};

/// A mount of a test directory, removed before the test checks for leftovers.
pub(crate) struct Mount(PathBuf);

impl Mount {
    pub(crate) fn bind(from: &Path, onto: PathBuf, propagation: MountPropagationFlags) -> Self {
        mount_bind(from, &onto).expect("mount --bind");
        mount_change(&onto, propagation).expect("mount --make-...");
        Mount(onto)
    }

    /// Mounts the directory `kubelet` on itself.
    pub(crate) fn of(test_dir: &TestDir, propagation: MountPropagationFlags) -> Self {
        let directory = test_dir.directory("kubelet");
        Self::bind(&directory.clone(), directory, propagation)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A failed test may have left mounts below it, which the test directory unmounts.
        let unmounted = unmount(&self.0, UnmountFlags::NOFOLLOW);
        assert!(
            unmounted.is_ok() || std::thread::panicking(),
            "{unmounted:?}"
        );
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// Starts an agent with the directory in its flags, through this command.
fn start(test_dir: TestDir, kubelet_dir: &Path, command: &[&str]) -> Rig {
    let volumes = test_dir.directory("volumes");
    let mut flags = vec!["--http-endpoint".to_owned(), "127.0.0.1:0".to_owned()];
    flags.extend(["--kubelet-dir".to_owned(), text(kubelet_dir)]);
    let command = command.iter().map(|&word| word.to_owned()).collect();
    Rig::launched(test_dir, volumes, Launch { command, flags })
}

/// Returns a new volume with all its paths in this directory.
fn volume_in(rig: &Rig, directory: &Path, kind: &str) -> Volume {
    let id = rig.volume(least_bytes(kind)).id;
    Volume::made(directory, rig.volumes(), id)
}

/// Makes every call with this path in one field after the other. Returns each field's name and the
/// response.
fn calls(rig: &Rig, volume: &Volume, path: &Path) -> Vec<(&'static str, tonic::Status)> {
    const STAGING: &str = "staging_target_path";
    let (node, kind) = (rig.node(), || access("ext4"));
    let mut strange = volume.clone();
    path.clone_into(&mut strange.staging);
    let own = &volume.target("a");
    let health = |staging: &Path, target: &Path| csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        staging_target_path: text(staging),
        volume_publish_path: text(target),
    };
    let answers = [
        (STAGING, node.stage(strange.stage(kind())).err()),
        (STAGING, node.unstage(strange.unstage()).err()),
        (STAGING, node.publish(strange.publish(own, kind())).err()),
        (
            "target_path",
            node.publish(volume.publish(path, kind())).err(),
        ),
        ("target_path", node.unpublish(volume.unpublish(path)).err()),
        ("volume_path", node.stats(volume.stats(path)).err()),
        (STAGING, node.stats(strange.stats(own)).err()),
        (
            "volume_path",
            node.expand(volume.expand(path, kind())).err(),
        ),
        (STAGING, node.expand(strange.expand(own, kind())).err()),
        (STAGING, node.volume_health(health(path, own)).err()),
        (
            "volume_publish_path",
            node.volume_health(health(&volume.staging, path)).err(),
        ),
    ];
    let refused = |(field, answer): (_, Option<_>)| (field, answer.expect("a refusal"));
    answers.map(refused).into()
}

#[test]
#[ignore = "needs root: make test"]
fn a_path_outside_is_refused_by_every_call_and_nothing_is_touched() {
    let test_dir = TestDir::new();
    let directory = test_dir.directory("kubelet");
    let (outside, beside) = (
        test_dir.directory("outside/empty"),
        test_dir.directory("kubelet-2/empty"),
    );
    symlink(test_dir.path().join("outside"), directory.join("way")).expect("symlink");
    symlink("../outside", directory.join("relative")).expect("symlink");
    let mount = Mount::of(&test_dir, MountPropagationFlags::SHARED);
    let rig = start(test_dir, &directory, &[]);
    let volume = volume_in(&rig, &directory, "ext4");
    let with_slash = PathBuf::from(text(&outside) + "/");
    let paths = [
        outside,
        with_slash,
        beside,
        PathBuf::from(text(&directory) + "//"),
        directory.join("way/empty"),
        directory.join("way/gone/long/ago"),
        directory.join("relative/empty"),
        PathBuf::from("/gone/long/ago"),
    ];
    for path in paths {
        let before = World::around(rig.test_dir());
        for (field, status) in calls(&rig, &volume, &path) {
            let path = text(&path);
            let path = path.trim_end_matches('/');
            let flag = format!("{} (--kubelet-dir)", directory.display());
            let words = [&format!("{field}: {path} "), &flag];
            refused_with::<()>(Err(status), InvalidArgument, &words.map(String::as_str));
        }
        before.expect_unchanged(rig.test_dir(), &text(&path));
    }
    drop(mount);
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_live_in_a_directory_that_is_a_link_on_the_host() {
    let test_dir = TestDir::new();
    let (directory, link) = (test_dir.directory("kubelet"), test_dir.path().join("link"));
    symlink(&directory, &link).expect("symlink");
    let mount = Mount::of(&test_dir, MountPropagationFlags::SHARED);
    let rig = start(test_dir, &link, &[]);
    assert_eq!(Pages::of(rig.agent()).health().0, 200);
    let node = rig.node();
    for kind in ["ext4", "block"] {
        for named in [&link, &directory] {
            let volume = volume_in(&rig, named, kind);
            let target = volume.target("a");
            node.stage(volume.stage(access(kind))).expect("stage");
            node.publish(volume.publish(&target, access(kind)))
                .expect("publish");
            node.stats(volume.stats(&target)).expect("stats");
            node.expand(volume.expand(&target, access(kind)))
                .expect("expand");
            volume.down(&node, &[&target]);
        }
    }
    drop(mount);
}

/// Whether the volume is mounted in this process's namespace, which stands for the kubelet's.
fn is_seen(volume: &Volume) -> bool {
    let is_it = |mount: &_| mount == &volume.staging;
    let mut points = mounts_of("self").into_iter().map(|mount| mount.point);
    points.any(|point| is_it(&point))
}

#[test]
#[ignore = "needs root: make test"]
fn mounts_that_reach_the_kubelet_are_made_from_within_a_namespace_of_its_own() {
    let test_dir = TestDir::new();
    let directory = test_dir.directory("kubelet");
    let mount = Mount::of(&test_dir, MountPropagationFlags::SHARED);
    // A container runtime does the same for mountPropagation: Bidirectional.
    let unshare = ["unshare", "--mount", "--propagation", "unchanged"];
    let rig = start(test_dir, &directory, &unshare);
    assert_eq!(Pages::of(rig.agent()).health(), (200, "ok\n".to_owned()));
    probe(&rig.socket()).expect("probe");
    let (node, volume) = (rig.node(), volume_in(&rig, &directory, "ext4"));
    node.stage(volume.stage(access("ext4"))).expect("stage");
    assert!(is_seen(&volume));
    volume.down(&node, &[]);
    assert!(!is_seen(&volume));
    drop(mount);
}

#[test]
#[ignore = "needs root: make test"]
fn an_agent_whose_mounts_would_not_be_visible_says_so_and_makes_none() {
    // These are the propagations HostToContainer and None; the third directory was never shared.
    let cases = [
        ("slave", MountPropagationFlags::SHARED),
        ("private", MountPropagationFlags::SHARED),
        ("unchanged", MountPropagationFlags::PRIVATE),
    ];
    for (propagation, of_directory) in cases {
        let test_dir = TestDir::new();
        let directory = test_dir.directory("kubelet");
        let mount = Mount::of(&test_dir, of_directory);
        let unshare = ["unshare", "--mount", "--propagation", propagation];
        let rig = start(test_dir, &directory, &unshare);
        let words = [
            text(&directory),
            "mountPropagation: Bidirectional".to_owned(),
        ];
        let words = words.each_ref().map(String::as_str);
        let (status, why) = Pages::of(rig.agent()).health();
        assert_eq!(status, 503, "{propagation}: {why}");
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        assert_eq!(Pages::of(rig.agent()).life().0, 200);
        refused_with(probe(&rig.socket()), FailedPrecondition, &words);
        let (node, volume) = (rig.node(), volume_in(&rig, &directory, "ext4"));
        let before = World::around(rig.test_dir());
        let stage = volume.stage(access("ext4"));
        refused_with(node.stage(stage), FailedPrecondition, &words);
        let publish = volume.publish(&volume.target("a"), access("ext4"));
        refused_with(node.publish(publish), FailedPrecondition, &words);
        before.expect_unchanged(rig.test_dir(), propagation);
        assert_eq!(mounts_below(&rig, &directory), 1, "in its own namespace");
        volume.down(&node, &[&volume.target("a")]);
        drop(mount);
    }
}

/// Returns the number of mounts that the agent sees there, including the directory's own.
fn mounts_below(rig: &Rig, directory: &Path) -> usize {
    let mounts = mounts_of(&rig.agent().pid().to_string()).into_iter();
    mounts
        .filter(|mount| mount.point.starts_with(directory))
        .count()
}
