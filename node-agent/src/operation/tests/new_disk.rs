//! Tests of disks that were created recently. The agent reads samples of such a disk instead of the
//! whole disk, and does not format the disk if a sample is not blank.

use std::path::Path;

use belay_server::call::Kind;

use super::bench::{BYTES, Form, MIB, Verb, Volume, World};
use super::simulated::{DISK_DRIVER, Media, Simulated};
use crate::device::DiskRules;
use crate::kernel::fake::{Fake, Fault, Holds};
use crate::kernel::{Kernel, Open};
use crate::operation::Node;

const ATTACHED: u64 = 1_800_000_000;
/// The size in bytes of the parts into which a disk is divided; the middle of each part is sampled.
const PART_BYTES: u64 = BYTES / 256;

/// Returns a blank disk that was attached at [`ATTACHED`].
fn attached(content: &'static str) -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::of(Media::Disks);
    let mut volume = world.volume("vol", Form::Ext4);
    volume.content = content;
    volume.attached_at = Some(ATTACHED);
    world.machine.discard(&volume.file());
    let node = world.start();
    (world, node, volume)
}

/// Counts how often NodeStageVolume reads the disk.
fn reads(content: &'static str, now: u64) -> usize {
    let (world, node, volume) = attached(content);
    world.machine.set_clock(now);
    world.machine.begin(None);
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    staged.unwrap();
    let holds = world.machine.holds(&volume.file());
    assert_eq!(holds, Holds::Filesystem("ext4", BYTES, 1));
    calls.iter().filter(|call| call.name == "pread").count()
}

#[test]
fn all_of_a_disk_is_read_unless_it_is_new() {
    let samples = reads("new", ATTACHED + 600);
    assert!(samples < 400, "{samples}");
    for (content, now) in [
        ("new", ATTACHED + 601),
        ("new", ATTACHED - 601),
        ("used", ATTACHED),
    ] {
        let whole = reads(content, now);
        assert!(whole > 4000, "{content}, {now}: {whole}");
    }
}

#[test]
fn a_byte_at_a_sample_or_a_signature_anywhere_keeps_a_new_disk_from_being_formatted() {
    let middle = PART_BYTES / 2;
    let ext_copy = 128 * MIB + 0x38;
    for (at, bytes, what) in [
        (1, &[1][..], "unknown data"),
        (510, &[0x55, 0xaa], "a boot sector"),
        (BYTES - 1, &[1], "unknown data"),
        (77 * PART_BYTES + middle, &[1], "unknown data"),
        (ext_copy, &[0x53, 0xef], "unknown data"),
    ] {
        let (world, node, volume) = attached("new");
        world.write_file(&volume.file(), at, bytes);
        let refused = volume.call(&node, Verb::Stage).unwrap_err();
        assert_eq!(refused.kind, Kind::Precondition, "{at}: {refused}");
        assert!(refused.message.contains(what), "{at}: {refused}");
    }
}

/// An example of disks that the cloud does not clear are thick LVM volumes.
#[test]
fn a_new_disk_that_was_not_cleared_is_formatted_only_where_that_is_accepted() {
    let accept = DiskRules {
        accepts_uncleared: true,
        ..DiskRules::default()
    };
    let prove = DiskRules {
        proves_unknown: true,
        ..accept
    };
    let (sample, btrfs_copy) = (77 * PART_BYTES + PART_BYTES / 2, 64 * MIB + 0x40);
    let garbage: &[u8] = &[0x5a, 1, 2, 3];
    for (rules, content, age, at, bytes, is_formatted) in [
        (accept, "new", 600, 4096, garbage, true),
        (accept, "new", 600, sample, garbage, true),
        (accept, "new", 600, BYTES - 4, garbage, true),
        (DiskRules::default(), "new", 0, sample, garbage, false),
        // The entry `content` has expired, or has a value other than "new".
        (accept, "new", 601, sample, garbage, false),
        (accept, "used", 0, sample, garbage, false),
        (prove, "unknown", 0, sample, garbage, false),
        (accept, "populated", 0, sample, garbage, false),
        // Disks with known signatures.
        (accept, "new", 0, 510, &[0x55, 0xaa], false),
        (accept, "new", 0, btrfs_copy, b"_BHRfS_M", false),
        (accept, "new", 0, BYTES - 512, b"EFI PART\0\0\x01\0", false),
    ] {
        let (world, _, volume) = attached(content);
        world.machine.soil(&volume.file(), at, bytes);
        world.machine.set_clock(ATTACHED + age);
        let node = world.start_disks_which(DISK_DRIVER, rules);
        let before = world.machine.holds(&volume.file());
        let staged = volume.call(&node, Verb::Stage);
        let what = format!("{rules:?} {content} {age} {at}: {staged:?}");
        assert_eq!(staged.is_ok(), is_formatted, "{what}");
        let holds = world.machine.holds(&volume.file());
        match is_formatted {
            true => assert_eq!(holds, Holds::Filesystem("ext4", BYTES, 1), "{what}"),
            false => assert_eq!(holds, before, "{what}"),
        }
    }
}

#[test]
fn a_sample_that_cannot_be_read_keeps_a_new_disk_from_being_formatted() {
    let (world, node, volume) = attached("new");
    world.machine.begin(None);
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    staged.unwrap();
    let mkfs = calls.iter().position(|call| call.name == "mkfs write");
    let reads = calls[..mkfs.unwrap()].iter().zip(1..);
    let reads: Vec<_> = reads.filter(|(call, _)| call.name == "pread").collect();
    assert!(reads.len() > 256, "{}", reads.len());
    for (_, at) in reads {
        let (world, node, volume) = attached("new");
        world.machine.begin(Some(Fault::Fail(at, "EIO")));
        let staged = volume.call(&node, Verb::Stage);
        world.machine.end();
        assert!(staged.is_err(), "call {at}");
        assert_eq!(world.machine.holds(&volume.file()), Holds::Nothing);
    }
}

/// When NodeStageVolume requested a slot, no other process had the disk open exclusively.
#[test]
fn a_blank_disk_that_another_process_has_claimed_meanwhile_is_not_formatted() {
    for content in ["new", "used"] {
        let (world, node, volume) = attached(content);
        assert!(volume.wants_slot(&node), "{content}");
        let claim = node
            .kernel
            .open(Path::new("/dev/vda"), Open::DeviceExclusive);
        world.machine.begin(None);
        let failure = volume.stage_in_slot(&node).unwrap_err();
        let calls = world.machine.end();
        assert_eq!(failure.kind, Kind::Busy, "{content}: {failure}");
        assert!(failure.message.contains("still in use"), "{failure}");
        assert!(!calls.iter().any(|call| call.name == "spawn"), "{content}");
        drop(claim.unwrap());
        volume.stage_in_slot(&node).unwrap();
        let holds = world.machine.holds(&volume.file());
        assert_eq!(holds, Holds::Filesystem("ext4", BYTES, 1));
    }
}
