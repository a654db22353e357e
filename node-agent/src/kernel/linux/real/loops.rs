//! Loop devices: binding, their status, locks, sizes.

use crate::kernel::Filesystems as _;
use std::fs::File;

use super::*;

fn status(device: &Loop<'_>) -> crate::kernel::LoopStatus {
    device.kernel.loop_status(&device.fd).unwrap().unwrap()
}

#[test]
#[ignore = "needs root: make test"]
fn a_bound_device_names_its_backing_file_by_device_and_inode() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, 3 * MIB);
        let device = Loop::attach(kernel, &image.file, WRITABLE);
        let (file, found) = (kernel.stat(&image.file).unwrap(), status(&device));
        assert_eq!((found.backing_dev, found.backing_ino), (file.dev, file.ino));
        assert_eq!(found.mode, WRITABLE);
        assert_eq!(kernel.device_bytes(&device.fd).unwrap(), 3 * MIB);
        assert_eq!(kernel.device_block_bytes(&device.fd).unwrap(), 512);
        assert_eq!(
            kernel.loop_number(kernel.stat(&device.fd).unwrap().rdev),
            Some(device.number)
        );
        assert!(kernel.loop_bound().unwrap().contains(&device.number));
    });
}

#[test]
#[ignore = "needs root: make test"]
fn what_is_written_to_the_device_is_in_the_file() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, MIB);
        let device = Loop::attach(kernel, &image.file, WRITABLE);
        let mut block = crate::kernel::AlignedBuf::new(4096);
        block.fill(7);
        assert_eq!(kernel.pwrite(&device.writer(), &block, 8192).unwrap(), 4096);

        let mut seen = [0; 4096];
        assert_eq!(kernel.pread(&image.file, &mut seen, 8192).unwrap(), 4096);
        assert_eq!(&seen[..], &block[..]);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_read_only_device_refuses_writes() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, MIB);
        let mode = LoopMode {
            read_only: true,
            autoclear: true,
        };
        let device = Loop::attach(kernel, &image.file, mode);
        assert_eq!(status(&device).mode, mode);
        // Depending on the kernel version, the open or the write fails.
        let written = kernel
            .reopen(&device.fd, Open::DeviceWrite)
            .and_then(|fd| kernel.pwrite(&fd, &crate::kernel::AlignedBuf::new(4096), 0));
        assert_eq!(written.unwrap_err().cause(), Cause::Denied);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn nothing_is_bound_writable_by_a_descriptor_that_only_reads() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, MIB);
        let reader = kernel.open(&image.path(), Open::FileRead).unwrap();
        let device = Loop::attach(kernel, &image.file, WRITABLE);
        for (by, file, named) in [
            (
                kernel.reopen(&device.fd, Open::DeviceRead).unwrap(),
                &image.file,
                device.path(),
            ),
            (device.writer(), &reader, image.path()),
        ] {
            let error = kernel
                .loop_configure(&by, file, WRITABLE, "test")
                .unwrap_err();
            assert_eq!(error.errno_name(), "EBADF");
            let expected = format!("{} is not open for writing", named.display());
            assert!(error.to_string().ends_with(&expected), "{error}");
        }
        let mode = LoopMode {
            read_only: true,
            autoclear: true,
        };
        assert_eq!(status(&Loop::attach(kernel, &reader, mode)).mode, mode);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_is_taken_is_busy() {
    in_own_namespace(|kernel| {
        let (image, other) = (Image::new(kernel, MIB), Image::new(kernel, MIB));
        let device = Loop::attach(kernel, &image.file, WRITABLE);
        let error = kernel
            .loop_configure(&device.writer(), &other.file, WRITABLE, "test")
            .unwrap_err();
        assert_eq!(error.cause(), Cause::Busy);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn autoclear_is_set_and_taken_back_and_nothing_else_changes() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, MIB);
        let device = Loop::attach(
            kernel,
            &image.file,
            LoopMode {
                read_only: false,
                autoclear: false,
            },
        );
        let before = status(&device);
        assert!(!before.mode.autoclear);
        kernel.loop_set_autoclear(&device.fd, true).unwrap();
        assert_eq!(status(&device).mode, WRITABLE);
        kernel.loop_set_autoclear(&device.fd, false).unwrap();
        assert_eq!(status(&device), before);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn without_autoclear_the_last_close_leaves_it_bound() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, MIB);
        let mut device = Loop::attach(
            kernel,
            &image.file,
            LoopMode {
                read_only: false,
                autoclear: false,
            },
        );
        let before = status(&device);
        let path = device.path();
        // Only the name is held: no process has the device open in between.
        let name = kernel.open_path(&path).unwrap();
        drop(std::mem::replace(
            &mut device.fd,
            kernel.open_path(&path).unwrap(),
        ));
        device.fd = kernel.reopen(&name, Open::DeviceRead).unwrap();
        assert_eq!(status(&device), before);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn the_lock_of_the_file_stays_with_the_device_until_it_is_unbound() {
    in_own_namespace(|kernel| {
        let Image { dir, file } = Image::new(kernel, MIB);
        let path = dir.path().join("image");
        assert!(kernel.flock(&file).unwrap());
        let device = Loop::attach(kernel, &file, WRITABLE);
        let (backing, number) = (status(&device), device.number);
        drop(file);

        let second = kernel.open(&path, Open::FileWrite).unwrap();
        assert!(!kernel.flock(&second).unwrap());
        drop(device);
        // Another process, such as udev, may hold the device briefly: wait for the lock, which the
        // kernel releases last.
        let second = File::from(second);
        second.lock().unwrap();
        let again = kernel.open(&loop_path(number), Open::DeviceRead).unwrap();
        let now = kernel.loop_status(&again).unwrap();
        assert!(
            now.as_ref()
                .is_none_or(|now| now.backing_ino != backing.backing_ino),
            "{now:?}"
        );
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_grown_file_shows_only_after_set_capacity() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, 2 * MIB);
        let device = Loop::attach(kernel, &image.file, WRITABLE);
        image.set_len(5 * MIB);
        assert_eq!(kernel.device_bytes(&device.fd).unwrap(), 2 * MIB);
        kernel.loop_set_capacity(&device.fd).unwrap();
        assert_eq!(kernel.device_bytes(&device.fd).unwrap(), 5 * MIB);
    });
}

#[test]
#[ignore = "needs root: make test"]
fn reading_what_the_file_has_lost_is_an_io_error() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, 2 * MIB);
        let device = Loop::attach(kernel, &image.file, WRITABLE);
        image.set_len(MIB);
        let mut block = crate::kernel::AlignedBuf::new(4096);
        let error = kernel
            .pread(&device.fd, &mut block, MIB + MIB / 2)
            .unwrap_err();
        assert_eq!(error.cause(), Cause::Io);
        assert!(
            error
                .to_string()
                .starts_with(&format!("pread {}: EIO", device.path().display()))
        );
    });
}

#[test]
#[ignore = "needs root: make test"]
fn ioctls_on_what_is_no_loop_device_fail_and_change_nothing() {
    in_own_namespace(|kernel| {
        let file = Image::new(kernel, MIB).file;
        assert_eq!(
            kernel.device_bytes(&file).unwrap_err().errno_name(),
            "ENOTTY"
        );
        assert_eq!(
            kernel.loop_status(&file).unwrap_err().errno_name(),
            "ENOTTY"
        );
        assert_eq!(
            kernel.loop_set_capacity(&file).unwrap_err().errno_name(),
            "ENOTTY"
        );
        assert_eq!(
            kernel
                .xfs_geometry(&kernel.open(Path::new("/proc"), Open::Directory).unwrap())
                .unwrap_err()
                .errno_name(),
            "ENOTTY"
        );
    });
}
