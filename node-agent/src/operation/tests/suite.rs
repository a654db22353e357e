//! Tests of the operations that run on the simulated and on the real kernel.

use std::path::PathBuf;

use belay_contract::drivers::local::NEW;
use belay_server::call::{Failure, Kind};
use belay_server::request::{AccessMode, CapacityRange, NodeExpand};

use super::bench::{BYTES, Form, GROWN_BYTES, MIB, Verb, Volume, World, run, stage_once};
use super::power::ends_in_stage;
use super::simulated::Simulated;
use crate::kernel::Kernel;
use crate::kernel::fake::{Call, Fault};
use crate::operation::{self, Node, Obstacle, Thread, VolumeUsage};
use crate::work::{Lane, Operation, Progress};

on_both! {
    a_volume_lives_through_all_calls
    every_call_may_come_twice
    every_call_may_come_after_a_restart
    what_is_not_staged_is_not_published
    a_published_volume_is_not_unstaged
    foreign_data_is_never_formatted
    a_populated_volume_without_data_is_never_formatted
    one_target_means_one
    a_volume_staged_as_one_form_is_not_staged_as_the_other
    a_volume_is_not_staged_in_two_places
    a_mount_inside_one_target_shows_nowhere_else
    a_blank_volume_is_not_formatted_for_a_reader
    what_a_writer_left_is_read_and_not_written
    a_filesystem_staged_for_a_reader_grows_when_it_is_staged_for_a_writer
    a_target_that_shows_another_volume_is_not_published_to
    paths_of_another_volume_tell_and_grow_nothing
    a_growth_waits_for_the_file_and_is_of_the_volumes_own_filesystem
}

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];
const LIFE: [Verb; 8] = [
    Verb::Stage,
    Verb::Publish(1),
    Verb::Publish(2),
    Verb::Stats,
    Verb::Expand,
    Verb::Unpublish(2),
    Verb::Unpublish(1),
    Verb::Unstage,
];

#[track_caller]
pub(super) fn all_ok<K: Kernel>(node: &Node<K>, volume: &Volume, verbs: &[Verb]) {
    for verb in verbs {
        let done = volume.call(node, *verb);
        assert!(done.is_ok(), "{verb:?} of {:?}: {done:?}", volume.form);
    }
}

#[track_caller]
fn refused<T>(result: Result<T, Failure>, kind: Kind) {
    assert_eq!(result.map(drop).map_err(|f| f.kind), Err(kind));
}

#[track_caller]
pub(super) fn nothing_left(world: &impl World) {
    assert_eq!(world.left(), Vec::<String>::new());
}

fn a_volume_lives_through_all_calls(world: &impl World) {
    for form in FORMS {
        let node = world.start();
        let volume = world.volume(&format!("{form:?}"), form);
        all_ok(&node, &volume, &LIFE[..4]);
        if form != Form::Ext4 || world.grows_ext4() {
            grow(world, &node, &volume);
        }
        all_ok(&node, &volume, &LIFE[5..]);
        nothing_left(world);
        all_ok(&node, &volume, &LIFE);
        nothing_left(world);
    }
}

fn grow<W: World>(world: &W, node: &Node<W::Kernel>, volume: &Volume) {
    let before = volume.stats(node).unwrap();
    world.make_file(&volume.file(), GROWN_BYTES);
    assert_eq!(volume.expand(node).unwrap(), GROWN_BYTES);
    match (before, volume.stats(node).unwrap()) {
        (VolumeUsage::Block(before), VolumeUsage::Block(after)) => {
            assert_eq!((before, after), (BYTES, GROWN_BYTES));
        }
        (VolumeUsage::Filesystem(before), VolumeUsage::Filesystem(after)) => {
            assert!(before.total_bytes <= BYTES && after.total_bytes > BYTES);
        }
        other => panic!("{other:?}"),
    }
}

fn every_call_may_come_twice(world: &impl World) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        for verb in LIFE {
            all_ok(&node, &volume, &[verb, verb]);
        }
        nothing_left(world);
    }
}

fn every_call_may_come_after_a_restart(world: &impl World) {
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        for verb in LIFE {
            all_ok(&world.start(), &volume, &[verb]);
            all_ok(&world.start(), &volume, &[verb]);
        }
        nothing_left(world);
    }
}

fn what_is_not_staged_is_not_published(world: &impl World) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        refused(volume.call(&node, Verb::Publish(1)), Kind::Precondition);
        nothing_left(world);
    }
}

fn a_published_volume_is_not_unstaged(world: &impl World) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        all_ok(&node, &volume, &LIFE[..2]);
        refused(volume.call(&node, Verb::Unstage), Kind::Precondition);
        all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        nothing_left(world);
    }
}

fn foreign_data_is_never_formatted(world: &impl World) {
    let node = world.start();
    for (form, at) in [
        (Form::Ext4, 0),
        (Form::Xfs, 300 * MIB),
        (Form::Btrfs, 64 * MIB),
        (Form::Ext4, BYTES - 1),
    ] {
        let volume = world.volume(&format!("{form:?}-{at}"), form);
        world.write_file(&volume.file(), at, b"x");
        refused(volume.call(&node, Verb::Stage), Kind::Precondition);
        all_ok(&node, &volume, &[Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_populated_volume_without_data_is_never_formatted(world: &impl World) {
    let node = world.start();
    let volume = world.volume("vol", Form::Ext4);
    world.set_attribute(&volume.file(), NEW, b"?");
    refused(volume.call(&node, Verb::Stage), Kind::Precondition);
    nothing_left(world);
}

fn one_target_means_one(world: &impl World) {
    for form in FORMS {
        let mut volume = world.volume(&format!("{form:?}"), form);
        volume.mode = AccessMode::SingleNodeSingleWriter;
        let node = world.start();
        all_ok(&node, &volume, &LIFE[..2]);
        refused(volume.call(&node, Verb::Publish(2)), Kind::Precondition);
        let restarted = world.start();
        refused(
            volume.call(&restarted, Verb::Publish(2)),
            Kind::Precondition,
        );
        all_ok(&restarted, &volume, &[Verb::Unpublish(1), Verb::Publish(2)]);
        all_ok(&restarted, &volume, &[Verb::Unpublish(2), Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_volume_staged_as_one_form_is_not_staged_as_the_other(world: &impl World) {
    let node = world.start();
    for (form, other) in [(Form::Ext4, Form::Block), (Form::Block, Form::Ext4)] {
        let volume = world.volume(&format!("{form:?}"), form);
        let as_other = Volume {
            form: other,
            ..volume.clone()
        };
        all_ok(&node, &volume, &[Verb::Stage]);
        refused(as_other.call(&node, Verb::Stage), Kind::Incompatible);
        all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_volume_is_not_staged_in_two_places(world: &impl World) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        let mut elsewhere = volume.clone();
        elsewhere.base = world.base().join("other");
        world.make_dir(&elsewhere.staging());
        all_ok(&node, &volume, &[Verb::Stage]);
        refused(elsewhere.call(&node, Verb::Stage), Kind::Precondition);
        all_ok(&node, &volume, &[Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_mount_inside_one_target_shows_nowhere_else(world: &impl World) {
    let node = world.start();
    let volume = world.volume("outer", Form::Ext4);
    all_ok(&node, &volume, &LIFE[..3]);
    let mut inner = world.volume("inner", Form::Ext4);
    inner.base = volume.target(1);
    world.make_dir(&inner.staging());
    all_ok(&node, &inner, &[Verb::Stage]);

    let is_mounted_at = |folder: PathBuf| {
        let path = folder.join("staging").join("inner");
        node.kernel.look(&path).unwrap().unwrap().mount_root
    };
    assert!(is_mounted_at(volume.target(1)));
    assert!(!is_mounted_at(volume.target(2)) && !is_mounted_at(volume.staging()));
    all_ok(&node, &inner, &[Verb::Unstage]);
    all_ok(&node, &volume, &LIFE[5..]);
    nothing_left(world);
}

fn reader(volume: &Volume) -> Volume {
    Volume {
        mode: AccessMode::SingleNodeReaderOnly,
        ..volume.clone()
    }
}

fn a_blank_volume_is_not_formatted_for_a_reader<W: World>(world: &W) {
    let node = world.start();
    for form in &FORMS[..3] {
        let volume = world.volume(&format!("{form:?}"), *form);
        let failure = reader(&volume).call(&node, Verb::Stage).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
        let why = "not formatted: it is blank, and requested read-only";
        assert!(failure.message.contains(why), "{failure}");
        nothing_left(world);
        // The volume is still blank, so it may be staged for writing with any filesystem.
        let other = Volume {
            form: FORMS[(*form as usize + 1) % 3],
            ..volume
        };
        all_ok(&node, &other, &[Verb::Stage, Verb::Unstage]);
    }
}

fn what_a_writer_left_is_read_and_not_written<W: World>(world: &W) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
        let mut reader = reader(&volume);
        all_ok(&node, &reader, &[Verb::Stage, Verb::Stage]);
        // The read-only volume cannot be staged or published at a path where the writable volume is
        // mounted, and vice versa.
        refused(volume.call(&node, Verb::Stage), Kind::Incompatible);
        if form != Form::Block {
            refused(volume.call(&node, Verb::Publish(1)), Kind::Precondition);
        }
        all_ok(&node, &reader, &[Verb::Publish(1), Verb::Stats]);
        refused(reader.call(&node, Verb::Publish(2)), Kind::Precondition);
        // A target of one volume must not be accepted as a target of the other volume.
        let as_writer = volume.publish_at(&node, &volume.target(1), Thread::Pool);
        refused(as_writer, Kind::Incompatible);
        reader.mode = AccessMode::MultiNodeReaderOnly;
        let life = [Verb::Publish(2), Verb::Unpublish(2), Verb::Unpublish(1)];
        all_ok(&world.start(), &reader, &life);
        all_ok(&node, &reader, &[Verb::Unstage]);
        all_ok(&node, &volume, &[Verb::Stage]);
        refused(reader.call(&node, Verb::Stage), Kind::Incompatible);
        all_ok(&node, &volume, &[Verb::Unstage]);
        nothing_left(world);
    }
}

fn a_filesystem_staged_for_a_reader_grows_when_it_is_staged_for_a_writer<W: World>(world: &W) {
    let node = world.start();
    for form in FORMS {
        let volume = world.volume(&format!("{form:?}"), form);
        all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
        let reader = reader(&volume);
        all_ok(&node, &reader, &[Verb::Stage, Verb::Publish(1)]);
        assert_eq!(reader.expand(&node), Ok(BYTES), "nothing has to grow");
        world.make_file(&volume.file(), GROWN_BYTES);
        match form {
            Form::Block => assert_eq!(reader.expand(&node), Ok(GROWN_BYTES)),
            Form::Ext4 | Form::Xfs | Form::Btrfs => {
                let failure = reader.expand(&node).unwrap_err();
                assert_eq!(failure.kind, Kind::Precondition, "{failure}");
                assert!(failure.message.contains("staged for writing"), "{failure}");
            }
        }
        all_ok(&node, &reader, &[Verb::Unpublish(1), Verb::Unstage]);
        if form != Form::Ext4 || world.grows_ext4() {
            all_ok(&node, &volume, &[Verb::Stage]);
            assert_eq!(volume.expand(&node), Ok(GROWN_BYTES));
            // A repeated NodeStageVolume call also grows the filesystem.
            world.make_file(&volume.file(), GROWN_BYTES + BYTES);
            all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
            match volume.stats(&node).unwrap() {
                VolumeUsage::Filesystem(usage) => {
                    assert!(usage.total_bytes > GROWN_BYTES, "{form:?}");
                }
                VolumeUsage::Block(bytes) => assert_eq!(bytes, GROWN_BYTES + BYTES),
            }
            all_ok(&node, &volume, &[Verb::Unpublish(1), Verb::Unstage]);
        }
        nothing_left(world);
    }
}

fn a_target_that_shows_another_volume_is_not_published_to<W: World>(world: &W) {
    let node = world.start();
    for form in FORMS {
        for other in FORMS {
            let shown = world.volume(&format!("shown-{form:?}-{other:?}"), form);
            let volume = world.volume(&format!("{form:?}-{other:?}"), other);
            all_ok(&node, &shown, &[Verb::Stage, Verb::Publish(1)]);
            all_ok(&node, &volume, &[Verb::Stage]);
            let target = shown.target(1);
            let before = node.kernel.look(&target).unwrap();
            for node in [&node, &world.start()] {
                let published = volume.publish_at(node, &target, Thread::Pool);
                let failure = published.unwrap_err();
                assert_eq!(failure.kind, Kind::Incompatible, "{form:?} {other:?}");
                for word in ["target_path", volume.id.as_str(), target.to_str().unwrap()] {
                    assert!(failure.message.contains(word), "{failure}");
                }
                assert_eq!(node.kernel.look(&target).unwrap(), before);
            }
            // A call for one volume must not unmount the other volume.
            all_ok(&node, &volume, &[Verb::Unstage]);
            all_ok(
                &node,
                &shown,
                &[Verb::Stats, Verb::Unpublish(1), Verb::Unstage],
            );
            nothing_left(world);
        }
    }
}

fn paths_of_another_volume_tell_and_grow_nothing<W: World>(world: &W) {
    let node = world.start();
    for form in FORMS {
        for other in FORMS {
            let own = world.volume(&format!("own-{form:?}-{other:?}"), form);
            let others = world.volume(&format!("{form:?}-{other:?}"), other);
            for volume in [&own, &others] {
                all_ok(&node, volume, &LIFE[..2]);
            }
            world.make_file(&others.file(), GROWN_BYTES);
            let folder = others.staging().parent().unwrap().to_owned();
            for path in [others.target(1), others.staging(), folder] {
                refused(own.stats_of(&node, &path, &own.staging()), Kind::NotFound);
                let expanded = own.expand_at(&node, &path, &others.staging());
                refused(expanded, Kind::NotFound);
            }
            // Ignore loop devices of other programs on the machine.
            let is_ours = |number: &u32| {
                let name = node.kernel.loop_file_name(*number).unwrap();
                name.is_some_and(|name| [&own.id, &others.id].iter().any(|id| name == id.as_str()))
            };
            let devices = node.kernel.loop_bound().unwrap().into_iter();
            let bytes: Vec<_> = devices
                .filter(is_ours)
                .filter_map(|number| node.kernel.loop_bytes(number).unwrap())
                .collect();
            assert!(!bytes.is_empty() && bytes.iter().all(|bytes| *bytes != GROWN_BYTES));
            for volume in [&own, &others] {
                all_ok(&node, volume, &LIFE[6..]);
            }
            nothing_left(world);
        }
    }
}

fn a_growth_waits_for_the_file_and_is_of_the_volumes_own_filesystem<W: World>(world: &W) {
    let node = world.start();
    for form in FORMS {
        if form == Form::Ext4 && !world.grows_ext4() {
            continue;
        }
        let volume = world.volume(&format!("{form:?}"), form);
        let other = world.volume(&format!("other-{form:?}"), form);
        for volume in [&volume, &other] {
            all_ok(&node, volume, &LIFE[..2]);
        }
        let to_grow = |required_bytes| {
            let request = NodeExpand {
                id: volume.volume_id(),
                volume_path: volume.target(1),
                range: Some(CapacityRange {
                    required_bytes,
                    limit_bytes: 0,
                }),
                // The staging path in the request belongs to a different volume; the request must
                // not grow that volume.
                staging: Some(other.staging()),
                capability: None,
            };
            run(&node, Operation::Expand, |cx| {
                operation::expand(cx, &request)
            })
        };
        assert_eq!(to_grow(BYTES).unwrap(), BYTES);
        refused(to_grow(BYTES + 1), Kind::Unreachable);
        world.make_file(&volume.file(), GROWN_BYTES);
        assert_eq!(to_grow(BYTES + 1).unwrap(), GROWN_BYTES);
        if let VolumeUsage::Filesystem(usage) = volume.stats(&node).unwrap() {
            assert!(usage.total_bytes > BYTES, "{form:?}");
        }
        for volume in [&volume, &other] {
            all_ok(&node, volume, &LIFE[6..]);
        }
        nothing_left(world);
    }
}

#[test]
fn a_format_that_was_cut_short_is_not_ended_for_a_reader() {
    for form in &FORMS[..3] {
        let world = Simulated::new();
        let volume = world.volume("vol", *form);
        let killed = Fault::DieAfter("mkfs write");
        assert!(ends_in_stage(&world, &world.start(), &volume, killed));
        let failure = reader(&volume).call(&world.start(), Verb::Stage);
        let failure = failure.unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
        let why = "its formatting was interrupted, and it is requested read-only";
        assert!(failure.message.contains(why), "{failure}");
        all_ok(&world.start(), &volume, &[Verb::Stage, Verb::Unstage]);
        nothing_left(&world);
    }
}

/// Runs only on the simulated kernel: without unique mount IDs (before Linux 6.8), each publish
/// runs on the pool.
#[test]
fn a_target_upon_a_volume_is_made_on_the_pool() {
    let world = Simulated::new();
    for form in [Form::Ext4, Form::Btrfs] {
        let node = world.start();
        let outer = world.volume(&format!("outer-{form:?}"), form);
        let inner = world.volume(&format!("inner-{form:?}"), form);
        all_ok(&node, &outer, &LIFE[..2]);
        all_ok(&node, &inner, &[Verb::Stage]);
        let within = outer.target(1).join("within");
        let published = |target| inner.publish_at(&node, target, Thread::Only).unwrap();
        assert_eq!(published(&within), None, "{form:?}");
        assert!(node.kernel.look(&within).unwrap().is_none());
        assert_eq!(published(&inner.target(1)), Some(()), "{form:?}");
        for volume in [&inner, &outer] {
            all_ok(&node, volume, &[Verb::Unpublish(1), Verb::Unstage]);
        }
        nothing_left(&world);
    }
}

/// Runs only on the simulated kernel: without unique mount IDs (before Linux 6.8), each publish
/// runs on the pool.
#[test]
fn a_target_on_a_filesystem_without_a_device_is_made_at_once() {
    let world = Simulated::new();
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let node = world.start();
        let volume = world.volume(&format!("vol-{form:?}"), form);
        let pods = world.base().join(format!("pods-{form:?}"));
        world.make_dir(&pods);
        world.machine.cover(&pods);
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
        let target = pods.join("target");
        let published = volume.publish_at(&node, &target, Thread::Only).unwrap();
        assert_eq!(published, Some(()), "{form:?}");
    }
}

/// The staging path leads through a server that does not respond, or the target is on that server.
#[test]
fn a_publish_through_a_silent_server_runs_on_the_pool() {
    for is_staging in [true, false] {
        let world = Simulated::new();
        let (node, volume) = (world.start(), world.volume("vol", Form::Ext4));
        all_ok(&node, &volume, &[Verb::Stage, Verb::Publish(1)]);
        let (staging, target) = (volume.staging(), volume.target(2));
        // NodePublishVolume must open the staged mount, or the parent directory of the target.
        let opened = match is_staging {
            true => &staging,
            false => target.parent().unwrap(),
        };
        world.machine.silence(opened.parent().unwrap());
        world.machine.never_wait_here(true);
        let published = volume.publish_at(&node, &target, Thread::Only);
        assert_eq!(published, Ok(None));
        assert_eq!(world.machine.violations(), [""; 0]);
    }
    let world = Simulated::new();
    let (node, volume) = (world.start(), world.volume("vol", Form::Ext4));
    all_ok(&node, &volume, &[Verb::Stage]);
    let target = world.base().join("fuse/target");
    world.make_dir(target.parent().unwrap());
    world.machine.cover_by(target.parent().unwrap(), "fuse");
    let published = volume.publish_at(&node, &target, Thread::Only);
    assert_eq!(published, Ok(None));
}

/// Runs only on the simulated kernel: the black-box tests cover the real kernel.
#[test]
fn a_btrfs_that_the_kernel_mistakes_for_another_is_mounted_by_the_second_attempt_or_refused() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Btrfs);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    let stage = || all_ok(&node, &volume, &[Verb::Stage]);
    let creates = |call: &Call| (call.name, &*call.object) == ("fsconfig", "create");
    let at = world.first_call(stage, creates);
    all_ok(&node, &volume, &[Verb::Unstage]);
    for errno in ["EEXIST", "EINVAL"] {
        world.machine.begin(Some(Fault::FailFrom(at, errno)));
        let failure = volume.call(&node, Verb::Stage).unwrap_err();
        assert_eq!(
            failure.kind,
            Kind::System,
            "the second context is refused: {failure}"
        );
        world.machine.begin(Some(Fault::Fail(at, errno)));
        all_ok(&node, &volume, &[Verb::Stage]);
        world.machine.end();
        all_ok(&node, &volume, &[Verb::Unstage]);
    }
    nothing_left(&world);
}

/// Runs only on the simulated kernel, which counts system calls.
#[test]
fn a_blank_volume_whose_zeros_were_written_is_read_once() {
    const ZEROS: usize = 64 << 20;
    const READ_BYTES: usize = 128 << 10;
    let world = Simulated::new();
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let volume = world.volume(&format!("{form:?}"), form);
        world.machine.write_zeros(&volume.file(), ZEROS);
        let node = world.start();
        world.machine.begin(None);
        all_ok(&node, &volume, &[Verb::Stage]);
        let calls = world.machine.end();
        let reads = calls.iter().filter(|call| call.name == "pread").count();
        let once = ZEROS / READ_BYTES;
        assert!(
            (once..once + 50).contains(&reads),
            "{reads} reads, not {once}"
        );
        all_ok(&node, &volume, &[Verb::Unstage]);
        nothing_left(&world);
    }
}

/// A frozen filesystem stays in the kernel after its last unmount, and could then no longer be
/// thawed.
#[test]
fn a_filesystem_is_thawed_before_it_is_unmounted() {
    for form in &FORMS[..3] {
        let world = Simulated::new();
        let (node, volume) = (world.start(), world.volume("vol", *form));
        all_ok(&node, &volume, &[Verb::Stage]);
        world.machine.begin(None);
        all_ok(&node, &volume, &[Verb::Unstage]);
        let calls = world.machine.end();
        let at = |name| calls.iter().position(|call| call.name == name).unwrap();
        assert!(at("FITHAW") < at("umount2"), "{form:?}");
    }
}

/// A StorageClass may omit the filesystem type.
#[test]
fn a_volume_without_a_type_is_staged_again_with_the_one_that_it_has() {
    for form in &FORMS[..3] {
        let world = Simulated::new();
        let (node, volume) = (world.start(), world.volume("vol", *form));
        all_ok(&node, &volume, &[Verb::Stage]);
        let untyped = volume.untyped();
        for node in [node, world.start()] {
            assert_eq!(stage_once(&node, &untyped), Ok(()), "{form:?}");
        }
        all_ok(&world.start(), &volume, &[Verb::Stage, Verb::Unstage]);
        nothing_left(&world);
    }
}

/// The kubelet calls NodeUnstageVolume at the last moment at which this cancels NodeStageVolume.
#[test]
fn a_volume_whose_stage_is_cancelled_while_it_is_read_is_not_formatted() {
    const ZEROS: usize = 1 << 20;
    let blank = || {
        let world = Simulated::new();
        let volume = world.volume("vol", Form::Ext4);
        world.machine.write_zeros(&volume.file(), ZEROS);
        let node = world.start();
        (world, node, volume)
    };
    let (world, node, volume) = blank();
    world.machine.begin(None);
    volume.stage_in_slot(&node).unwrap();
    let calls = world.machine.end();
    let mut cancelled = 0;
    for at in 1..=calls.len() {
        if !["pread", "lseek"].contains(&calls[at - 1].name) {
            continue;
        }
        let (world, node, volume) = blank();
        let (request, progress) = (volume.stage_request(), Progress::default());
        world.machine.begin(Some(Fault::Hang(at)));
        let (is_cancelled, staged) = std::thread::scope(|threads| {
            let staged = threads.spawn(|| {
                operation::run(&node, &progress, Operation::Stage, |cx| {
                    operation::stage(cx, &request, Lane::Format)
                })
            });
            world.machine.wait_for_hang();
            let is_cancelled = progress.give_up();
            world.machine.let_go();
            (is_cancelled, staged.join().unwrap())
        });
        let calls = world.machine.end();
        if is_cancelled {
            cancelled += 1;
            refused(staged.map_err(Obstacle::into_failure), Kind::Busy);
            let writes = ["pwrite", "fsetxattr", "mkfs write"];
            assert!(
                !calls.iter().any(|call| writes.contains(&call.name)),
                "{at}"
            );
        }
    }
    assert!(cancelled > 1);
}

/// A snapshot tool or an operator may have created the volume's file without the attribute that
/// records its use.
#[test]
fn a_filesystem_of_which_nothing_is_recorded_is_mounted_and_stays_so_if_another_is_requested() {
    let world = Simulated::new();
    for form in &FORMS[..3] {
        let volume = world.volume(&format!("{form:?}"), *form);
        let fs_type = form.fs_type().unwrap();
        world.machine.make_filesystem(&volume.file(), fs_type);
        let other = Volume {
            form: FORMS[(*form as usize + 1) % 3],
            ..volume.clone()
        };
        let node = world.start();
        world.machine.begin(None);
        let failure = other.call(&node, Verb::Stage).unwrap_err();
        let calls = world.machine.end();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
        let is_record = |call: &Call| call.name == "fsetxattr";
        assert!(!calls.iter().any(is_record), "{form:?}");
        world.machine.begin(None);
        all_ok(&node, &volume, &[Verb::Stage]);
        assert!(world.machine.end().iter().any(is_record), "{form:?}");
        all_ok(&node, &volume, &[Verb::Unstage]);
    }
    nothing_left(&world);
}
