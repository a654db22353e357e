//! Tests of the effect on the volume if the kernel refuses a single system call.

use belay_server::call::Kind;

use super::bench::{BYTES, DRIVER, Form, GROWN_BYTES, Verb, Volume, World};
use super::simulated::{Media, Simulated};
use super::suite::{all_ok, nothing_left};
use super::sweep::{KEPT, bind};
use crate::kernel::Kernel as _;
use crate::kernel::fake::{Call, Fake, Fault, Features, Holds};
use crate::operation::Node;

/// Returns a staged ext4 whose file was enlarged.
fn must_grow() -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::of(Media::Files);
    let volume = world.volume("vol", Form::Ext4);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    world.grow(&volume, GROWN_BYTES);
    (world, node, volume)
}

/// Options for mkfs do not affect a volume that already contains a filesystem.
#[test]
fn options_that_do_not_fit_keep_a_blank_volume_from_being_formatted_and_no_other() {
    for options in [
        &[("blockSize", "8192")][..],
        &[("btrfsNodeSize", "16384")],
        &[("numberOfInodes", "131073")],
    ] {
        let world = Simulated::new();
        let mut volume = world.volume("vol", Form::Ext4);
        volume.options = options;
        let refused = volume.call(&world.start(), Verb::Stage).unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid, "{refused}");
        let begin = format!("volume_context[{}]: ", options[0].0);
        assert!(refused.message.starts_with(&begin), "{refused}");
        assert_eq!(world.machine.holds(&volume.file()), Holds::Nothing);
        assert_eq!(world.left(), Vec::<String>::new());

        volume.options = &[];
        for verb in [Verb::Stage, Verb::Unstage] {
            volume.call(&world.start(), verb).unwrap();
        }
        volume.options = options;
        volume.call(&world.start(), Verb::Stage).unwrap();
    }
}

/// If this were not checked first, mkfs would fail at each attempt, after the attributes and the
/// format mark were written.
#[test]
fn blocks_smaller_than_those_of_the_device_are_refused_before_anything_is_written() {
    for form in [Form::Ext4, Form::Xfs] {
        let world = Simulated::new();
        let mut volume = world.volume("vol", form);
        volume.options = &[("blockSize", "2048")];
        world.machine.set_device_block_bytes(4096);
        let before = world.machine.picture();
        let refused = volume.call(&world.start(), Verb::Stage).unwrap_err();
        assert_eq!(refused.kind, Kind::Precondition, "{refused}");
        assert!(refused.message.contains("blockSize 4096"), "{refused}");
        assert_eq!(world.machine.picture(), before);

        world.machine.set_device_block_bytes(2048);
        volume.call(&world.start(), Verb::Stage).unwrap();
    }
}

#[test]
fn an_ext4_that_may_not_grow_names_the_capability_and_any_other_error_does_not() {
    let (world, node, volume) = must_grow();
    let grow = || assert!(volume.expand(&node).is_ok());
    let at = world.first_call(grow, |call| call.name == "EXT4_IOC_RESIZE_FS");
    for (errno, kind) in [("EPERM", Kind::Precondition), ("EIO", Kind::System)] {
        let (world, node, volume) = must_grow();
        world.machine.begin(Some(Fault::Fail(at, errno)));
        let failure = volume.expand(&node).unwrap_err();
        world.machine.end();
        assert_eq!(failure.kind, kind, "{failure}");
        let why = "needs CAP_SYS_RESOURCE, which this process does not have";
        let is_named = failure.message.contains(why);
        assert_eq!(is_named, errno == "EPERM", "{failure}");
        volume.expand(&node).unwrap();
    }
}

/// Returns a staged raw volume whose file was then removed.
fn without_file() -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    all_ok(&world.start(), &volume, &[Verb::Stage]);
    world.remove_file(&volume.file());
    let node = world.start();
    (world, node, volume)
}

#[test]
fn a_device_on_a_failed_disk_is_released_once_sysfs_has_no_file_behind_it() {
    let (world, node, volume) = without_file();
    world.machine.begin(None);
    all_ok(&node, &volume, &[Verb::Unstage]);
    let calls = world.machine.end();
    let is = |name: &'static str| move |call: &Call| call.name == name;
    let freed = calls.iter().position(is("LOOP_CLR_FD")).unwrap();
    let queried = calls[freed..].iter().position(is("LOOP_GET_STATUS64"));
    let (world, node, volume) = without_file();
    let at = freed + queried.unwrap() + 1;
    world.machine.begin(Some(Fault::Fail(at, "EIO")));
    let unstaged = volume.call(&node, Verb::Unstage);
    world.machine.end();
    unstaged.unwrap();
    nothing_left(&world);
}

#[test]
fn a_device_that_another_volume_takes_as_soon_as_it_is_free_was_released() {
    let at = {
        let (world, node, volume) = without_file();
        world.machine.begin(None);
        all_ok(&node, &volume, &[Verb::Unstage]);
        let calls = world.machine.end();
        let freed = calls.iter().position(|call| call.name == "LOOP_CLR_FD");
        freed.unwrap() + 2
    };
    let (world, node, volume) = without_file();
    let other = world.volume("other", Form::Block);
    world.machine.begin(Some(Fault::Hang(at)));
    let unstaged = std::thread::scope(|threads| {
        let unstaged = threads.spawn(|| volume.call(&node, Verb::Unstage));
        world.machine.wait_for_hang();
        bind(&world, &other.file(), &format!("{DRIVER}/other"), KEPT);
        world.machine.let_go();
        unstaged.join().unwrap()
    });
    world.machine.end();
    unstaged.unwrap();
    assert_eq!(world.kernel().loop_bound().unwrap().len(), 1);
}

#[test]
fn a_device_is_left_alone_by_the_start_if_its_volume_has_a_directory_for_a_file() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    let folder = world.base().join("other");
    world.make_dir(&folder);
    let theirs = folder.join(&volume.id);
    world.make_file(&theirs, BYTES);
    let number = bind(&world, &theirs, &format!("{DRIVER}/{}", volume.id), KEPT);
    let node = world.start();
    assert_eq!(node.remnants(0).unwrap(), [(number, volume.volume_id())]);
    world.remove_file(&volume.file());
    world.make_dir(&volume.file());
    assert_eq!(node.free_remnant(0, number, &volume.volume_id()), Ok(false));
}

#[test]
fn a_staged_mount_that_cannot_be_opened_is_not_called_missing() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Ext4);
    let node = world.start();
    all_ok(&node, &volume, &[Verb::Stage]);
    let publish = || all_ok(&node, &volume, &[Verb::Publish(1), Verb::Unpublish(1)]);
    let at = world.first_call(publish, |call| call.name == "open O_PATH");
    for errno in ["EIO", "EINVAL"] {
        world.machine.begin(Some(Fault::Fail(at, errno)));
        let failure = volume.call(&node, Verb::Publish(1)).unwrap_err();
        world.machine.end();
        assert_eq!(failure.kind, Kind::System, "{failure}");
        assert!(failure.message.contains(errno), "{failure}");
    }
    all_ok(&node, &volume, &[Verb::Unstage]);
    nothing_left(&world);
}

#[test]
fn features_of_a_newer_mkfs_btrfs_are_turned_off_or_named() {
    const FLAGS_AT: u64 = (64 << 10) + 0xb4;
    let staged = |features| {
        let world = Simulated::new();
        let volume = world.volume("vol", Form::Btrfs);
        world.machine.renew_btrfs(features);
        let staged = volume.call(&world.start(), Verb::Stage);
        (
            staged,
            world.machine.read_file(&volume.file(), FLAGS_AT, 16),
        )
    };
    let (plain, flags) = staged(Features::default());
    plain.unwrap();
    let newer = Features {
        compat_ro: 0x8,
        incompat: 0x4000,
    };
    let (refused, without) = staged(newer);
    refused.unwrap();
    assert_eq!(without, flags);
    let unknown = Features {
        compat_ro: 0,
        incompat: 1 << 40,
    };
    let failure = staged(unknown).0.unwrap_err();
    assert_eq!(failure.kind, Kind::System, "{failure}");
    let why = "incompat 0x10000000000, compat_ro 0x0";
    assert!(failure.message.contains(why), "{failure}");
}
