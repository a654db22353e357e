//! An ext4 whose superblock asks for `errors=panic`, and mount flags that the kernel refuses only
//! once it has read a superblock. The simulated kernel reports a violation if an ext4 is mounted
//! that would halt it.

use super::bench::{Form, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Call, Damage};

/// An unstaged volume with an ext4.
fn formatted(media: Media) -> (Simulated, Volume) {
    let world = Simulated::of(media);
    let volume = world.volume("vol", Form::Ext4);
    for verb in [Verb::Stage, Verb::Unstage] {
        volume.call(&world.start(), verb).unwrap();
    }
    (world, volume)
}

/// The number of times that a stage sets `errors`.
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

/// The kernel reads the options before it replays the journal, so the first superblock, which is
/// made for the replay alone, does not need the override.
#[test]
fn a_panic_that_the_journal_asks_for_is_overridden_after_the_check() {
    let (world, volume) = formatted(Media::Files);
    world.machine.damage(&volume.file(), Damage::Slight);
    world.machine.ask_panic(&volume.file(), true);
    assert_eq!(overrides(&world, &volume), 1);
}
