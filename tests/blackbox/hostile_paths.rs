//! Requests whose paths and IDs do not belong together: nothing is removed that does not belong to
//! the volume, and nothing is mounted where it would be in the way.

use std::fs::{self, File};
use std::path::Path;

use rustix::fs::statvfs;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use tonic::Code;

use crate::rig::{Rig, Volume, World, access, bind_loop, least_bytes, mount_image, refused, run};

/// Returns two unrelated IDs: one of a volume, and one without any file.
fn strangers(rig: &Rig) -> [Volume; 2] {
    let ghost = rig.volume(0);
    fs::remove_file(&ghost.file).expect("unlink");
    [rig.volume(least_bytes("block")), ghost]
}

/// Makes, for each of the unrelated IDs, every call that could remove something at these paths.
#[track_caller]
fn expect_left_alone(rig: &Rig, strangers: &mut [Volume], staging: &Path, targets: &[&Path]) {
    let node = rig.node();
    let before = World::around(rig.test_dir());
    for stranger in strangers {
        let own = std::mem::replace(&mut stranger.staging, staging.to_owned());
        refused(node.unstage(stranger.unstage()), Code::FailedPrecondition);
        let when = format!("unstage at {}", staging.display());
        before.expect_unchanged(rig.test_dir(), &when);
        for target in targets {
            let answer = node.unpublish(stranger.unpublish(target));
            refused(answer, Code::FailedPrecondition);
            let when = format!("unpublish at {}", target.display());
            before.expect_unchanged(rig.test_dir(), &when);
        }
        stranger.staging = own;
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_volume_is_not_taken_away_by_the_id_of_another() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "btrfs", "block"] {
        let mut strangers = strangers(&rig);
        let volume = rig.volume(least_bytes(kind));
        let target = volume.target("a");
        node.stage(volume.stage(access(kind))).expect("stage");
        node.publish(volume.publish(&target, access(kind)))
            .expect("publish");
        let shown = match kind {
            "block" => volume.device(),
            _ => volume.staging.clone(),
        };
        for _ in 0..2 {
            let targets = [&*target, &shown];
            expect_left_alone(&rig, &mut strangers, &volume.staging, &targets);
            rig.restart();
        }
        volume.down(&node, &[&target]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_device_is_not_staged_where_another_volume_is() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "btrfs", "block"] {
        let mut other = rig.volume(least_bytes("block"));
        let volume = rig.volume(least_bytes(kind));
        let target = volume.target("a");
        node.stage(volume.stage(access(kind))).expect("stage");
        node.publish(volume.publish(&target, access(kind)))
            .expect("publish");
        other.staging = volume.staging.clone();
        for _ in 0..2 {
            let before = World::around(rig.test_dir());
            let answer = node.stage(other.stage(access("block")));
            refused(answer, Code::AlreadyExists);
            before.expect_unchanged(rig.test_dir(), kind);
            rig.restart();
        }
        volume.down(&node, &[&target]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_loop_mount_that_is_no_volume_of_ours_is_left_alone() {
    let mut rig = Rig::new();
    let image = rig.test_dir().path().join("image");
    File::create_new(&image)
        .and_then(|file| file.set_len(least_bytes("ext4")))
        .expect("a sparse file");
    run("mkfs.ext4", &["-q", image.to_str().expect("UTF-8")]);
    let mut strangers = strangers(&rig);
    let point = rig.test_dir().directory("theirs");
    mount_image(&image, &point, "loop");
    for _ in 0..2 {
        expect_left_alone(&rig, &mut strangers, &point, &[&point]);
        rig.restart();
    }
    unmount(&point, UnmountFlags::NOFOLLOW).expect("umount");
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_others_have_bound_there_is_left_alone() {
    let mut rig = Rig::new();
    let mut strangers = strangers(&rig);
    let image = rig.test_dir().path().join("image");
    File::create_new(&image)
        .and_then(|file| file.set_len(least_bytes("block")))
        .expect("a sparse file");
    let image = image.to_str().expect("UTF-8");
    let theirs = bind_loop(Path::new(image));
    // Major 240 is for experiments, so no driver uses it (Linux: admin-guide/devices.txt).
    let unknown = rig.test_dir().path().join("unknown");
    let unknown = unknown.to_str().expect("UTF-8");
    run("mknod", &[unknown, "b", "240", "7"]);
    for device in [&*theirs, unknown] {
        let staging = rig.test_dir().directory("theirs");
        let point = staging.join("device");
        File::create_new(&point).expect("create");
        mount_bind(device, &point).expect("bind");
        for _ in 0..2 {
            expect_left_alone(&rig, &mut strangers, &staging, &[&point]);
            rig.restart();
        }
        unmount(&point, UnmountFlags::NOFOLLOW).expect("umount");
        fs::remove_file(&point).expect("unlink");
    }
    run("losetup", &["-d", &theirs]);
}

#[test]
#[ignore = "needs root: make test"]
fn a_target_and_the_staging_path_may_not_contain_each_other() {
    let rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "btrfs", "block"] {
        let volume = rig.volume(least_bytes(kind));
        node.stage(volume.stage(access(kind))).expect("stage");
        let staging = &volume.staging;
        let around = staging.parent().expect("a parent").to_owned();
        let targets = [
            staging.clone(),
            staging.join("beneath"),
            volume.device(),
            around,
        ];
        let before = World::around(rig.test_dir());
        for target in &targets {
            let when = format!("{kind} at {}", target.display());
            let answer = node.publish(volume.publish(target, access(kind)));
            refused(answer, Code::InvalidArgument);
            before.expect_unchanged(rig.test_dir(), &when);
        }
        volume.down(&node, &[]);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn an_expansion_grows_the_volume_even_if_it_names_the_staging_path_of_another() {
    let rig = Rig::new();
    let node = rig.node();
    // Use a kind that can be expanded without CAP_SYS_RESOURCE.
    let bytes = least_bytes("xfs");
    let mut volume = rig.volume(bytes);
    let other = rig.volume(bytes * 4);
    let target = volume.target("a");
    node.stage(volume.stage(access("xfs"))).expect("stage");
    node.publish(volume.publish(&target, access("xfs")))
        .expect("publish");
    node.stage(other.stage(access("xfs")))
        .expect("stage another");
    let (was, other_was) = (room(&target), room(&other.staging));
    volume.grow(bytes * 2);
    let own = std::mem::replace(&mut volume.staging, other.staging.clone());
    node.expand(volume.expand(&target, access("xfs")))
        .expect("expand");
    volume.staging = own;
    let now = room(&target);
    assert!(now > was + was / 2, "it had {was} bytes, and has {now}");
    assert_eq!(room(&other.staging), other_was, "the other volume");
    volume.down(&node, &[&target]);
    other.down(&node, &[]);
}

/// Returns the size of the filesystem at this path, in bytes.
fn room(path: &Path) -> u64 {
    let stat = statvfs(path).expect("statvfs");
    stat.f_blocks * stat.f_frsize
}
