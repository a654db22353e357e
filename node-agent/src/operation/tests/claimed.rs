//! Tests of NodeStageVolume for a file on which the controller has set a claim, which is an
//! extended attribute that says that the file is being copied or deleted.

use belay_contract::drivers::local::{self, CLAIM, Claim, NEW};
use belay_server::call::Kind;

use super::bench::{BYTES, Form, MIB, Verb, Volume, World};
use super::simulated::Simulated;
use super::suite::all_ok;
use crate::kernel::{Kernel, Open};

const FORMS: [Form; 4] = [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block];

fn claim(world: &Simulated, volume: &Volume, claim: &Claim) {
    world.set_attribute(&volume.file(), CLAIM, claim.value().as_bytes());
}

fn attribute(world: &Simulated, volume: &Volume, name: &str) -> Option<Vec<u8>> {
    let kernel = world.kernel();
    let file = kernel.open(&volume.file(), Open::FileRead).unwrap();
    kernel.xattr(&file, name).unwrap()
}

/// If the claim to delete the volume remained, any later change of an attribute would unstage the
/// volume, although it is in use again.
#[test]
fn a_stage_ends_the_claim_to_delete_the_volume_even_if_it_is_staged_already() {
    for form in FORMS {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        for _ in 0..2 {
            claim(&world, &volume, &Claim::Delete);
            all_ok(&node, &volume, &[Verb::Stage]);
            assert_eq!(attribute(&world, &volume, CLAIM), None, "{form:?}");
        }
        all_ok(&node, &volume, &[Verb::Publish(1)]);
    }
}

#[test]
fn no_volume_is_staged_while_it_is_copied_or_removed() {
    let copy = (Claim::Copy("snap-1".to_owned()), Kind::Busy, "snap-1");
    let removal = (Claim::Deleting, Kind::NotFound, "being deleted");
    for (form, (reason, kind, word)) in FORMS.into_iter().zip([copy, removal].iter().cycle()) {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        claim(&world, &volume, reason);
        let refused = volume.call(&node, Verb::Stage).unwrap_err();
        assert_eq!(refused.kind, *kind, "{form:?}: {refused}");
        assert!(refused.message.contains(word), "{refused}");
        assert!(world.left().is_empty(), "{form:?}");
        assert!(attribute(&world, &volume, NEW).is_some(), "{form:?}");
        // The controller may lock the file meanwhile.
        let kernel = world.kernel();
        let file = kernel.open(&volume.file(), Open::FileRead).unwrap();
        assert!(kernel.flock(&file).unwrap(), "{form:?}");
        drop(file);
        // A controller of a later release may set claims that this agent does not know.
        world.set_attribute(&volume.file(), CLAIM, b"unknown");
        all_ok(&node, &volume, &[Verb::Stage]);
    }
}

#[test]
fn a_file_that_is_smaller_than_it_records_is_not_staged() {
    for form in FORMS {
        let world = Simulated::new();
        let node = world.start();
        let volume = world.volume("vol", form);
        all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
        for (recorded, is_staged) in [
            (BYTES + MIB, false),
            (BYTES, true),
            (BYTES - MIB, true),
            (0, true),
        ] {
            let value = recorded.to_string();
            world.set_attribute(&volume.file(), local::BYTES, value.as_bytes());
            match volume.call(&node, Verb::Stage) {
                Ok(()) if is_staged => all_ok(&node, &volume, &[Verb::Unstage]),
                Err(refused) if !is_staged => {
                    assert_eq!(refused.kind, Kind::Precondition, "{form:?}: {refused}");
                    assert!(refused.message.contains("truncated"), "{refused}");
                }
                staged => panic!("{form:?} of {recorded}: {staged:?}"),
            }
            assert!(world.left().is_empty(), "{form:?} of {recorded}");
        }
    }
}

/// The file has no attributes, for example because a tool has restored it from a backup without
/// them.
#[test]
fn a_file_without_records_is_staged_with_its_filesystem_and_never_formatted() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        for holds_data in [false, true] {
            let world = Simulated::new();
            let node = world.start();
            let volume = world.volume("vol", form);
            world.remove_file(&volume.file());
            world.make_file(&volume.file(), BYTES);
            if holds_data {
                let fs_type = form.fs_type().unwrap();
                world.machine.make_filesystem(&volume.file(), fs_type);
            }
            world.machine.begin(None);
            let staged = volume.call(&node, Verb::Stage);
            let calls = world.machine.end();
            assert_eq!(staged.is_ok(), holds_data, "{form:?}: {staged:?}");
            let changes = ["fsetxattr", "fremovexattr", "spawn"];
            assert!(!calls.iter().any(|call| changes.contains(&call.name)));
        }
    }
}
