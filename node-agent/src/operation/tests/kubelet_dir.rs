//! Tests of the kubelet's directory: paths under it, and the visibility of mounts there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_server::call::Kind;

use super::bench::{DRIVER, Form, Verb, Volume, World};
use super::simulated::Simulated;
use crate::device::{LoopDir, Transport};
use crate::kernel::fake::{Call, Fake};
use crate::kernel::{Dev, MountEntry};
use crate::mounts::MountIndex;
use crate::operation::{KubeletDir, Node, Thread};

const CALLS: [Verb; 7] = [
    Verb::Stage,
    Verb::Unstage,
    Verb::Publish(1),
    Verb::Unpublish(1),
    Verb::Expand,
    Verb::Stats,
    Verb::Health,
];

/// Returns the same volume with paths under this directory.
fn elsewhere(world: &Simulated, volume: &Volume, base: &str) -> Volume {
    let volume = Volume {
        base: PathBuf::from(base),
        ..volume.clone()
    };
    world.make_dir(&volume.staging());
    world.make_dir(&volume.target(1));
    volume
}

#[test]
fn every_call_refuses_paths_that_are_not_beneath_and_touches_nothing() {
    for form in [Form::Ext4, Form::Block] {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        // A directory whose name has the same prefix is a different directory.
        for base in ["/", "/elsewhere", "/base-2"] {
            let elsewhere = elsewhere(&world, &volume, base);
            for verb in CALLS {
                world.machine.begin(None);
                let failure = elsewhere.call(&node, verb).unwrap_err();
                let calls = world.machine.end();
                assert_eq!(failure.kind, Kind::Invalid, "{verb:?}: {failure}");
                for word in ["_path: /", "is not under /base (--kubelet-dir)"] {
                    assert!(failure.message.contains(word), "{verb:?}: {failure}");
                }
                let only_looks = ["readlink", "openat2 RESOLVE_CACHED", "statx"];
                assert!(
                    calls.iter().all(|call| only_looks.contains(&call.name)),
                    "{calls:?}"
                );
            }
        }
        assert!(world.machine.is_there(Path::new("/elsewhere/staging/vol")));
    }
}

#[test]
fn a_publish_refuses_a_target_that_is_not_beneath_and_names_it() {
    for form in [Form::Ext4, Form::Block] {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        volume.call(&node, Verb::Stage).unwrap();
        let target = elsewhere(&world, &volume, "/elsewhere").target(2);
        let published = volume.publish_at(&node, &target, Thread::Pool);
        let failure = published.unwrap_err();
        assert_eq!(failure.kind, Kind::Invalid, "{form:?}: {failure}");
        let begin = "target_path: /elsewhere";
        assert!(failure.message.starts_with(begin), "{failure}");
        assert!(!world.machine.is_there(&target));
    }
}

/// A wrong staging path would show files of a different directory to the pod.
#[test]
fn a_publish_refuses_a_staging_path_that_is_not_beneath_and_names_it() {
    for form in [Form::Ext4, Form::Block] {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        volume.call(&node, Verb::Stage).unwrap();
        let staging = elsewhere(&world, &volume, "/elsewhere").staging();
        let target = volume.target(2);
        world.machine.begin(None);
        let published = volume.publish_from(&node, &staging, &target, Thread::Pool);
        let calls = world.machine.end();
        let failure = published.unwrap_err();
        assert_eq!(failure.kind, Kind::Invalid, "{form:?}: {failure}");
        let begin = "staging_target_path: /elsewhere";
        assert!(failure.message.starts_with(begin), "{failure}");
        let is_lookup = |call: &Call| call.name == "readlink";
        assert!(calls.iter().all(is_lookup), "{calls:?}");
        assert!(!world.machine.is_there(&target));
    }
}

/// The requests of these calls contain two paths. Each path is wrong once while the other path is
/// valid.
#[test]
fn stats_and_expansions_refuse_either_path_and_name_it() {
    for form in [Form::Ext4, Form::Block] {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        for verb in [Verb::Stage, Verb::Publish(1)] {
            volume.call(&node, verb).unwrap();
        }
        let elsewhere = elsewhere(&world, &volume, "/elsewhere");
        for (path, staging, field) in [
            (elsewhere.target(1), volume.staging(), "volume_path: "),
            (
                volume.target(1),
                elsewhere.staging(),
                "staging_target_path: ",
            ),
        ] {
            let stats = volume.stats_of(&node, &path, &staging).map(drop);
            let expanded = volume.expand_at(&node, &path, &staging).map(drop);
            for answer in [stats, expanded] {
                let failure = answer.unwrap_err();
                assert_eq!(failure.kind, Kind::Invalid, "{failure}");
                assert!(failure.message.starts_with(field), "{failure}");
            }
        }
    }
}

#[test]
fn a_volume_path_that_is_relative_is_no_mount_of_any_volume() {
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Ext4);
    for verb in [Verb::Stage, Verb::Publish(1)] {
        volume.call(&node, verb).unwrap();
    }
    // The simulated machine resolves relative paths from its root directory.
    for path in ["base/pods/vol-1", "", "."] {
        let path = Path::new(path);
        let stats = volume.stats_of(&node, path, &volume.staging()).map(drop);
        let expanded = volume.expand_at(&node, path, &volume.staging()).map(drop);
        for answer in [stats, expanded] {
            assert_eq!(answer.unwrap_err().kind, Kind::NotFound, "{path:?}");
        }
    }
}

#[test]
fn the_kubelets_folder_itself_is_not_beneath_it_and_what_is_gone_still_is() {
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Ext4);
    assert!(node.admit("target_path", Path::new("/base")).is_err());
    for beneath in ["/base/volumes", "/base/gone", "/base/gone/long/ago"] {
        node.admit("target_path", Path::new(beneath)).unwrap();
    }
    let gone = Volume {
        folder: "gone/long/ago".to_owned(),
        ..volume
    };
    for verb in [Verb::Unpublish(1), Verb::Unstage] {
        gone.call(&node, verb).unwrap();
    }
}

#[test]
fn mounts_are_seen_on_a_shared_mount_and_in_the_namespace_of_another_first_process() {
    let hidden = |world: &Simulated, folder: &str| {
        let found = KubeletDir::open(&world.kernel(), Path::new(folder)).unwrap();
        found.hidden().map(str::to_owned)
    };
    let world = Simulated::new();
    assert_eq!(hidden(&world, "/base"), None);
    world.machine.keep_mounts_here(true);
    assert_eq!(hidden(&world, "/base"), None);
    // The directory is on a private mount in a container.
    assert!(hidden(&world, "/").is_some());
    world.machine.keep_mounts_here(false);
    let why = hidden(&world, "/base").unwrap();
    for word in [
        "/base (--kubelet-dir)",
        "mountPropagation: Bidirectional",
        "--make-shared",
    ] {
        assert!(why.contains(word), "{why}");
    }
}

/// Starts an agent whose mounts the kubelet does not see.
pub(super) fn start_unseen(world: &Simulated) -> Node<Fake> {
    let (kernel, driver) = (world.kernel(), DRIVER.parse().unwrap());
    let loop_dir = LoopDir::open(&kernel, &driver, &world.volumes()).unwrap();
    start_unseen_with(world, kernel, Transport::Loops(loop_dir.into()))
}

/// Starts an agent with this transport, whose mounts the kubelet does not see.
pub(super) fn start_unseen_with(
    world: &Simulated,
    kernel: Fake,
    transport: Transport<Fake>,
) -> Node<Fake> {
    world.machine.keep_mounts_here(false);
    let index = MountIndex::scan(&kernel, &transport).unwrap();
    let kubelet_dir = KubeletDir::open(&kernel, world.base()).unwrap();
    Node::new(kernel, transport, index, Some(Arc::new(kubelet_dir)))
}

#[test]
fn what_the_pod_would_not_see_is_not_mounted_but_what_is_there_is_taken_away() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Ext4);
    let before = world.start();
    for verb in [Verb::Stage, Verb::Publish(1)] {
        volume.call(&before, verb).unwrap();
    }
    drop(before);
    let node = start_unseen(&world);
    for verb in [Verb::Stage, Verb::Publish(2)] {
        let failure = volume.call(&node, verb).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{verb:?}: {failure}");
        assert!(failure.message.contains("Bidirectional"), "{failure}");
    }
    for verb in [Verb::Stats, Verb::Health, Verb::Unpublish(1), Verb::Unstage] {
        volume.call(&node, verb).unwrap();
    }
    assert_eq!(world.left(), Vec::<String>::new());
}

#[test]
fn a_folder_is_covered_where_two_mounts_are_at_its_path_or_above() {
    let world = Simulated::new();
    let folder = KubeletDir::open(&world.kernel(), Path::new("/base/volumes")).unwrap();
    let mount = |point: &str| MountEntry {
        id: 0,
        parent: 0,
        dev: Dev { major: 8, minor: 1 },
        root: "/".into(),
        point: point.into(),
        fs_type: "ext4".to_owned(),
        source: "/dev/sda1".into(),
        peer_group: 0,
    };
    for (points, is_covered) in [
        (["/", "/base", "/base/volumes"], false),
        (["/", "/base/volumes/a", "/base/volumes/a"], false),
        // Two mounts at `/` are normal after a boot.
        (["/", "/", "/base"], false),
        (["/", "/base", "/base"], true),
        (["/", "/base/volumes", "/base/volumes"], true),
    ] {
        let mounts = points.map(mount);
        assert_eq!(folder.is_covered(&mounts), is_covered, "{points:?}");
    }
}
