//! Tests of an ext4 whose growth was interrupted by a power loss. The journal contains the growth,
//! and the kernel counts the block groups before it replays the journal. The first mount must
//! therefore not be used, even if NodeStageVolume fails at any system call.

use std::panic::{AssertUnwindSafe, catch_unwind};

use belay_server::call::Kind;
use belay_server::request::AccessMode;

use super::bench::{Form, GROWN_BYTES, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use crate::kernel::Kernel as _;
use crate::kernel::fake::meanwhile::Meanwhile;
use crate::kernel::fake::{Call, Damage, Fault, Holds};

#[test]
fn an_ext4_that_its_journal_grows_is_mounted_twice() {
    for (world, volume) in interrupted() {
        let node = world.start();
        volume.call(&node, Verb::Stage).unwrap();
        expect_grown(&world, &volume);
        volume.call(&node, Verb::Unstage).unwrap();
    }
}

#[test]
fn a_stage_of_it_that_fails_or_dies_at_any_call_converges() {
    let faults: [fn(usize) -> Fault; 2] = [Fault::Die, |at| Fault::Fail(at, "EIO")];
    for which in 0..interrupted().len() {
        for fault in faults {
            for at in 1.. {
                let (world, volume) = interrupted().swap_remove(which);
                let node = world.start();
                world.machine.begin(Some(fault(at)));
                let ended = catch_unwind(AssertUnwindSafe(|| volume.call(&node, Verb::Stage)));
                let calls = world.machine.end().len();
                drop(node);
                volume.call(&world.start(), Verb::Stage).unwrap();
                expect_grown(&world, &volume);
                if ended.is_ok() && calls < at {
                    break;
                }
            }
        }
    }
}

/// Before e2fsck runs, the journal is replayed with a separate superblock.
#[test]
fn an_ext4_with_errors_is_counted_right_after_its_check() {
    let world = Simulated::of(Media::Files);
    let volume = world.volume("vol", Form::Ext4);
    volume.call(&world.start(), Verb::Stage).unwrap();
    world.make_file(&volume.file(), GROWN_BYTES);
    world.machine.damage(&volume.file(), Damage::Slight);
    world
        .machine
        .power_off_in_growth(&volume.file(), GROWN_BYTES);
    let node = world.start();
    world.machine.begin(None);
    volume.call(&node, Verb::Stage).unwrap();
    let calls = world.machine.end();
    let creates = calls
        .iter()
        .filter(|call| (call.name, &*call.object) == ("fsconfig", "create"));
    assert_eq!(creates.count(), 2);
    assert!(!world.machine.is_damaged(&volume.file()));
    expect_grown(&world, &volume);
}

/// The other process may be an agent that is being killed while the kernel replays the journal for
/// it.
#[test]
fn a_superblock_of_another_process_that_was_counted_before_is_not_used() {
    let world = Simulated::of(Media::Disks);
    let volume = world.volume("vol", Form::Ext4);
    let node = world.start();
    for verb in [Verb::Stage, Verb::Unstage] {
        volume.call(&node, verb).unwrap();
    }
    world.machine.grow_disk(&volume.file(), GROWN_BYTES);
    let other = world.kernel();
    let context = other.fsopen("ext4").unwrap();
    other
        .fsconfig_set(&context, "source", Some("/dev/vda"))
        .unwrap();
    other.fsconfig_create(&context, false).unwrap();
    world.machine.log_growth(&volume.file(), GROWN_BYTES);
    let staged = volume.call(&node, Verb::Stage);
    let failure = staged.unwrap_err();
    assert_eq!(failure.kind, Kind::Busy, "{failure}");
    drop(context);
    volume.call(&node, Verb::Stage).unwrap();
    expect_grown(&world, &volume);
}

/// Returns a machine after the power loss for each combination of a volume in a file or on a disk,
/// writable or read-only.
fn interrupted() -> Vec<(Simulated, Volume)> {
    let modes = [
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
    ];
    let media = [Media::Files, Media::Disks];
    let each = media
        .into_iter()
        .flat_map(|media| modes.map(|mode| (media, mode)));
    each.map(|(media, mode)| {
        let world = Simulated::of(media);
        let mut volume = world.volume("vol", Form::Ext4);
        volume.call(&world.start(), Verb::Stage).unwrap();
        world.make_file(&volume.file(), GROWN_BYTES);
        world
            .machine
            .power_off_in_growth(&volume.file(), GROWN_BYTES);
        volume.mode = mode;
        (world, volume)
    })
    .collect()
}

fn expect_grown(world: &Simulated, volume: &Volume) {
    let held = world.machine.holds(&volume.file());
    let is_grown = matches!(held, Holds::Filesystem(_, GROWN_BYTES, _));
    assert!(is_grown, "{:?}: {held:?}", volume.mode);
    assert_eq!(world.machine.violations(), Vec::<String>::new());
}

/// If a child process was being started when the agent closed the first superblock, this process
/// may still keep the superblock in use. Before Linux 6.6, the kernel would reuse that superblock.
#[test]
fn a_device_that_is_claimed_after_the_first_mount_is_not_mounted_a_second_time() {
    let creates = |calls: &[Call]| {
        let all = calls.iter().enumerate();
        let creates = all.filter(|(_, call)| (call.name, &*call.object) == ("fsconfig", "create"));
        creates.map(|(at, _)| at + 1).collect::<Vec<_>>()
    };
    let (world, volume) = interrupted().swap_remove(0);
    let node = world.start();
    world.machine.begin(None);
    volume.call(&node, Verb::Stage).unwrap();
    let calls = world.machine.end();
    let [first, second] = creates(&calls)[..] else {
        panic!("it is mounted twice");
    };
    let device = |call: &&Call| call.name == "open" && call.object.starts_with("/dev/loop");
    let between = calls[first..second].iter().find(device).unwrap();
    let at = first + calls[first..].iter().position(|it| it == between).unwrap() + 1;
    let (world, volume) = interrupted().swap_remove(0);
    let node = world.start();
    world.machine.begin(None);
    let claim = Meanwhile::Claim(between.object.clone().into());
    world.machine.meanwhile(at, claim);
    let failure = volume.call(&node, Verb::Stage).unwrap_err();
    let calls = world.machine.end();
    assert_eq!(failure.kind, Kind::Busy, "{failure}");
    assert_eq!(creates(&calls), [first]);
}
