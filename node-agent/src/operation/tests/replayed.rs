//! An ext4 whose growth was interrupted by a power loss: it is in the journal, and the kernel
//! counts the groups before it replays that. The first mount must not be used, at whatever call
//! the stage ends.

use std::panic::{AssertUnwindSafe, catch_unwind};

use belay_server::request::AccessMode;

use super::bench::{Form, GROWN_BYTES, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Fault, Holds};

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

/// Machines whose power is back: the volume is in a file or on a disk, for a writer or a reader.
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
