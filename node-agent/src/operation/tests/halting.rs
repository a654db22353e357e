//! Tests of an ext4 whose superblock sets `errors=panic`, and of mount flags that the kernel
//! refuses only after it has read a superblock. The simulated kernel reports a violation if an ext4
//! is mounted with `errors=panic` in effect.

use belay_server::call::Kind;

use super::bench::{Form, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Call, Damage, Fault};

/// Returns an unstaged volume with an ext4.
fn formatted(media: Media) -> (Simulated, Volume) {
    let world = Simulated::of(media);
    let volume = world.volume("vol", Form::Ext4);
    for verb in [Verb::Stage, Verb::Unstage] {
        volume.call(&world.start(), verb).unwrap();
    }
    (world, volume)
}

/// Counts how often NodeStageVolume sets the mount option `errors`.
fn overrides(world: &Simulated, volume: &Volume) -> usize {
    let node = world.start();
    world.machine.begin(None);
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    staged.unwrap();
    assert_eq!(world.machine.violations(), Vec::<String>::new());
    let is_it = |call: &&Call| (call.name, call.object.as_str()) == ("fsconfig", "errors");
    calls.iter().filter(is_it).count()
}

#[test]
fn an_ext4_that_asks_for_a_panic_is_mounted_with_another_behaviour_and_no_other_is() {
    for media in [Media::Files, Media::Disks] {
        let (world, volume) = formatted(media);
        assert_eq!(overrides(&world, &volume), 0, "{media:?}");
        volume.call(&world.start(), Verb::Unstage).unwrap();
        world.machine.ask_panic(&volume.file(), false);
        assert_eq!(overrides(&world, &volume), 1, "{media:?}");
    }
}

#[test]
fn a_class_that_says_what_to_do_after_errors_is_obeyed() {
    let (world, mut volume) = formatted(Media::Files);
    world.machine.ask_panic(&volume.file(), false);
    volume.flags = &["errors=continue"];
    assert_eq!(overrides(&world, &volume), 1);
}

/// The kernel reads the mount options in the superblock before it replays the journal. The first
/// superblock is created only to replay the journal, so it does not need to override
/// `errors=panic`.
#[test]
fn a_panic_that_the_journal_asks_for_is_overridden_after_the_check() {
    let (world, volume) = formatted(Media::Files);
    world.machine.damage(&volume.file(), Damage::Slight);
    world.machine.ask_panic(&volume.file(), true);
    assert_eq!(overrides(&world, &volume), 1);
}

#[test]
fn a_flag_that_the_superblock_does_not_allow_is_named_and_nothing_is_left() {
    for media in [Media::Files, Media::Disks] {
        for (world, mut volume) in [
            {
                let world = Simulated::of(media);
                let volume = world.volume("vol", Form::Ext4);
                (world, volume)
            },
            formatted(media),
        ] {
            volume.flags = &["noatime", "prjquota"];
            for _ in 0..2 {
                let refused = volume.call(&world.start(), Verb::Stage).unwrap_err();
                assert_eq!(refused.kind, Kind::Invalid, "{refused}");
                let why = "can be mounted without these flags, and not with them: prjquota";
                assert!(refused.message.ends_with(why), "{refused}");
                assert_eq!(world.left(), Vec::<String>::new());
            }
            world.machine.add_projects(&volume.file());
            volume.call(&world.start(), Verb::Stage).unwrap();
            assert_eq!(world.machine.violations(), Vec::<String>::new());
        }
    }
}

/// If mounting also fails without the mount flags, nothing shows that a flag is the reason.
#[test]
fn an_error_that_is_there_without_the_flags_too_names_none() {
    let (world, mut volume) = formatted(Media::Files);
    volume.flags = &["prjquota"];
    let node = world.start();
    world.machine.begin(None);
    let refused = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    refused.unwrap_err();
    let create = |call: &Call| (call.name, call.object.as_str()) == ("fsconfig", "create");
    let creates = (1..).zip(&calls).filter(|(_, call)| create(call));
    let creates: Vec<usize> = creates.map(|(at, _)| at).collect();
    assert_eq!(creates.len(), 2, "{calls:?}");

    let node = world.start();
    let fault = Fault::Fail(creates[1], "EIO");
    world.machine.begin(Some(fault));
    let refused = volume.call(&node, Verb::Stage).unwrap_err();
    world.machine.end();
    assert_eq!(refused.kind, Kind::System, "{refused}");
    assert!(!refused.message.contains("prjquota"), "{refused}");
}
