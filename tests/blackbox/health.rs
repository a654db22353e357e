//! Health reports of the node: real faults are reported as long as they last, and no longer.

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::Path;

use belay_proto::csi::v1 as csi;
use csi::volume_capability::access_mode::Mode;
use csi::{StorageHealthErrorType, VolumeHealthErrorType as Status};
use tonic::Code;

use crate::rig::{
    NodeCalls, Rig, TestDir, Volume, access, least_bytes, mount_image, refused, refused_with, run,
    until, with_flags, with_mode,
};

type Reported = Vec<(Status, String)>;

fn request(volume: &Volume) -> csi::NodeGetVolumeHealthRequest {
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        volume_publish_path: text(&volume.target("a")),
        staging_target_path: text(&volume.staging),
    }
}

#[track_caller]
fn health(node: &NodeCalls, volume: &Volume) -> Reported {
    let answer = node.volume_health(request(volume)).expect("health");
    let health = answer.volume_health.expect("always set");
    assert_eq!(health.volume_id, volume.id);
    for entry in &health.health_statuses {
        eprintln!("{}: {}", entry.reason, entry.message);
    }
    let all = health.health_statuses.into_iter();
    all.map(|entry| (entry.status(), entry.reason)).collect()
}

/// Checks that both calls agree; the older one returns a boolean with the same text.
#[track_caller]
fn expect(node: &NodeCalls, volume: &Volume, expected: &[(Status, &str)]) {
    let expected: Reported = expected
        .iter()
        .map(|(status, reason)| (*status, (*reason).to_owned()))
        .collect();
    assert_eq!(health(node, volume), expected);
    let stats = node
        .stats(volume.stats(&volume.target("a")))
        .expect("stats");
    assert!(!stats.usage.is_empty());
    let condition = stats.volume_condition.expect("a condition");
    assert_eq!(condition.abnormal, !expected.is_empty(), "{condition:?}");
    for (_, reason) in &expected {
        assert!(condition.message.contains(reason), "{condition:?}");
    }
}

fn up(node: &NodeCalls, volume: &Volume, capability: &csi::VolumeCapability) {
    node.stage(volume.stage(capability.clone())).expect("stage");
    let publish = volume.publish(&volume.target("a"), capability.clone());
    node.publish(publish).expect("publish");
}

fn down(node: &NodeCalls, volume: &Volume) {
    volume.down(node, &[&volume.target("a")]);
}

/// Returns the number of the rig's only loop device.
fn number(rig: &Rig) -> u32 {
    let loops = rig.test_dir().loops();
    assert_eq!(loops.len(), 1, "{loops:?}");
    loops[0].number
}

/// Triggers an ext4 error through fs/ext4/sysfs.c, which exists for tests.
fn fail_ext4(rig: &Rig) {
    let trigger = format!("/sys/fs/ext4/loop{}/trigger_fs_error", number(rig));
    fs::write(trigger, "a test").expect("trigger_fs_error");
}

#[test]
#[ignore = "needs root: make test"]
fn healthy_volumes_have_no_condition() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs", "block"] {
        let volume = rig.volume(least_bytes(kind));
        assert_eq!(health(&node, &volume), [], "{kind}, not staged");
        up(&node, &volume, &access(kind));
        expect(&node, &volume, &[]);
        rig.restart();
        expect(&node, &volume, &[]);
        down(&node, &volume);
        assert_eq!(health(&node, &volume), [], "{kind}, unstaged");
        fs::remove_file(&volume.file).expect("unlink");
        refused(node.volume_health(request(&volume)), Code::NotFound);
    }
    let empty = csi::NodeGetVolumeHealthRequest::default();
    refused(node.volume_health(empty), Code::InvalidArgument);
}

#[test]
#[ignore = "needs root: make test"]
fn the_errors_of_an_ext4_are_reported_until_the_next_stage_has_checked_it() {
    let mut rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let capability = with_flags(access("ext4"), &["errors=continue"]);
    up(&node, &volume, &capability);
    fail_ext4(&rig);
    let errors = [(Status::Degraded, "FilesystemErrors")];
    // The kernel counts the error in a separate worker.
    until("the error is counted", || {
        !health(&node, &volume).is_empty()
    });
    expect(&node, &volume, &errors);
    rig.restart();
    expect(&node, &volume, &errors);
    down(&node, &volume);
    up(&node, &volume, &capability);
    expect(&node, &volume, &[]);
    down(&node, &volume);
}

/// The root directory is lost: its content can be recovered, but not the names.
#[test]
#[ignore = "needs root: make test"]
fn an_ext4_that_only_a_human_may_repair_is_not_mounted_before() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    up(&node, &volume, &access("ext4"));
    down(&node, &volume);
    let file = volume.file.to_str().expect("UTF-8");
    for command in ["clri <2>", "set_super_value state 3"] {
        run("debugfs", &["-w", "-R", command, file]);
    }
    for _ in 0..2 {
        let stage = node.stage(volume.stage(access("ext4")));
        let parts = ["e2fsck -f", file];
        refused_with(stage, Code::FailedPrecondition, &parts);
    }
    check_ext4(&volume);
    up(&node, &volume, &access("ext4"));
    expect(&node, &volume, &[]);
    down(&node, &volume);
}

/// Runs e2fsck, which exits with 1 if it has repaired something.
fn check_ext4(volume: &Volume) {
    let check = std::process::Command::new("e2fsck")
        .args(["-f", "-y"])
        .arg(&volume.file)
        .output()
        .expect("e2fsck");
    assert!(matches!(check.status.code(), Some(0 | 1)), "{check:?}");
}

#[test]
#[ignore = "needs root: make test"]
fn an_ext4_that_its_errors_made_read_only_is_reported_and_not_published_again() {
    let mut rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let capability = with_flags(access("ext4"), &["errors=remount-ro"]);
    up(&node, &volume, &capability);
    fail_ext4(&rig);
    let written = fs::write(volume.target("a").join("file"), b"data");
    assert!(written.is_err(), "it accepts writes");
    let expected = [
        (Status::Degraded, "FilesystemReadOnly"),
        (Status::Degraded, "FilesystemErrors"),
    ];
    expect(&node, &volume, &expected);
    rig.restart();
    expect(&node, &volume, &expected);
    let second = volume.publish(&volume.target("b"), capability.clone());
    refused(node.publish(second), Code::FailedPrecondition);
    down(&node, &volume);
    up(&node, &volume, &capability);
    expect(&node, &volume, &[]);
    fs::write(volume.target("a").join("file"), b"data").expect("it accepts writes again");
    down(&node, &volume);
}

#[test]
#[ignore = "needs root: make test"]
fn a_read_only_volume_is_healthy() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    up(&node, &volume, &access("ext4"));
    // Only this pod may not write; the volume itself is writable.
    let other = volume.target("b");
    let readers = volume.publish_read_only(&other, access("ext4"));
    node.publish(readers).expect("publish");
    let stats = node.stats(volume.stats(&other)).expect("stats");
    assert!(!stats.volume_condition.expect("a condition").abnormal);
    node.unpublish(volume.unpublish(&other)).expect("unpublish");
    down(&node, &volume);
    let capability = with_mode(access("ext4"), Mode::SingleNodeReaderOnly);
    up(&node, &volume, &capability);
    expect(&node, &volume, &[]);
    down(&node, &volume);
}

/// Shuts an xfs down with `XFS_IOC_GOINGDOWN` (fs/xfs/libxfs/xfs_fs.h), as `xfs_io -x -c shutdown`
/// does.
fn shut_down_xfs(path: &Path) {
    run(
        "xfs_io",
        &["-x", "-c", "shutdown", path.to_str().expect("UTF-8")],
    );
}

#[test]
#[ignore = "needs root: make test"]
fn an_xfs_that_shut_itself_down_is_reported_and_can_be_staged_again() {
    let mut rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("xfs"));
    up(&node, &volume, &access("xfs"));
    fs::write(volume.target("a").join("file"), b"data").expect("write");
    let target = File::open(volume.target("a")).expect("open");
    rustix::fs::syncfs(target.as_fd()).expect("syncfs");
    drop(target);
    shut_down_xfs(&volume.staging);
    fs::metadata(&volume.staging).expect_err("it answers");
    let dead = [(Status::Inaccessible, "FilesystemShutDown")];
    expect(&node, &volume, &dead);
    // The agent starts next to the dead filesystem, and unmounts it.
    rig.restart();
    expect(&node, &volume, &dead);
    down(&node, &volume);
    up(&node, &volume, &access("xfs"));
    expect(&node, &volume, &[]);
    let data = fs::read(volume.target("a").join("file")).expect("read");
    assert_eq!(data, b"data");
    down(&node, &volume);
}

/// Returns the node's report if the caller passes no paths, as `belayctl node health` does.
#[track_caller]
fn without_paths(node: &NodeCalls, volume: &Volume) -> Reported {
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        ..Default::default()
    };
    let answer = node.volume_health(request).expect("health");
    let health = answer.volume_health.expect("always set").health_statuses;
    let all = health.into_iter();
    all.map(|entry| (entry.status(), entry.reason)).collect()
}

#[test]
#[ignore = "needs root: make test"]
fn what_is_wrong_is_found_without_paths_after_a_restart() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs", "block"] {
        let volume = rig.volume(least_bytes(kind));
        up(&node, &volume, &access(kind));
        rig.restart();
        assert_eq!(without_paths(&node, &volume), [], "{kind}");
        if ["ext4", "xfs"].contains(&kind) {
            shut_down_xfs(&volume.staging);
            rig.restart();
            let dead = [(Status::Inaccessible, "FilesystemShutDown".to_owned())];
            assert_eq!(without_paths(&node, &volume), dead, "{kind}");
        }
        fs::remove_file(&volume.file).expect("unlink");
        rig.restart();
        let gone = (Status::DataLoss, "BackingFileGone".to_owned());
        assert!(without_paths(&node, &volume).contains(&gone), "{kind}");
        down(&node, &volume);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn an_ext4_with_errors_is_not_grown_for_that_reason() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("ext4"));
    let capability = with_flags(access("ext4"), &["errors=continue"]);
    up(&node, &volume, &capability);
    fail_ext4(&rig);
    until("the error is counted", || {
        !health(&node, &volume).is_empty()
    });
    volume.grow(volume.bytes() * 2);
    let expand = node.expand(volume.expand(&volume.target("a"), capability.clone()));
    refused_with(expand, Code::FailedPrecondition, &["e2fsck", "errors"]);
    down(&node, &volume);
    up(&node, &volume, &capability);
    down(&node, &volume);
}

#[test]
#[ignore = "needs root: make test"]
fn a_file_that_is_cut_or_removed_under_its_device_is_reported() {
    let mut rig = Rig::new();
    let node = rig.node();
    for kind in ["ext4", "xfs", "btrfs", "block"] {
        let volume = rig.volume(least_bytes(kind));
        up(&node, &volume, &access(kind));
        let bytes = volume.bytes();
        volume.grow(bytes - 4096);
        expect(&node, &volume, &[(Status::DataLoss, "BackingFileShort")]);
        volume.grow(bytes);
        expect(&node, &volume, &[]);
        fs::remove_file(&volume.file).expect("unlink");
        let gone = [(Status::DataLoss, "BackingFileGone")];
        expect(&node, &volume, &gone);
        rig.restart();
        assert_eq!(
            health(&node, &volume),
            [(Status::DataLoss, "BackingFileGone".to_owned())],
            "{kind}, restarted"
        );
        down(&node, &volume);
        refused(node.volume_health(request(&volume)), Code::NotFound);
    }
}

#[test]
#[ignore = "needs root: make test"]
fn a_raw_device_that_was_detached_by_force_is_reported_until_it_is_staged_again() {
    let rig = Rig::new();
    let node = rig.node();
    let volume = rig.volume(least_bytes("block"));
    up(&node, &volume, &access("block"));
    run("losetup", &["-d", &format!("/dev/loop{}", number(&rig))]);
    until("the device is unbound", || {
        rig.test_dir().loops().is_empty()
    });
    let lost = [(Status::Inaccessible, "DeviceLost".to_owned())];
    assert_eq!(health(&node, &volume), lost);
    down(&node, &volume);
    up(&node, &volume, &access("block"));
    expect(&node, &volume, &[]);
    down(&node, &volume);
}

/// Returns the node's report about the storage.
fn storage(rig: &Rig) -> Vec<(StorageHealthErrorType, String)> {
    let request = csi::NodeGetStorageHealthRequest::default();
    let answer = rig.node().storage_health(request).expect("health");
    let all = answer.backend_health.into_iter();
    all.map(|entry| (entry.status(), entry.reason)).collect()
}

fn degraded(reason: &str) -> [(StorageHealthErrorType, String); 1] {
    [(StorageHealthErrorType::StorageDegraded, reason.to_owned())]
}

fn unreachable(reason: &str) -> [(StorageHealthErrorType, String); 1] {
    let status = StorageHealthErrorType::StorageUnreachable;
    [(status, reason.to_owned())]
}

#[test]
#[ignore = "needs root: make test"]
fn full_storage_is_reported_as_long_as_it_is_and_the_writes_that_it_lost_until_the_next_stage() {
    let test_dir = TestDir::new();
    let (disk, point) = (test_dir.path().join("disk"), test_dir.directory("storage"));
    File::create_new(&disk)
        .and_then(|file| file.set_len(64 << 20))
        .expect("a disk");
    let (disk, point) = (disk.to_str().expect("UTF-8"), point);
    let mounted = point.to_str().expect("UTF-8").to_owned();
    run("mkfs.ext4", &["-q", disk]);
    mount_image(Path::new(disk), &point, "loop");
    let volumes = test_dir.directory("storage/volumes");
    let mut rig = Rig::with_volumes_in(test_dir, volumes);
    assert_eq!(storage(&rig), []);

    let (node, volume) = (rig.node(), rig.volume(least_bytes("ext4")));
    up(&node, &volume, &access("ext4"));
    expect(&node, &volume, &[]);
    let filler = rig.volumes().join("filler");
    fs::write(&filler, vec![1; 64 << 20]).expect_err("it fits");
    assert_eq!(storage(&rig), degraded("StorageNearlyFull"));
    let full = [(Status::Degraded, "StorageNearlyFull".to_owned())];
    assert_eq!(health(&node, &volume), full);

    let lost = volume.target("a").join("lost");
    fs::write(&lost, vec![1; 16 << 20]).expect("write");
    let lost = File::open(lost).expect("open");
    lost.sync_all().expect_err("it fits");
    drop(lost);
    fs::remove_file(&filler).expect("unlink");
    assert_eq!(storage(&rig), []);
    // The journal may have failed, too.
    let lost = (Status::Degraded, "DeviceErrors".to_owned());
    assert!(health(&node, &volume).contains(&lost));
    let stats = node
        .stats(volume.stats(&volume.target("a")))
        .expect("stats");
    let condition = stats.volume_condition.expect("a condition");
    assert!(condition.message.contains("DeviceErrors"), "{condition:?}");
    down(&node, &volume);
    up(&node, &volume, &access("ext4"));
    expect(&node, &volume, &[]);
    down(&node, &volume);

    run("mount", &["-o", "remount,ro", &mounted]);
    assert_eq!(storage(&rig), degraded("StorageReadOnly"));
    run("mount", &["-o", "remount,rw", &mounted]);
    assert_eq!(storage(&rig), []);

    let away = point.join("away");
    fs::rename(rig.volumes(), &away).expect("rename");
    assert_eq!(storage(&rig), unreachable("StorageMissing"));
    fs::create_dir(rig.volumes()).expect("mkdir");
    assert_eq!(storage(&rig), unreachable("StorageReplaced"));
    fs::remove_dir(rig.volumes()).expect("rmdir");
    fs::rename(&away, rig.volumes()).expect("rename");
    assert_eq!(storage(&rig), []);
    rig.kill();
    run("umount", &[&mounted]);
}

#[test]
#[ignore = "needs root: make test"]
fn storage_that_shut_itself_down_is_reported_and_so_are_its_volumes() {
    let test_dir = TestDir::new();
    let (disk, point) = (test_dir.path().join("disk"), test_dir.directory("storage"));
    File::create_new(&disk)
        .and_then(|file| file.set_len(least_bytes("xfs")))
        .expect("a disk");
    let mounted = point.to_str().expect("UTF-8").to_owned();
    run("mkfs.xfs", &["-q", disk.to_str().expect("UTF-8")]);
    mount_image(&disk, &point, "loop");
    let mut rig = Rig::with_volumes_in(test_dir, point.clone());
    let (node, volume) = (rig.node(), rig.volume(least_bytes("block")));
    assert_eq!((health(&node, &volume), storage(&rig)), (vec![], vec![]));
    shut_down_xfs(&point);
    let unreadable = [(Status::Inaccessible, "BackingFileUnreadable".to_owned())];
    assert_eq!(health(&node, &volume), unreadable);
    assert_eq!(storage(&rig), unreachable("StorageUnreadable"));
    rig.kill();
    run("umount", &[&mounted]);
}
