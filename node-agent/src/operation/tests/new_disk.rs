//! Disks that were created a moment ago: samples of them are read instead of everything, and
//! nothing is formatted that a sample contradicts.

use belay_server::call::Kind;

use super::bench::{BYTES, Form, MIB, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Fake, Fault, Holds};
use crate::operation::Node;

const ATTACHED: u64 = 1_800_000_000;
/// The samples are in the middle of parts of this size.
const PART_BYTES: u64 = BYTES / 256;

/// A blank disk that was attached at [`ATTACHED`].
fn attached(content: &'static str) -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::of(Media::Disks);
    let mut volume = world.volume("vol", Form::Ext4);
    volume.content = content;
    volume.attached_at = Some(ATTACHED);
    world.machine.discard(&volume.file());
    let node = world.start();
    (world, node, volume)
}

/// How often a stage reads the disk.
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
