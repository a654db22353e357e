//! Tests that an ext4 whose superblock records errors is checked before it is mounted, and that an
//! ext4 without errors is not checked.

use std::collections::BTreeMap;
use std::time::Duration;

use belay_server::call::Kind;
use belay_server::request::AccessMode;

use super::bench::{Form, Verb, Volume, World};
use super::counted::counted;
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Damage, Fault};
use crate::kernel::{Disks, Kernel, Open};

/// Returns an unstaged volume with a filesystem.
fn formatted(media: Media, form: Form) -> (Simulated, Volume) {
    let world = Simulated::of(media);
    let volume = world.volume("vol", form);
    for verb in [Verb::Stage, Verb::Unstage] {
        volume.call(&world.start(), verb).unwrap();
    }
    (world, volume)
}

fn damaged(media: Media, damage: Damage) -> (Simulated, Volume) {
    let (world, volume) = formatted(media, Form::Ext4);
    world.machine.damage(&volume.file(), damage);
    (world, volume)
}

/// Counts the processes that NodeStageVolume starts.
fn started(world: &Simulated, volume: &Volume) -> usize {
    let node = world.start();
    world.machine.begin(None);
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    staged.unwrap();
    calls.iter().filter(|call| call.name == "spawn").count()
}

#[test]
fn a_sound_volume_starts_no_process_and_a_damaged_one_starts_one_once() {
    for media in [Media::Files, Media::Disks] {
        for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
            let (world, volume) = formatted(media, form);
            assert_eq!(started(&world, &volume), 0, "{media:?}, {form:?}");
        }
        let (world, volume) = damaged(media, Damage::Slight);
        for expected in [1, 0] {
            assert_eq!(started(&world, &volume), expected, "{media:?}");
            volume.call(&world.start(), Verb::Unstage).unwrap();
        }
        assert!(!world.machine.is_damaged(&volume.file()), "{media:?}");
        assert_eq!(world.left(), Vec::<String>::new());
    }
}

/// A check needs a slot for mkfs or e2fsck, because a check of a large volume takes as long as
/// mkfs.
#[test]
fn a_check_begins_only_in_a_slot_for_it() {
    let (world, volume) = damaged(Media::Files, Damage::Slight);
    let node = world.start();
    world.machine.begin(None);
    assert!(volume.wants_slot(&node));
    let calls = world.machine.end();
    assert!(!calls.iter().any(|call| call.name == "spawn"));
    assert_eq!(world.left(), Vec::<String>::new());
}

#[test]
fn damage_that_only_a_human_may_repair_keeps_a_volume_from_being_mounted_until_it_is() {
    for (media, named) in [(Media::Files, "/base/volumes/vol"), (Media::Disks, "vol")] {
        let (world, volume) = damaged(media, Damage::Severe);
        let before = world.machine.picture();
        for _ in 0..2 {
            let refused = volume.call(&world.start(), Verb::Stage).unwrap_err();
            assert_eq!(refused.kind, Kind::Precondition, "{refused}");
            for part in ["vol: not mounted", "RUN fsck MANUALLY", "e2fsck -f", named] {
                assert!(refused.message.contains(part), "{part}: {refused}");
            }
            assert_eq!(world.machine.picture(), before);
        }
        world.machine.repair(&volume.file());
        assert_eq!(started(&world, &volume), 0);
        assert_eq!(world.machine.violations(), Vec::<String>::new());
    }
}

#[test]
fn who_may_only_read_has_nothing_repaired() {
    let (world, mut volume) = damaged(Media::Files, Damage::Slight);
    volume.mode = AccessMode::MultiNodeReaderOnly;
    assert_eq!(started(&world, &volume), 0);
    assert!(world.machine.is_damaged(&volume.file()));
}

/// The device is in use by another process, which has opened the device exclusively.
#[test]
fn a_device_that_another_process_has_is_not_checked() {
    let (world, volume) = damaged(Media::Disks, Damage::Slight);
    let node = world.start();
    let disk = node.kernel.disks().unwrap()[0].name.clone();
    let kernel = world.kernel();
    let path = std::path::Path::new("/dev").join(disk);
    let claim = kernel.open(&path, Open::DeviceExclusive).unwrap();
    world.machine.begin(None);
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    assert_eq!(staged.unwrap_err().kind, Kind::Busy);
    assert!(!calls.iter().any(|call| call.name == "spawn"));
    assert!(world.machine.is_damaged(&volume.file()));
    drop(claim);
    assert_eq!(started(&world, &volume), 1);
}

#[test]
fn every_end_of_a_check_is_counted() {
    let first = |name: &str| {
        let (world, volume) = damaged(Media::Files, Damage::Slight);
        let node = world.start();
        world.first_call(
            || volume.call(&node, Verb::Stage).unwrap(),
            |call| call.name == name,
        )
    };
    let eio = |name| Some(Fault::Fail(first(name), "EIO"));
    for (damage, fault, is_staged, result) in [
        (Damage::Slight, None, true, "corrected"),
        (Damage::Severe, None, false, "damaged"),
        (Damage::Slight, eio("e2fsck read"), false, "failed"),
        (Damage::Slight, eio("e2fsck write"), false, "failed"),
        (Damage::Slight, eio("spawn"), false, "failed"),
    ] {
        let (world, volume) = damaged(Media::Files, damage);
        let node = world.start();
        let seen = counted(|| {
            world.machine.begin(fault);
            let staged = volume.call(&node, Verb::Stage);
            world.machine.end();
            assert_eq!(staged.is_ok(), is_staged, "{result}: {staged:?}");
        });
        let series = format!("belay_filesystem_checks_total{{result=\"{result}\"}}");
        assert_eq!(seen, BTreeMap::from([(series, "1".to_owned())]));
    }
}

/// The memory of e2fsck is charged to the agent's control group, and depends on the size of the
/// volume.
#[test]
fn a_second_check_does_not_begin_on_a_node_and_holds_no_slot() {
    let (world, volume) = damaged(Media::Files, Damage::Slight);
    let node = world.start();
    let other = node
        .shared
        .checks
        .begin("e2fsck", Duration::from_secs(3600))
        .unwrap();
    world.machine.begin(None);
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    assert_eq!(staged.unwrap_err().kind, Kind::Busy);
    assert!(!calls.iter().any(|call| call.name == "spawn"));
    assert!(world.machine.is_damaged(&volume.file()));
    assert_eq!(world.left(), Vec::<String>::new());
    drop(other);
    assert_eq!(started(&world, &volume), 1);
}

/// If e2fsck cannot read the journal, e2fsck deletes the journal.
#[test]
fn the_kernel_replays_the_journal_before_a_check() {
    let (world, volume) = damaged(Media::Files, Damage::Slight);
    let node = world.start();
    let create =
        |call: &crate::kernel::fake::Call| (call.name, &*call.object) == ("fsconfig", "create");
    let first = world.first_call(|| volume.call(&node, Verb::Stage).unwrap(), create);
    let (world, volume) = damaged(Media::Files, Damage::Slight);
    let node = world.start();
    world.machine.begin(Some(Fault::Fail(first, "EIO")));
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    let refused = staged.unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
    assert!(refused.message.contains("e2fsck -f"), "{refused}");
    assert!(!calls.iter().any(|call| call.name == "spawn"));
    assert!(world.machine.is_damaged(&volume.file()));
}

/// If e2fsck is not installed, volumes are still mounted, as other drivers do.
#[test]
fn without_e2fsck_a_damaged_volume_is_mounted_and_that_is_counted() {
    let (world, volume) = damaged(Media::Files, Damage::Slight);
    world.machine.remove_e2fsck();
    let seen = counted(|| volume.call(&world.start(), Verb::Stage).unwrap());
    let series = "belay_filesystem_checks_total{result=\"not_installed\"}";
    assert_eq!(seen, BTreeMap::from([(series.to_owned(), "1".to_owned())]));
    assert!(world.machine.is_damaged(&volume.file()));
}
