//! Tests that the simulated kernel and the real kernel behave alike. If an operation relies on a
//! rule of the simulated kernel, this rule is also tested on the real kernel.

use std::path::{Path, PathBuf};

use super::bench::{BYTES, World, until};
use crate::device::loop_path;
use crate::kernel::{
    AlignedBuf, Cause, Descriptors, Disks, Kernel, LoopMode, MountAttrs, Open, Openers, Patience,
    Result, failed_busy, while_busy,
};

on_both! {
    a_lock_ends_with_its_description_or_with_the_device_that_has_it
    a_device_told_to_clear_is_free_at_its_last_close
    a_cleared_device_that_is_open_elsewhere_can_be_kept_after_all
    a_bind_of_a_device_does_not_hold_it
    a_clone_that_nobody_attached_is_gone_when_closed
    a_mount_point_is_not_removed
    an_open_descriptor_keeps_a_mount
    what_is_exclusive_is_exclusive
    what_a_devices_cache_has_is_in_its_file_after_a_direct_read_or_an_fsync
    who_else_has_a_file_open_is_seen
    a_bind_shows_the_name_that_it_was_made_by_and_is_cloned_while_that_is_there
    a_sequence_number_is_that_of_one_binding
}

const KEPT: LoopMode = LoopMode {
    read_only: false,
    autoclear: false,
};

/// Opens a new file of this world for writing.
fn file<W: World>(world: &W, kernel: &W::Kernel) -> <W::Kernel as Descriptors>::Fd {
    let path = world.volumes().join("file");
    world.make_file(&path, BYTES);
    kernel.open(&path, Open::FileWrite).unwrap()
}

/// Locks a file and binds a loop device to it. Returns both descriptors.
fn bound<W: World>(
    world: &W,
    kernel: &W::Kernel,
) -> (
    u32,
    <W::Kernel as Descriptors>::Fd,
    <W::Kernel as Descriptors>::Fd,
) {
    let file = file(world, kernel);
    assert!(kernel.flock(&file).unwrap());
    loop {
        let number = kernel.loop_get_free().unwrap();
        let device = kernel.open(&loop_path(number), Open::DeviceRead).unwrap();
        let writer = kernel.reopen(&device, Open::DeviceWrite).unwrap();
        match kernel.loop_configure(&writer, &file, KEPT, "file") {
            Ok(()) => return (number, device, file),
            Err(error) => assert_eq!(error.cause(), Cause::Busy),
        }
    }
}

/// Whether the lock of the file becomes free within a moment. Other processes that probe devices
/// may keep the lock for a short time.
fn is_free<W: World>(world: &W, kernel: &W::Kernel) -> bool {
    let other = file(world, kernel);
    let locked = while_busy(
        kernel,
        Patience::Second,
        |locked| matches!(locked, Ok(false)),
        || kernel.flock(&other),
    );
    locked.unwrap()
}

fn folder<W: World>(world: &W, name: &str) -> PathBuf {
    let path = world.base().join(name);
    world.make_dir(&path);
    path
}

/// Binds `from` onto `onto`.
fn bind<K: Kernel>(kernel: &K, from: &Path, onto: &Path) -> Result<()> {
    let clone = kernel.open_tree(&kernel.open_path(from)?)?;
    kernel.mount_setattr(&clone, MountAttrs::default())?;
    kernel.move_mount(&clone, &kernel.open_path(onto)?)
}

fn a_lock_ends_with_its_description_or_with_the_device_that_has_it<W: World>(world: &W) {
    let kernel = world.kernel();
    let (first, second) = (file(world, &kernel), file(world, &kernel));
    assert!(kernel.flock(&first).unwrap() && kernel.flock(&first).unwrap());
    assert!(!kernel.flock(&second).unwrap());
    drop(first);
    assert!(kernel.flock(&second).unwrap());
    drop(second);

    let (_, device, file) = bound(world, &kernel);
    drop(file);
    assert!(!is_free(world, &kernel));
    kernel.loop_set_autoclear(&device, true).unwrap();
    drop(device);
    until(|| is_free(world, &kernel));
}

fn a_device_told_to_clear_is_free_at_its_last_close<W: World>(world: &W) {
    let kernel = world.kernel();
    let (number, device, file) = bound(world, &kernel);
    drop(file);
    assert!(kernel.loop_bound().unwrap().contains(&number));
    kernel.loop_clr_fd(&device).unwrap();
    drop(device);
    assert!(is_free(world, &kernel));
}

fn a_cleared_device_that_is_open_elsewhere_can_be_kept_after_all<W: World>(world: &W) {
    let kernel = world.kernel();
    let (number, device, file) = bound(world, &kernel);
    drop(file);
    let other = kernel.reopen(&device, Open::DeviceRead).unwrap();
    kernel.loop_clr_fd(&device).unwrap();
    drop(device);
    let status = kernel.loop_status(&other).unwrap().unwrap();
    assert!(status.mode.autoclear);
    kernel.loop_set_autoclear(&other, false).unwrap();
    drop(other);
    let again = kernel.open(&loop_path(number), Open::DeviceRead).unwrap();
    assert_eq!(kernel.loop_status(&again).unwrap().unwrap().mode, KEPT);
    kernel.loop_set_autoclear(&again, true).unwrap();
}

fn a_bind_of_a_device_does_not_hold_it<W: World>(world: &W) {
    let kernel = world.kernel();
    let (number, device, file) = bound(world, &kernel);
    drop(file);
    let onto = folder(world, "staging").join("device");
    kernel.create_file(&onto, 0o600).unwrap();
    bind(&kernel, &loop_path(number), &onto).unwrap();
    kernel.loop_set_autoclear(&device, true).unwrap();
    drop(device);
    assert!(is_free(world, &kernel));
    let stat = kernel.look(&onto).unwrap().unwrap();
    assert_eq!(kernel.loop_number(stat.rdev), Some(number));
    kernel.umount(&onto).unwrap();
    kernel.unlink(&onto).unwrap();
}

fn a_clone_that_nobody_attached_is_gone_when_closed<W: World>(world: &W) {
    let kernel = world.kernel();
    let (staging, target) = (folder(world, "staging"), folder(world, "target"));
    bind(&kernel, &staging, &staging).unwrap();
    let clone = kernel.open_tree(&kernel.open_path(&staging).unwrap());
    let clone = clone.unwrap();
    let stat = kernel.stat(&clone).unwrap();
    assert!(stat.mount_root);
    assert_ne!(
        stat.mount_id,
        kernel.look(&staging).unwrap().unwrap().mount_id
    );
    drop(clone);
    assert!(!kernel.look(&target).unwrap().unwrap().mount_root);
    kernel.umount(&staging).unwrap();

    // The ID of a mount does not change when the mount is attached to a path.
    let clone = kernel.open_tree(&kernel.open_path(&staging).unwrap());
    let clone = clone.unwrap();
    let before = kernel.stat(&clone).unwrap();
    let onto = kernel.open_path(&target).unwrap();
    kernel.move_mount(&clone, &onto).unwrap();
    drop((clone, onto));
    assert_eq!(kernel.look(&target).unwrap(), Some(before));
    kernel.umount(&target).unwrap();
}

fn a_mount_point_is_not_removed<W: World>(world: &W) {
    let kernel = world.kernel();
    let (staging, target) = (folder(world, "staging"), folder(world, "target"));
    bind(&kernel, &staging, &target).unwrap();
    assert_eq!(kernel.rmdir(&target).unwrap_err().cause(), Cause::Busy);
    kernel.umount(&target).unwrap();
    assert_eq!(kernel.umount(&target).unwrap_err().cause(), Cause::Invalid);
    kernel.rmdir(&target).unwrap();
}

fn an_open_descriptor_keeps_a_mount<W: World>(world: &W) {
    let kernel = world.kernel();
    let (staging, target) = (folder(world, "staging"), folder(world, "target"));
    bind(&kernel, &staging, &target).unwrap();
    for how in [None, Some(Open::Directory)] {
        let user = match how {
            None => kernel.open_path(&target),
            Some(how) => kernel.open(&target, how),
        };
        assert!(failed_busy(&kernel.umount(&target)), "{how:?}");
        drop(user);
    }
    kernel.umount(&target).unwrap();
}

fn what_is_exclusive_is_exclusive<W: World>(world: &W) {
    let kernel = world.kernel();
    let (_, device, _file) = bound(world, &kernel);
    let first = kernel.reopen(&device, Open::DeviceExclusive).unwrap();
    let second = kernel.reopen(&device, Open::DeviceExclusive);
    assert!(failed_busy(&second));
    kernel.reopen(&device, Open::DeviceWrite).unwrap();
    drop(first);
    kernel.reopen(&device, Open::DeviceExclusive).unwrap();
    kernel.loop_set_autoclear(&device, true).unwrap();
}

fn what_a_devices_cache_has_is_in_its_file_after_a_direct_read_or_an_fsync<W: World>(world: &W) {
    let kernel = world.kernel();
    let (_, device, file) = bound(world, &kernel);
    let writer = kernel.reopen(&device, Open::FileWrite).unwrap();
    let (first, second) = (4096, BYTES / 2);
    assert_eq!(kernel.pwrite(&writer, b"first", first).unwrap(), 5);
    let mut block = AlignedBuf::new(4096);
    kernel.pread(&device, &mut block, first).unwrap();
    assert!(block.starts_with(b"first"));
    assert_eq!(kernel.seek_data(&file, 0).unwrap(), Some(first));

    assert_eq!(kernel.pwrite(&writer, b"second", second).unwrap(), 6);
    kernel.fsync(&device).unwrap();
    assert_eq!(kernel.seek_data(&file, BYTES / 4).unwrap(), Some(second));
    drop(writer);
    kernel.loop_set_autoclear(&device, true).unwrap();
}

fn who_else_has_a_file_open_is_seen<W: World>(world: &W) {
    let kernel = world.kernel();
    let writer = file(world, &kernel);
    let path = world.volumes().join("file");
    let open = |how| kernel.open(&path, how).unwrap();
    let openers = |file: &<W::Kernel as Descriptors>::Fd, readers_too| {
        kernel.openers(file, readers_too).unwrap()
    };
    assert_eq!(openers(&writer, true), Openers::None);
    let name = open(Open::Name);
    assert_eq!(openers(&writer, true), Openers::None);
    drop(name);

    let reader = open(Open::FileRead);
    assert_eq!(openers(&writer, true), Openers::Others);
    assert_eq!(openers(&reader, false), Openers::Others);
    drop(writer);
    let other = open(Open::FileRead);
    assert_eq!(openers(&reader, false), Openers::None);
    drop((reader, other));

    let (_, device, bound) = bound(world, &kernel);
    assert_eq!(openers(&bound, true), Openers::None);
    let writer = open(Open::FileWrite);
    drop(bound);
    assert_eq!(openers(&writer, true), Openers::Others);
    kernel.loop_set_autoclear(&device, true).unwrap();
}

/// A directory in `/dev` that is removed at the end of the test.
struct InDev(PathBuf);

impl InDev {
    fn new() -> Self {
        let id = std::process::id();
        InDev(PathBuf::from(format!("/dev/belay-test-{id}")))
    }
}

impl Drop for InDev {
    fn drop(&mut self) {
        // If the test has failed on a real machine, the directory still exists.
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn a_bind_shows_the_name_that_it_was_made_by_and_is_cloned_while_that_is_there<W: World>(
    world: &W,
) {
    let kernel = world.kernel();
    let (number, device, _file) = bound(world, &kernel);
    let (directory, node) = (InDev::new(), loop_path(number));
    kernel.mkdir(&directory.0, 0o700).unwrap();
    let name = directory.0.join(node.file_name().unwrap());
    kernel.link(&node, &name).unwrap();
    let again = kernel.link(&node, &name).unwrap_err();
    assert_eq!(again.cause(), Cause::Exists);
    assert_eq!(
        kernel.names(&directory.0).unwrap(),
        [format!("loop{number}")]
    );
    assert_eq!(kernel.names(&directory.0.join("absent")).unwrap(), [""; 0]);
    let points = ["first", "second", "third"].map(|point| {
        let path = world.base().join(point);
        kernel.create_file(&path, 0o600).unwrap();
        path
    });
    bind(&kernel, &name, &points[0]).unwrap();
    bind(&kernel, &points[0], &points[1]).unwrap();
    let root = Path::new("/").join(name.strip_prefix("/dev").unwrap());
    let roots = || {
        let shown = points[..2].iter().map(|point| {
            let stat = kernel.look(point).unwrap().unwrap();
            kernel.mount_root(point, stat.mount_id).unwrap().unwrap()
        });
        let listed = kernel.mounts().unwrap().into_iter();
        let listed = listed.filter(|line| points.contains(&line.point));
        shown
            .chain(listed.map(|line| line.root))
            .collect::<Vec<_>>()
    };
    assert_eq!(roots(), vec![root.clone(); 4]);
    kernel.unlink(&name).unwrap();
    kernel.rmdir(&directory.0).unwrap();
    let removed = PathBuf::from(format!("{}//deleted", root.display()));
    assert_eq!(roots(), vec![removed; 4]);
    let cloned = bind(&kernel, &points[0], &points[2]).unwrap_err();
    assert_eq!(cloned.cause(), Cause::Missing);
    for point in &points[..2] {
        kernel.umount(point).unwrap();
    }
    assert_eq!(kernel.mount_root(&points[0], 0).unwrap(), None);
    kernel.loop_clr_fd(&device).unwrap();
}

fn a_sequence_number_is_that_of_one_binding<W: World>(world: &W) {
    let kernel = world.kernel();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (number, device, _file) = bound(world, &kernel);
        let diskseq = kernel.diskseq(&device).unwrap();
        let node = format!("loop{number}");
        assert_eq!(kernel.diskseq_named(&node).unwrap(), Some(diskseq));
        assert!(
            !seen.contains(&diskseq) && diskseq != 0,
            "{diskseq}, {seen:?}"
        );
        seen.push(diskseq);
        kernel.loop_clr_fd(&device).unwrap();
        drop(device);
        until(|| kernel.diskseq_named(&node).unwrap() != Some(diskseq));
    }
    assert_eq!(kernel.diskseq_named("no-such-device").unwrap(), None);
}
