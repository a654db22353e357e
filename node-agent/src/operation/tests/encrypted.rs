//! Tests of the decision whether an encrypted volume is opened, and whether its content is
//! formatted. The module `matrix` lets these calls fail and crash.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use belay_server::call::{Failure, Kind};
use belay_server::request::AccessMode;

use super::bench::{Form, MIB, NEXT_PASSPHRASE, PASSPHRASE, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Fault, Holds};
use crate::kernel::{AlignedBuf, Kernel, Open};

const MEDIA: [Media; 2] = [Media::Files, Media::Disks];
const FORMS: [Form; 2] = [Form::Ext4, Form::Block];
const NOW: u64 = 1_800_000_000;
const DATA: &[u8] = b"what a pod has written";
const DATA_AT: u64 = 50 * MIB;
/// The offsets of the two copies of a header, and of the label and the subsystem in a copy.
const COPIES_AT: [u64; 2] = [0, 0x4000];
const TEXTS_AT: [usize; 2] = [24, 208];

/// Returns an encrypted volume that was never staged.
fn blank(media: Media, form: Form) -> (Simulated, Volume) {
    let world = Simulated::of(media);
    let mut volume = world.volume("vol", form).encrypted();
    if media == Media::Disks {
        world.machine.discard(&volume.file());
        world.machine.set_clock(NOW);
        volume.attached_at = Some(NOW);
    }
    (world, volume)
}

/// Returns an unstaged encrypted volume with data.
fn used(media: Media, form: Form) -> (Simulated, Volume) {
    let (world, volume) = blank(media, form);
    volume.call(&world.start(), Verb::Stage).unwrap();
    world.write_file(&volume.file(), DATA_AT, DATA);
    volume.call(&world.start(), Verb::Unstage).unwrap();
    (world, volume)
}

/// Returns a volume whose header an agent has created and opened before it was killed.
fn unfinished(media: Media, form: Form) -> (Simulated, Volume) {
    let (world, volume) = blank(media, form);
    let node = world.start();
    world.machine.begin(Some(Fault::DieAfter("DM_TABLE_LOAD")));
    let died = catch_unwind(AssertUnwindSafe(|| volume.call(&node, Verb::Stage)));
    assert!(died.is_err());
    world.machine.end();
    drop(node);
    volume.call(&world.start(), Verb::Unstage).unwrap();
    (world, volume)
}

/// Stages the volume, which must be refused without a change of the machine or of the volume.
fn refused(world: &Simulated, volume: &Volume) -> Failure {
    let machine = &world.machine;
    let before = (machine.picture(), machine.holds(&volume.file()));
    let failure = volume.call(&world.start(), Verb::Stage).unwrap_err();
    let after = (machine.picture(), machine.holds(&volume.file()));
    assert_eq!(before, after, "{failure}");
    assert_eq!(machine.violations(), Vec::<String>::new(), "{failure}");
    assert!(!failure.message.contains(PASSPHRASE), "{failure}");
    failure
}

#[track_caller]
fn expect(failure: &Failure, kind: Kind, words: &str) {
    assert_eq!(failure.kind, kind, "{failure}");
    assert!(failure.message.contains(words), "{failure}");
}

fn data(world: &Simulated, volume: &Volume) -> Vec<u8> {
    let machine = &world.machine;
    machine.read_file(&volume.file(), DATA_AT, DATA.len())
}

/// Reads a copy of the volume's header.
fn copy_at(world: &Simulated, volume: &Volume, at: u64) -> Vec<u8> {
    let kernel = world.kernel();
    let file = kernel.open(&volume.file(), Open::FileRead).unwrap();
    let mut block = AlignedBuf::new(4096);
    kernel.pread(&file, &mut block, at).unwrap();
    block.to_vec()
}

#[test]
fn a_wrong_passphrase_is_refused_and_changes_nothing() {
    for (media, form) in MEDIA.map(|media| FORMS.map(|form| (media, form))).concat() {
        let (world, mut volume) = used(media, form);
        volume.passphrase = Some("another one");
        let failure = refused(&world, &volume);
        expect(&failure, Kind::Precondition, "encryptionPassphrase");
        volume.passphrase = Some(PASSPHRASE);
        volume.call(&world.start(), Verb::Stage).unwrap();
        assert_eq!(data(&world, &volume), DATA, "{media:?}, {form:?}");
    }
}

#[test]
fn the_previous_passphrase_is_replaced_and_opens_the_volume_no_longer() {
    for (media, form) in MEDIA.map(|media| FORMS.map(|form| (media, form))).concat() {
        let (world, mut volume) = used(media, form);
        volume.replace_passphrase();
        volume.mode = AccessMode::MultiNodeReaderOnly;
        let stage = |volume: &Volume| volume.call(&world.start(), Verb::Stage);
        let unstage = |volume: &Volume| volume.call(&world.start(), Verb::Unstage).unwrap();
        stage(&volume).unwrap();
        unstage(&volume);
        volume.previous = None;
        // It was used read-only, so its header was not changed.
        expect(&refused(&world, &volume), Kind::Precondition, "no key slot");
        volume.mode = AccessMode::SingleNodeMultiWriter;
        for previous in [Some(PASSPHRASE), Some(PASSPHRASE), None] {
            volume.previous = previous;
            stage(&volume).unwrap();
            assert_eq!(data(&world, &volume), DATA, "{media:?}, {form:?}");
            unstage(&volume);
        }
        volume.passphrase = Some(PASSPHRASE);
        expect(&refused(&world, &volume), Kind::Precondition, "no key slot");
        volume.previous = Some("a third one");
        let failure = refused(&world, &volume);
        expect(
            &failure,
            Kind::Precondition,
            "and of encryptionPassphrasePrevious",
        );
        assert!(!failure.message.contains(NEXT_PASSPHRASE), "{failure}");
    }
}

#[test]
fn the_header_of_another_program_is_opened_and_nothing_inside_is_formatted() {
    for media in MEDIA {
        let (world, volume) = blank(media, Form::Ext4);
        world.machine.encrypt(&volume.file(), PASSPHRASE);
        let failure = volume.call(&world.start(), Verb::Stage).unwrap_err();
        expect(&failure, Kind::Precondition, "does not record that Belay");
        assert_eq!(world.left(), Vec::<String>::new());
        assert_eq!(world.machine.holds(&volume.file()), Holds::Parts);
        let raw = Volume {
            form: Form::Block,
            ..volume
        };
        raw.call(&world.start(), Verb::Stage).unwrap();
    }
}

#[test]
fn an_unencrypted_filesystem_is_not_mounted_for_an_encrypted_class() {
    for media in MEDIA {
        let world = Simulated::of(media);
        let mut volume = world.volume("vol", Form::Ext4);
        volume.call(&world.start(), Verb::Stage).unwrap();
        world.write_file(&volume.file(), DATA_AT, DATA);
        volume.call(&world.start(), Verb::Unstage).unwrap();
        volume = volume.encrypted();
        let failure = refused(&world, &volume);
        expect(&failure, Kind::Precondition, "unencrypted ext4");
        assert_eq!(data(&world, &volume), DATA, "{media:?}");
    }
}

#[test]
fn a_volume_is_staged_again_only_with_or_without_encryption_as_before() {
    for (media, form) in MEDIA.map(|media| FORMS.map(|form| (media, form))).concat() {
        let (world, mut volume) = blank(media, form);
        volume.call(&world.start(), Verb::Stage).unwrap();
        (volume.options, volume.passphrase) = (&[], None);
        expect(&refused(&world, &volume), Kind::Incompatible, "from an enc");
        let world = Simulated::of(media);
        let volume = world.volume("vol", form);
        volume.call(&world.start(), Verb::Stage).unwrap();
        let volume = volume.encrypted();
        expect(&refused(&world, &volume), Kind::Incompatible, "without an");
    }
}

#[test]
fn a_mapper_of_another_program_is_left_open() {
    let (world, volume) = used(Media::Disks, Form::Ext4);
    world.machine.map(Path::new("/dev/vda"), "mine");
    let failure = refused(&world, &volume);
    expect(&failure, Kind::Precondition, "cryptsetup close mine");
    let failure = volume.call(&world.start(), Verb::Unstage).unwrap_err();
    expect(&failure, Kind::Precondition, "cryptsetup close mine");
    let open = world.machine.picture().beginning_with(&["mapper"]);
    assert_eq!(open.len(), 1, "{open:?}");
}

#[test]
fn the_mapper_of_a_removed_disk_is_closed_although_an_agent_was_killed_before() {
    for form in FORMS {
        let (world, volume) = blank(Media::Disks, form);
        volume.call(&world.start(), Verb::Stage).unwrap();
        world.machine.unplug(&volume.file());
        let node = world.start();
        world.machine.begin(Some(Fault::DieAfter("umount2")));
        let died = catch_unwind(AssertUnwindSafe(|| volume.call(&node, Verb::Unstage)));
        assert!(died.is_err());
        world.machine.end();
        drop(node);
        volume.call(&world.start(), Verb::Unstage).unwrap();
        assert_eq!(world.left(), Vec::<String>::new(), "{form:?}");
    }
}

#[test]
fn an_unfinished_volume_is_not_used_read_only() {
    for (media, form) in MEDIA.map(|media| FORMS.map(|form| (media, form))).concat() {
        let (world, mut volume) = unfinished(media, form);
        volume.mode = AccessMode::MultiNodeReaderOnly;
        let failure = refused(&world, &volume);
        expect(&failure, Kind::Precondition, "read-write first");
        volume.mode = AccessMode::SingleNodeMultiWriter;
        volume.call(&world.start(), Verb::Stage).unwrap();
        for at in COPIES_AT {
            let copy = copy_at(&world, &volume, at);
            let is_clear = TEXTS_AT.iter().all(|text| copy[*text] == 0);
            assert!(is_clear, "{media:?}, {form:?}, copy at {at}");
        }
    }
}

/// The label of an unfinished header names the attempt, so it is no evidence for another volume.
#[test]
fn a_copy_of_an_unfinished_volume_is_not_formatted() {
    let disks = |change: fn(&mut Volume)| {
        let (world, mut volume) = unfinished(Media::Disks, Form::Ext4);
        change(&mut volume);
        let failure = refused(&world, &volume);
        expect(&failure, Kind::Precondition, "does not record that Belay");
    };
    disks(|volume| volume.mark = Some(2));
    disks(|volume| volume.mark = None);
    disks(|volume| volume.content = "populated");
}

#[test]
fn a_volume_is_opened_with_either_copy_of_its_header() {
    for (media, at) in MEDIA.map(|media| COPIES_AT.map(|at| (media, at))).concat() {
        let (world, volume) = used(media, Form::Ext4);
        let kernel = world.kernel();
        let file = kernel.open(&volume.file(), Open::FileWrite).unwrap();
        kernel.pwrite(&file, &[0; 4096], at).unwrap();
        drop(file);
        volume.call(&world.start(), Verb::Stage).unwrap();
        assert_eq!(data(&world, &volume), DATA, "{media:?}, {at}");
    }
}
