//! Tests of single system calls that fail with a certain errno: the code and the message of the
//! resulting error, whether the system call is repeated, and what is left on the machine.

use belay_server::call::Kind;
use belay_server::request::AccessMode;

use super::bench::{Form, Verb, Volume, World};
use super::disks::refused;
use super::simulated::{Media, Simulated};
use super::suite::{all_ok, nothing_left};
use crate::kernel::Kernel;
use crate::kernel::fake::{Call, Damage, Fake, Fault};
use crate::operation::Node;

fn ready(form: Form, verbs: &[Verb]) -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::new();
    let (node, volume) = (world.start(), world.volume("vol", form));
    all_ok(&node, &volume, verbs);
    (world, node, volume)
}

fn is_create(call: &Call) -> bool {
    (call.name, &*call.object) == ("fsconfig", "create")
}

#[test]
fn a_mount_in_use_is_said_to_be_in_use() {
    for (verb, before) in [
        (Verb::Unpublish(1), &[Verb::Stage, Verb::Publish(1)][..]),
        (Verb::Unstage, &[Verb::Stage]),
    ] {
        let field = match verb {
            Verb::Unstage => "staging_target_path: ",
            _ => "target_path: ",
        };
        let (world, node, volume) = ready(Form::Ext4, before);
        let act = || all_ok(&node, &volume, &[verb]);
        let at = world.first_call(act, |call| call.name == "umount2");
        let (world, node, volume) = ready(Form::Ext4, before);
        world.machine.begin(Some(Fault::FailFrom(at, "EBUSY")));
        let called = volume.call(&node, verb);
        world.machine.end();
        refused(called, Kind::Precondition, &[field, "is in use (EBUSY)"]);
        all_ok(&node, &volume, &[verb]);
    }
}

#[test]
fn only_what_the_kernel_confuses_is_mounted_by_a_second_attempt() {
    for (form, errno, kind) in [
        (Form::Ext4, "EBUSY", Kind::Busy),
        (Form::Ext4, "EINVAL", Kind::System),
        (Form::Ext4, "EEXIST", Kind::System),
        (Form::Xfs, "EINVAL", Kind::System),
        (Form::Btrfs, "EIO", Kind::System),
        (Form::Btrfs, "EBUSY", Kind::Busy),
    ] {
        let (world, node, volume) = ready(form, &[Verb::Stage, Verb::Unstage]);
        let stage = || all_ok(&node, &volume, &[Verb::Stage]);
        let at = world.first_call(stage, is_create);
        all_ok(&node, &volume, &[Verb::Unstage]);
        world.machine.begin(Some(Fault::Fail(at, errno)));
        let staged = volume.call(&node, Verb::Stage);
        let calls = world.machine.end();
        let failure = staged.expect_err(errno);
        assert_eq!(failure.kind, kind, "{form:?}: {failure}");
        let creates = calls.iter().filter(|call| is_create(call)).count();
        assert_eq!(creates, 1, "{form:?}, {errno}");
        all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
        nothing_left(&world);
    }
}

/// If e2fsck ran, e2fsck and the other mount would both write to the disk.
#[test]
fn an_ext4_that_is_mounted_elsewhere_is_not_repaired() {
    let world = Simulated::of(Media::Disks);
    let (node, volume) = (world.start(), world.volume("vol", Form::Ext4));
    all_ok(&node, &volume, &[Verb::Stage]);
    let other = world.kernel();
    let staging = other.open_path(&volume.staging()).unwrap();
    let elsewhere = other.open_tree(&staging).unwrap();
    drop(staging);
    let unstaged = volume.call(&node, Verb::Unstage);
    refused(unstaged, Kind::Precondition, &["still mounted elsewhere"]);
    world.machine.damage(&volume.file(), Damage::Slight);
    world.machine.begin(None);
    let staged = volume.call(&node, Verb::Stage);
    let calls = world.machine.end();
    refused(staged, Kind::Busy, &["is still in use for this volume"]);
    assert!(!calls.iter().any(|call| call.name == "spawn"), "{calls:?}");
    assert!(world.machine.is_damaged(&volume.file()));
    drop(elsewhere);
    all_ok(&node, &volume, &[Verb::Stage, Verb::Unstage]);
    assert!(!world.machine.is_damaged(&volume.file()));
}

#[test]
fn what_no_stage_has_made_in_the_place_of_the_device_stays() {
    for bytes in [Some(1), None] {
        let (world, node, volume) = ready(Form::Block, &[]);
        let path = volume.staging_mount();
        match bytes {
            Some(bytes) => world.make_file(&path, bytes),
            None => world.make_dir(&path),
        }
        let path_words = path.to_str().unwrap();
        let staged = volume.call(&node, Verb::Stage);
        let words = [path_words, "is in the way"];
        refused(staged, Kind::Precondition, &words);
        let unstaged = volume.call(&node, Verb::Unstage);
        let words = [path_words, "was not created by a stage"];
        refused(unstaged, Kind::Precondition, &words);
        assert!(world.machine.is_there(&path));
    }
}

#[test]
fn a_raw_reader_leaves_no_mark_of_use() {
    let uses = |mode| {
        let world = Simulated::new();
        let mut volume = world.volume("vol", Form::Block);
        volume.mode = mode;
        let node = world.start();
        world.machine.begin(None);
        all_ok(&node, &volume, &[Verb::Stage]);
        let calls = world.machine.end();
        all_ok(&node, &volume, &[Verb::Unstage]);
        calls.iter().any(|call| call.name == "fsetxattr")
    };
    assert!(uses(AccessMode::SingleNodeWriter));
    assert!(!uses(AccessMode::SingleNodeReaderOnly));
}

#[test]
fn a_file_that_reads_as_zeros_and_is_not_new_is_named_with_the_way_to_format_it() {
    let (world, node, volume) = ready(Form::Ext4, &[Verb::Stage, Verb::Unstage]);
    world.machine.truncate_file(&volume.file(), 0);
    world.make_file(&volume.file(), super::bench::BYTES);
    let staged = volume.call(&node, Verb::Stage);
    let file = volume.file();
    let words = [
        "does not record that it is new",
        "setfattr",
        file.to_str().unwrap(),
    ];
    refused(staged, Kind::Precondition, &words);
}
