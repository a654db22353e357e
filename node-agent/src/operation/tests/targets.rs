//! Tests of different objects at the target path of a pod, and which of these objects
//! NodeUnpublishVolume removes.

use std::path::{Path, PathBuf};

use belay_server::call::{Failure, Kind};
use belay_server::request::{AbsPath, Unpublish};

use super::bench::{Form, Verb, Volume, World, run};
use super::orphans::bind;
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Call, Fake, Fault};
use crate::kernel::{Kernel, MountAttrs, Stat};
use crate::operation::{self, Flushed, Node, Thread};
use crate::work::Operation;

fn staged(form: Form) -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::new();
    let (node, volume) = (world.start(), world.volume("vol", form));
    volume.call(&node, Verb::Stage).unwrap();
    (world, node, volume)
}

#[track_caller]
fn refused(failure: Failure, kind: Kind, words: &str) {
    assert_eq!(failure.kind, kind, "{failure}");
    assert!(failure.message.contains(words), "{failure}");
}

#[test]
fn a_target_of_the_other_kind_is_not_published_to_and_stays() {
    let (world, node, volume) = staged(Form::Ext4);
    world.make_file(&volume.target(1), 0);
    let failure = volume.call(&node, Verb::Publish(1)).unwrap_err();
    refused(failure, Kind::Precondition, "is not a directory");
    for (bytes, directory) in [(0, true), (1, false)] {
        let (world, node, volume) = staged(Form::Block);
        match directory {
            true => world.make_dir(&volume.target(1)),
            false => world.make_file(&volume.target(1), bytes),
        }
        let failure = volume.call(&node, Verb::Publish(1)).unwrap_err();
        refused(failure, Kind::Precondition, "is not an empty file");
        assert!(world.machine.is_there(&volume.target(1)));
    }
}

#[test]
fn a_target_that_permits_what_a_repeated_publish_forbids_is_refused() {
    let (_, node, volume) = staged(Form::Ext4);
    volume.call(&node, Verb::Publish(1)).unwrap();
    let flags: [&[&str]; 4] = [&["nosuid"], &["nodev"], &["noexec"], &["nosymfollow"]];
    for flags in flags {
        let stricter = Volume {
            flags,
            ..volume.clone()
        };
        let failure = stricter.call(&node, Verb::Publish(1)).unwrap_err();
        refused(
            failure,
            Kind::Incompatible,
            &format!("without {}", flags[0]),
        );
    }
    volume.call(&node, Verb::Publish(1)).unwrap();
}

#[test]
fn a_target_with_files_is_kept_and_only_that_is_said_to_be_the_reason() {
    let (world, node, volume) = staged(Form::Ext4);
    let target = volume.target(1);
    world.make_file(&target.join("written-while-unmounted"), 7);
    let failure = volume.call(&node, Verb::Unpublish(1)).unwrap_err();
    refused(failure, Kind::Precondition, "contains files");
    world.remove_file(&target.join("written-while-unmounted"));
    let remove = |call: &Call| call.name == "rmdir";
    let at = world.first_call(|| volume.call(&node, Verb::Unpublish(1)).unwrap(), remove);
    world.make_dir(&target);
    world.machine.begin(Some(Fault::Fail(at, "EIO")));
    let failure = volume.call(&node, Verb::Unpublish(1)).unwrap_err();
    world.machine.end();
    refused(failure, Kind::System, "EIO");
    volume.call(&node, Verb::Unpublish(1)).unwrap();
    assert!(!world.machine.is_there(&target));
}

#[test]
fn a_file_that_no_publish_has_made_is_not_removed() {
    let (world, node, volume) = staged(Form::Block);
    world.make_file(&volume.target(1), 1);
    let failure = volume.call(&node, Verb::Unpublish(1)).unwrap_err();
    refused(failure, Kind::Precondition, "was not created by a publish");
    assert!(world.machine.is_there(&volume.target(1)));
}

fn flush(node: &Node<Fake>, volume: &Volume, target: &Path) -> Result<Flushed, Failure> {
    let target = target.to_str().unwrap().to_owned();
    let request = Unpublish {
        id: volume.volume_id(),
        target: AbsPath::new("target_path", target).unwrap(),
    };
    run(node, Operation::Unpublish, |cx| {
        operation::flush(cx, &request)
    })
}

#[test]
fn only_the_volumes_own_target_under_the_kubelets_directory_is_flushed() {
    let world = Simulated::of(Media::Disks);
    let node = world.start();
    let (volume, other) = (
        world.volume("vol", Form::Ext4),
        world.volume("other", Form::Ext4),
    );
    for volume in [&volume, &other] {
        volume.call(&node, Verb::Stage).unwrap();
        volume.call(&node, Verb::Publish(1)).unwrap();
    }
    let flushes = |volume: &Volume, target: PathBuf| {
        world.machine.begin(None);
        let flushed = flush(&node, volume, &target);
        let calls = world.machine.end();
        (flushed, calls.iter().any(|call| call.name == "syncfs"))
    };
    let (flushed, is_written) = flushes(&volume, volume.target(1));
    assert!(matches!(flushed, Ok(Flushed::Done)) && is_written);
    for target in [other.target(1), volume.target(2)] {
        let (flushed, is_written) = flushes(&volume, target);
        assert!(matches!(flushed, Ok(Flushed::Nothing)) && !is_written);
    }
    let (flushed, _) = flushes(&volume, "/elsewhere/pods/vol-1".into());
    refused(flushed.err().unwrap(), Kind::Invalid, "--kubelet-dir");
}

#[test]
fn a_raw_volume_that_lost_its_device_is_not_published_and_the_reason_is_said() {
    let (world, node, volume) = staged(Form::Block);
    world.machine.unbind_all();
    let failure = volume.call(&node, Verb::Publish(1)).unwrap_err();
    refused(failure, Kind::Precondition, "detached by force");
    assert!(!world.machine.is_there(&volume.target(1)));
}

#[test]
fn flags_that_no_mount_takes_are_refused_before_a_device_is_bound() {
    let world = Simulated::new();
    let (node, mut volume) = (world.start(), world.volume("vol", Form::Ext4));
    volume.flags = &["ro", "rw"];
    world.machine.begin(None);
    let failure = volume.call(&node, Verb::Stage).unwrap_err();
    let calls = world.machine.end();
    refused(failure, Kind::Invalid, "contradicts");
    assert!(!calls.iter().any(|call| call.name == "LOOP_CONFIGURE"));
    assert!(node.kernel.loop_bound().unwrap().is_empty());
}

#[test]
fn an_empty_target_of_the_right_kind_is_used_and_removed() {
    for form in [Form::Ext4, Form::Block] {
        let (world, node, volume) = staged(form);
        match form {
            Form::Block => world.make_file(&volume.target(1), 0),
            _ => world.make_dir(&volume.target(1)),
        }
        for verb in [Verb::Publish(1), Verb::Stats, Verb::Unpublish(1)] {
            volume.call(&node, verb).unwrap();
        }
        assert!(!world.machine.is_there(&volume.target(1)));
    }
}

#[test]
fn a_target_whose_parent_does_not_exist_is_not_made_and_the_caller_is_named() {
    for form in [Form::Ext4, Form::Block] {
        let (_, node, mut volume) = staged(form);
        volume.base = volume.base.join("none");
        let target = volume.target(1);
        volume.base = "/base".into();
        let published = volume.publish_at(&node, &target, Thread::Pool);
        refused(published.unwrap_err(), Kind::Precondition, "the parent of");
    }
}

#[test]
fn a_target_and_a_staging_path_that_contain_each_other_are_refused() {
    for form in [Form::Ext4, Form::Block] {
        let (world, node, volume) = staged(form);
        let before = world.machine.picture();
        let staging = volume.staging();
        let above = staging.parent().unwrap().to_owned();
        for target in [staging.join("within"), above] {
            let published = volume.publish_at(&node, &target, Thread::Pool);
            let words = "contain each other";
            refused(published.unwrap_err(), Kind::Invalid, words);
        }
        assert_eq!(world.machine.picture().difference(&before), "");
    }
}

/// A symlink in the target path may lead to the staging path. If NodePublishVolume accepted such a
/// target, NodeUnpublishVolume would unmount the staged mount.
#[test]
fn the_staged_mount_is_no_target_under_another_path() {
    let (_, node, volume) = staged(Form::Ext4);
    let stat = node.kernel.look(&volume.staging()).unwrap().unwrap();
    let published = |stat: Stat| {
        let request = volume.publish_request(&volume.staging());
        let attrs = MountAttrs::default();
        operation::publish::published_before(&node, &request, &stat, &stat, stat.dev, attrs)
    };
    let failure = published(stat).unwrap_err();
    refused(failure, Kind::Invalid, "is where the volume is staged");
    // Before Linux 6.8, mounts have no unique IDs, so the staged mount cannot be recognized.
    published(Stat {
        mount_id: 0,
        ..stat
    })
    .unwrap();
}

/// A second call for the same target runs at the same time, or the kubelet removes the target
/// meanwhile.
#[test]
fn a_target_that_is_removed_meanwhile_was_unpublished() {
    for form in [Form::Ext4, Form::Block] {
        let (world, node, volume) = staged(form);
        let target = volume.target(1);
        let removal = match form {
            Form::Block => "unlink",
            _ => "rmdir",
        };
        volume.call(&node, Verb::Publish(1)).unwrap();
        let unpublish = || volume.call(&node, Verb::Unpublish(1));
        let is_removal = |call: &Call| call.name == removal;
        let at = world.first_call(|| unpublish().unwrap(), is_removal);
        volume.call(&node, Verb::Publish(1)).unwrap();
        world.machine.begin(Some(Fault::Hang(at)));
        std::thread::scope(|threads| {
            let unpublished = threads.spawn(unpublish);
            world.machine.wait_for_hang();
            match form {
                Form::Block => world.kernel().unlink(&target).unwrap(),
                _ => world.kernel().rmdir(&target).unwrap(),
            }
            world.machine.let_go();
            unpublished.join().unwrap().unwrap();
        });
        world.machine.end();
    }
}

#[test]
fn a_staging_path_that_is_no_directory_is_refused_and_named() {
    for form in [Form::Ext4, Form::Block] {
        let world = Simulated::new();
        let (node, mut volume) = (world.start(), world.volume("vol", form));
        let path = world.base().join("staging/file");
        world.make_file(&path, 0);
        volume.staged_at = Some(path);
        let failure = volume.call(&node, Verb::Stage).unwrap_err();
        let words = "staging_target_path: /base/staging/file is not a directory";
        refused(failure, Kind::Invalid, words);
        assert!(node.kernel.loop_bound().unwrap().is_empty());
    }
}

#[test]
fn another_mount_where_a_raw_volume_is_staged_is_in_the_way_and_stays() {
    for is_directory in [true, false] {
        let world = Simulated::new();
        let (node, volume) = (world.start(), world.volume("vol", Form::Block));
        let path = volume.staging_mount();
        if is_directory {
            world.make_dir(&path);
            world.machine.cover(&path);
        } else {
            let empty = world.base().join("empty");
            world.make_file(&empty, 0);
            bind(&node.kernel, &empty, &path);
        }
        let before = world.machine.picture();
        let failure = volume.call(&node, Verb::Stage).unwrap_err();
        refused(failure, Kind::Precondition, "is in the way");
        let failure = volume.call(&node, Verb::Unstage).unwrap_err();
        refused(failure, Kind::Precondition, "was not created by a stage");
        assert_eq!(world.machine.picture().difference(&before), "");
    }
}
