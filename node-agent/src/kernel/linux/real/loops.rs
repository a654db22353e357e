//! Tests of loop devices: binding, status, locks and sizes.

use crate::kernel::{Filesystems as _, Leftovers as _, Patience, while_busy};
use std::fs::{self, File};
use std::process::Command;

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
        // Only an `O_PATH` descriptor remains, so no process has the device open in between.
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
        // Another process, such as udev, may have the device open briefly: wait for the lock, which
        // the kernel releases last.
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

/// A loop device with a number that no other process has used; removed on drop.
struct Fresh<'a> {
    kernel: &'a Linux,
    number: u32,
}

impl Fresh<'_> {
    fn new(kernel: &Linux) -> Fresh<'_> {
        let number = (700..).find(|number| kernel.loop_add(*number).unwrap());
        let number = number.unwrap();
        Fresh { kernel, number }
    }

    /// Binds the file for writing; the last close unbinds it.
    fn bind(&self, file: &OwnedFd) -> OwnedFd {
        let path = loop_path(self.number);
        let device = self.kernel.open(&path, Open::DeviceRead).unwrap();
        let by = self.kernel.reopen(&device, Open::DeviceWrite).unwrap();
        let bound = self.kernel.loop_configure(&by, file, WRITABLE, "test");
        bound.unwrap();
        device
    }

    fn run(&self, program: &str, args: &[&str]) {
        let device = loop_path(self.number);
        let mut command = Command::new(program);
        let options = args.iter().take_while(|arg| arg.starts_with("--"));
        let rest = args.iter().skip_while(|arg| arg.starts_with("--"));
        let ended = command.args(options).arg(device).args(rest).status();
        assert!(ended.unwrap().success(), "{program}");
    }

    fn write_cache(&self) -> PathBuf {
        PathBuf::from(format!("/sys/block/loop{}/queue/write_cache", self.number))
    }

    /// Removes the device. Retries, because other processes, such as udev, may have the device open
    /// briefly.
    fn remove(&self) -> bool {
        let is_busy = |removed: &Result<bool>| matches!(removed, Ok(false));
        let remove = || self.kernel.loop_remove(self.number);
        while_busy(self.kernel, Patience::Second, is_busy, remove).unwrap()
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        self.kernel.loop_remove(self.number).ok();
    }
}

#[test]
#[ignore = "needs root: make test"]
fn the_partitions_of_a_number_outlive_its_binding_and_end_with_the_device() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, 8 * MIB);
        let fresh = Fresh::new(kernel);
        let number = fresh.number;
        let [one, seven] = ["p1", "p7"].map(|part| format!("loop{number}{part}"));
        let found = |is_bound| kernel.loop_partitions(number, is_bound).unwrap();
        // The first call lists the device's directory, the second call counts the directory's
        // links.
        for _ in 0..2 {
            assert_eq!(found(false), [""; 0]);
        }
        let device = fresh.bind(&image.file);
        for _ in 0..2 {
            assert_eq!(found(true), [""; 0]);
        }
        fresh.run("addpart", &["7", "4096", "2048"]);
        assert_eq!(found(true), [&*seven]);
        fresh.run("addpart", &["1", "2048", "2048"]);
        assert_eq!(found(true), [&*one, &*seven]);
        assert!(!kernel.loop_remove(number).unwrap(), "it is bound");
        drop(device);
        fresh.run("delpart", &["7"]);
        assert_eq!(found(false), [&*one]);
        let partition = File::open(format!("/dev/{one}")).unwrap();
        assert!(!kernel.loop_remove(number).unwrap(), "a partition is open");
        drop(partition);
        assert!(fresh.remove());
        assert_eq!(found(false), [""; 0]);
        assert!(kernel.loop_remove(number).unwrap(), "it is removed already");
        assert!(kernel.loop_add(number).unwrap());
        for _ in 0..2 {
            assert_eq!(found(false), [""; 0]);
        }
    });
}

#[test]
#[ignore = "needs root: make test"]
fn what_was_set_read_only_or_without_flushes_stays_so_for_the_next_file_until_it_is_reset() {
    in_own_namespace(|kernel| {
        let (image, next) = (Image::new(kernel, MIB), Image::new(kernel, MIB));
        let fresh = Fresh::new(kernel);
        let device = fresh.bind(&image.file);
        assert!(!kernel.refuses_writes(&device).unwrap());
        fresh.run("blockdev", &["--setro"]);
        fs::write(fresh.write_cache(), "write through").unwrap();
        drop(device);
        let device = fresh.bind(&next.file);
        let write = || {
            let writer = kernel.reopen(&device, Open::DeviceWrite)?;
            kernel.pwrite(&writer, &crate::kernel::AlignedBuf::new(4096), 0)
        };
        assert!(kernel.refuses_writes(&device).unwrap());
        assert_eq!(write().unwrap_err().cause(), Cause::Denied);
        kernel.allow_writes(&device).unwrap();
        kernel.loop_allow_flushes(fresh.number).unwrap();
        assert!(!kernel.refuses_writes(&device).unwrap());
        assert_eq!(write().unwrap(), 4096);
        let cache = fs::read_to_string(fresh.write_cache()).unwrap();
        assert_eq!(cache, "write back\n");
    });
}

#[test]
#[ignore = "needs root: make test"]
fn a_device_that_is_bound_read_only_stays_so_when_writes_are_allowed() {
    in_own_namespace(|kernel| {
        let image = Image::new(kernel, MIB);
        let mode = LoopMode {
            read_only: true,
            autoclear: true,
        };
        let device = Loop::attach(kernel, &image.file, mode);
        kernel.allow_writes(&device.fd).unwrap();
        assert!(kernel.refuses_writes(&device.fd).unwrap());
        assert!(status(&device).mode.read_only);
    });
}
