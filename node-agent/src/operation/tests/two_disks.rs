//! Tests of a driver with volumes on two disks of the node, each with its own directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use belay_server::call::Kind;

use super::bench::{DRIVER, Form, Verb, Volume, World, run, start_with, sweep};
use super::simulated::Simulated;
use super::sweep::{KEPT, bind};
use crate::device::{LoopDir, LoopDirs, Transport};
use crate::kernel::fake::Fake;
use crate::operation::{self, Node};
use crate::work::Operation;

const FAST: &str = "/base/fast";
/// The number of the disk `fast`.
const SECOND: usize = 1;

/// Starts an agent that serves these disks of the two that it has flags for.
fn start(world: &Simulated, open: &[usize]) -> Node<Fake> {
    let disks = [("default", world.volumes()), ("fast", PathBuf::from(FAST))];
    let disks = disks.map(|(name, path)| (name.to_owned(), path));
    let dirs = Arc::new(LoopDirs::new(&DRIVER.parse().unwrap(), disks));
    let node = start_with(world.kernel(), Transport::Loops(dirs), world.base());
    open.iter().for_each(|disk| serve(&node, *disk));
    node
}

/// Opens the directory of a disk, as the agent does at its start or later.
fn serve(node: &Node<Fake>, disk: usize) {
    let dirs = node.folders().unwrap();
    let dir = LoopDir::open(&node.kernel, dirs.driver(), dirs.path(disk)).unwrap();
    node.find_mounts().unwrap();
    dirs.set(disk, dir);
}

fn file(volume: &Volume) -> PathBuf {
    Path::new(FAST).join(&volume.id)
}

/// Returns a world with a volume on each disk.
fn world(form: Form) -> (Simulated, [Volume; 2]) {
    let world = Simulated::new();
    world.make_dir(Path::new(FAST));
    let mut volumes = ["vol-1", "vol-2"].map(|id| world.volume(id, form));
    world.move_file(&volumes[1].file(), &file(&volumes[1]));
    volumes[1].options = &[("disk", "fast")];
    (world, volumes)
}

const UP: [Verb; 2] = [Verb::Stage, Verb::Publish(1)];
const DOWN: [Verb; 2] = [Verb::Unpublish(1), Verb::Unstage];

#[test]
fn volumes_of_both_disks_are_used_and_found_again_after_a_restart() {
    // If the kernel has no names in memory, the directories are searched on the disks.
    for is_cold in [false, true] {
        for form in [Form::Ext4, Form::Xfs, Form::Block] {
            let (world, volumes) = world(form);
            world.machine.chill_names(is_cold);
            let node = start(&world, &[0, SECOND]);
            for (volume, verb) in volumes.iter().flat_map(|it| UP.map(|verb| (it, verb))) {
                volume.call(&node, verb).unwrap();
            }
            let restarted = start(&world, &[SECOND, 0]);
            for (volume, node) in volumes
                .iter()
                .flat_map(|it| [(it, &node), (it, &restarted)])
            {
                volume.stats(node).unwrap();
                assert!(volume.health(node).unwrap().is_empty());
                for verb in [Verb::Expand, Verb::Stage, Verb::Publish(1)] {
                    volume.call(node, verb).unwrap();
                }
            }
            drop(node);
            for (volume, verb) in volumes.iter().flat_map(|it| DOWN.map(|verb| (it, verb))) {
                volume.call(&restarted, verb).unwrap();
            }
            drop(restarted);
            assert_eq!(world.left(), Vec::<String>::new(), "{form:?} {is_cold}");
        }
    }
}

#[test]
fn a_volume_is_staged_only_from_the_disk_in_its_context() {
    let (world, [first, mut second]) = world(Form::Ext4);
    let node = start(&world, &[0, SECOND]);
    second.options = &[];
    let failure = second.call(&node, Verb::Stage).unwrap_err();
    assert_eq!(failure.kind, Kind::NotFound);
    assert!(failure.message.contains("no file /base/volumes/vol-2"));
    second.options = &[("disk", "slow")];
    let failure = second.call(&node, Verb::Stage).unwrap_err();
    assert_eq!(failure.kind, Kind::Precondition);
    let why = "the volume is on disk slow, but this node agent has only default, fast: add \
               --loop-dir slow=DIR";
    assert_eq!(failure.message, why);
    first.call(&node, Verb::Stage).unwrap();
}

#[test]
fn a_disk_that_is_missing_stops_only_its_own_volumes_until_it_is_there() {
    let (world, [first, second]) = world(Form::Block);
    let node = start(&world, &[0]);
    first.call(&node, Verb::Stage).unwrap();
    let failure = second.call(&node, Verb::Stage).unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable);
    assert!(
        failure.message.contains("--loop-dir /base/fast"),
        "{failure}"
    );
    serve(&node, SECOND);
    for volume in [&first, &second] {
        UP.into_iter()
            .for_each(|verb| volume.call(&node, verb).unwrap());
    }
    // Nothing is known about a volume that may be on a disk that is not open.
    let without = start(&world, &[0]);
    for verb in DOWN.into_iter().chain([Verb::Stats, Verb::Health]) {
        let failure = second.call(&without, verb).unwrap_err();
        assert_eq!(failure.kind, Kind::Unreachable, "{verb:?}");
    }
    first.stats(&without).unwrap();
    // An agent on a node without the disk detaches the volume.
    without.folders().unwrap().note_absent(SECOND, true);
    for volume in [first, second] {
        DOWN.into_iter()
            .for_each(|verb| volume.call(&without, verb).unwrap());
    }
    drop((node, without));
    assert_eq!(world.left(), Vec::<String>::new());
}

#[test]
fn a_volume_whose_file_was_removed_is_taken_down_from_whichever_disk() {
    for form in [Form::Ext4, Form::Block] {
        let (world, [_, volume]) = world(form);
        let node = start(&world, &[0, SECOND]);
        UP.into_iter()
            .for_each(|verb| volume.call(&node, verb).unwrap());
        world.remove_file(&file(&volume));
        let node = start(&world, &[0, SECOND]);
        let health = volume.health(&node).unwrap();
        let message = &health.iter().next().unwrap().message;
        let paths = "/base/volumes/vol-2 or /base/fast/vol-2";
        assert!(message.contains(paths), "{message}");
        DOWN.into_iter()
            .for_each(|verb| volume.call(&node, verb).unwrap());
        drop(node);
        assert_eq!(world.left(), Vec::<String>::new(), "{form:?}");
    }
}

#[test]
fn what_a_killed_agent_left_bound_is_freed_on_the_disks_that_are_there() {
    let (world, [first, second]) = world(Form::Block);
    for (volume, file) in [(&first, first.file()), (&second, file(&second))] {
        bind(&world, &file, &format!("{DRIVER}/{}", volume.id), KEPT);
    }
    let bound = || world.machine.picture().beginning_with(&["loop"]).len();
    let node = start(&world, &[0]);
    sweep(&node);
    assert_eq!(bound(), 1);
    serve(&node, SECOND);
    sweep(&node);
    assert_eq!(bound(), 0);
}

#[test]
fn each_disk_has_its_health_and_its_space() {
    let (world, _) = world(Form::Ext4);
    let reasons = |node: &Node<Fake>, disk| {
        let look = |cx: &operation::Context<'_, Fake>| operation::storage_health(cx, disk);
        let found = run(node, Operation::StorageHealth, look).unwrap();
        found.iter().map(|it| it.reason.name()).collect::<Vec<_>>()
    };
    let node = start(&world, &[0]);
    // The directory exists, but could not be opened.
    assert_eq!(reasons(&node, SECOND), ["StorageUnreadable"]);
    assert!(operation::space(&node, SECOND).is_err());
    serve(&node, SECOND);
    assert_eq!(reasons(&node, SECOND), [""; 0]);
    assert!(operation::space(&node, SECOND).unwrap().is_some());
    world.machine.cover(Path::new(FAST));
    assert_eq!(reasons(&node, SECOND), ["StorageReplaced"]);
    assert_eq!(reasons(&node, 0), [""; 0]);
    assert_eq!(operation::space(&node, SECOND), Ok(None));
    // A node without the disk is healthy.
    let node = start(&world, &[0]);
    node.folders().unwrap().note_absent(SECOND, true);
    assert_eq!(reasons(&node, SECOND), [""; 0]);
}
