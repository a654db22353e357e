//! Tests of the device that a mounted btrfs reports.

use super::*;
use crate::kernel::{BtrfsDevice, Filesystems as _};

const BYTES: u64 = 256 * MIB;

fn formatted<'a>(kernel: &'a Linux, image: &Image, more: &[&str]) -> Loop<'a> {
    let device = Loop::attach(kernel, &image.file, WRITABLE);
    let end = device.mkfs("mkfs.btrfs", &[&["-q", "-f", "-K"], more].concat());
    assert_eq!(end.code, Some(0), "{}", end.stderr);
    device
}

/// Opens the root directory of a detached mount of the filesystem.
fn root(kernel: &Linux, device: &Loop<'_>) -> OwnedFd {
    let source = device.path();
    let source = [("source", source.to_str())];
    let mount = detached(kernel, "btrfs", &source, MountAttrs::default()).unwrap();
    kernel.open_root(&mount).unwrap()
}

/// Returns the number of the loop device that the filesystem reports.
fn told(kernel: &Linux, root: &OwnedFd) -> Option<u32> {
    match kernel.btrfs_device(root).unwrap() {
        BtrfsDevice::One(dev) => kernel.loop_number(dev),
        BtrfsDevice::Several | BtrfsDevice::Removed => None,
    }
}

/// Makes the kernel forget the devices of multi-device filesystems, which the kernel remembers by
/// ID. Linux 6.18 mistakes a copy with the same ID for a remembered device, and refuses to mount
/// the copy with EINVAL.
fn forget(devices: &[&Loop<'_>]) {
    for device in devices {
        let forgotten = std::process::Command::new("btrfs")
            .args(["device", "scan", "--forget"])
            .arg(device.path())
            .output()
            .unwrap();
        assert!(forgotten.status.success(), "{forgotten:?}");
    }
}

#[test]
#[ignore = "needs root: make test"]
fn the_device_is_told_though_the_number_of_its_files_is_anonymous() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, BYTES);
        let device = formatted(kernel, &image, &[]);
        let root = root(kernel, &device);
        assert!(kernel.stat(&root).unwrap().dev.is_anonymous());
        assert_eq!(told(kernel, &root), Some(device.number));
        let geometry = kernel.btrfs_geometry(&root).unwrap();
        assert_eq!((geometry.devices, geometry.last_bytes), (1, BYTES));

        image.set_len(2 * BYTES);
        kernel.loop_set_capacity(&device.fd).unwrap();
        kernel.btrfs_grow(&root, geometry.last_id).unwrap();
        let after = kernel.btrfs_geometry(&root).unwrap();
        assert_eq!(after.last_bytes, 2 * BYTES);
        let error = kernel.btrfs_grow(&root, geometry.last_id + 1).unwrap_err();
        assert_eq!(error.cause(), Cause::NoDevice);
    });
}

/// Linux before 6.7 cannot mount two copies of one btrfs.
#[test]
#[ignore = "needs root: make test"]
fn each_of_two_copies_tells_its_own_device_or_is_not_mounted() {
    in_own_namespace(|kernel| {
        let (image, copy) = (Image::new(kernel, BYTES), Image::new(kernel, BYTES));
        let first = formatted(kernel, &image, &[]);
        kernel.fsync(&first.writer()).unwrap();
        std::fs::copy(image.path(), copy.path()).unwrap();
        let second = Loop::attach(kernel, &copy.file, WRITABLE);
        let first_root = root(kernel, &first);
        let source = second.path();
        let source = [("source", source.to_str())];
        match detached(kernel, "btrfs", &source, MountAttrs::default()) {
            Ok(mount) => {
                let root = kernel.open_root(&mount).unwrap();
                assert_eq!(told(kernel, &root), Some(second.number));
            }
            Err(error) => assert_eq!(error.cause(), Cause::Exists, "{error}"),
        }
        assert_eq!(told(kernel, &first_root), Some(first.number));
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_filesystem_of_two_devices_has_no_single_one() {
    in_own_namespace(|kernel| {
        let (image, other) = (Image::new(kernel, BYTES), Image::new(kernel, BYTES));
        let second = Loop::attach(kernel, &other.file, WRITABLE);
        let path = second.path();
        let first = formatted(kernel, &image, &[path.to_str().unwrap()]);
        let root = root(kernel, &first);
        let (device, geometry) = (kernel.btrfs_device(&root), kernel.btrfs_geometry(&root));
        drop(root);
        forget(&[&first, &second]);
        assert_eq!(device.unwrap(), BtrfsDevice::Several);
        assert_eq!(geometry.unwrap().devices, 2);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn another_filesystem_does_not_know_the_question() {
    in_own_namespace(|kernel| {
        let mount = detached(kernel, "tmpfs", &[], MountAttrs::default()).unwrap();
        let root = kernel.open_root(&mount).unwrap();
        for error in [
            kernel.btrfs_device(&root).unwrap_err(),
            kernel.btrfs_geometry(&root).unwrap_err(),
            kernel.btrfs_grow(&root, 1).unwrap_err(),
        ] {
            assert_eq!(error.errno_name(), "ENOTTY", "{error}");
        }
    });
}
