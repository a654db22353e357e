//! Identifies the devices of a volume's file on a disk that returns EIO, by facts that can be read
//! without the disk.

use std::path::PathBuf;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::bound::{Bound, Device};
use super::file::Bearer;
use super::folder::{LoopDir, file_name};
use super::sysfs::candidates;
use crate::device::Verdict;
use crate::kernel::{Cause, Kernel, Open};

impl<K: Kernel> LoopDir<K> {
    /// Whether the volume's file cannot be inspected or opened because its disk fails or its
    /// filesystem has shut itself down.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for an ID that is not a file name.
    pub(super) fn is_unreadable(&self, kernel: &K, volume: &VolumeId) -> Result<bool, Failure> {
        let name = file_name(volume)?;
        let read = || {
            kernel.stat(&kernel.open_beneath(self.fd(), name, Open::Name)?)?;
            kernel.open_beneath(self.fd(), name, Open::FileRead)
        };
        Ok(read().is_err_and(|error| error.cause() == Cause::Io))
    }

    /// Calls `each` for every device of a volume whose file cannot be read. Returns `false` if the
    /// file can be read, or if a device whose file has that name cannot be identified.
    ///
    /// # Errors
    /// Returns the errors of `each`, and an error if a device cannot be queried.
    pub(crate) fn unread(
        &self,
        kernel: &K,
        volume: &VolumeId,
        mut each: impl FnMut(Device<K>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        if !self.is_unreadable(kernel, volume)? {
            return Ok(false);
        }
        let path = self.path_of(volume)?;
        for (number, file) in candidates(kernel, &path)? {
            if file.path.file_name() != path.file_name() {
                continue;
            }
            match self.judge_unread(kernel, volume, number)? {
                Some(verdict) => verdict.into_held().map_or(Ok(()), &mut each)?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the relation of the device with this number to the volume, whose file cannot be
    /// inspected; `None` if unknown. If the filesystem of the device's file responds, the device
    /// must have the volume's name and a file in the directory's filesystem. If the filesystem does
    /// not respond, the file's path in sysfs decides.
    ///
    /// # Errors
    /// Returns an error if the device cannot be opened or queried for a reason other than a failed
    /// disk.
    pub(super) fn judge_unread(
        &self,
        kernel: &K,
        volume: &VolumeId,
        number: u32,
    ) -> Result<Option<Verdict<K, Bound<K>>>, Failure> {
        let Some(mut device) = Device::open(kernel, number)? else {
            let is_bound = kernel.loop_file_name(number)?.is_some();
            return Ok((!is_bound).then_some(Verdict::Unbound));
        };
        let is_ours = match device.ask(kernel) {
            Ok(None) => return Ok(Some(Verdict::Unbound)),
            Ok(Some(status)) => match kernel.stat(self.fd()) {
                Ok(folder) if folder.dev != status.backing_dev => {
                    return Ok(Some(Verdict::Foreign));
                }
                Ok(_) => self.name_of(volume).bearer(&status) == Bearer::Ours,
                // The directory's disk fails, but the disk of this device's file does not, so the
                // file is on another disk.
                Err(error) if error.cause() == Cause::Io => return Ok(Some(Verdict::Foreign)),
                Err(error) => return Err(error.into()),
            },
            Err(error) if error.cause() == Cause::Io => false,
            Err(error) => return Err(error.into()),
        };
        let is_ours = is_ours || self.is_file_of(kernel, volume, number)?;
        Ok(is_ours.then_some(Verdict::Stale(device)))
    }

    /// Whether the path of the device's file in sysfs is the volume's path. A path with the
    /// volume's file name that does not exist here also counts, because it may be from an earlier
    /// mount namespace. A file that exists at another path may belong to another driver.
    fn is_file_of(&self, kernel: &K, volume: &VolumeId, number: u32) -> Result<bool, Failure> {
        let (name, expected) = (file_name(volume)?, self.path_of(volume)?);
        let Some(found) = kernel.loop_file(number)?.map(|found| found.path) else {
            return Ok(false);
        };
        if found.file_name() != expected.file_name() {
            return Ok(false);
        }
        // The directory is open, so resolving its path does not need the disk.
        let real = || -> Option<PathBuf> { Some(kernel.real(self.path()).ok()??.join(name)) };
        Ok(found == expected
            || real().is_some_and(|real| found == real)
            || matches!(kernel.look(&found), Ok(None)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use belay_server::call::Kind;

    use super::*;
    use crate::device::loops::loop_path;
    use crate::kernel::LoopMode;
    use crate::kernel::fake::{Call, Fault, Machine};

    const KEPT: LoopMode = LoopMode {
        read_only: false,
        autoclear: false,
    };

    /// Whether the device of `file` is judged to belong to the volume `vol-1` in `/volumes` if the
    /// query of the device fails.
    fn is_ours(file: &str) -> bool {
        judged(file, "vol-1", "LOOP_GET_STATUS64", "EIO", false) == Ok("stale")
    }

    /// Judges a device that is bound to `file` under `name` while `call` fails with an errno.
    fn judged(
        file: &str,
        name: &str,
        call: &str,
        errno: &'static str,
        is_covered: bool,
    ) -> Result<&'static str, Kind> {
        let machine = Machine::new();
        machine.make_dir(Path::new("/volumes"));
        machine.make_dir(Path::new("/others"));
        machine.make_dir(Path::new("/tmpfs"));
        machine.cover(Path::new("/tmpfs"));
        machine.make_file(Path::new(file), 1 << 20);
        let kernel = machine.process();
        let driver = "one.example".parse().unwrap();
        let dir = LoopDir::open(&kernel, &driver, Path::new("/volumes")).unwrap();
        let file = kernel.open(Path::new(file), Open::FileWrite).unwrap();
        assert!(kernel.flock(&file).unwrap());
        let number = kernel.loop_get_free().unwrap();
        let device = kernel.open(&loop_path(number), Open::DeviceWrite).unwrap();
        kernel.loop_configure(&device, &file, KEPT, name).unwrap();
        if is_covered {
            machine.cover(Path::new("/others"));
        }

        let volume = VolumeId::new("vol-1").unwrap();
        machine.begin(None);
        drop(dir.judge_unread(&kernel, &volume, number));
        let number_of = |calls: &[Call]| calls.iter().position(|it| it.name == call);
        let fault = number_of(&machine.end()).map(|at| Fault::Fail(at + 1, errno));
        machine.begin(fault);
        let verdict = dir.judge_unread(&kernel, &volume, number);
        machine.end();
        match verdict.map_err(|failure| failure.kind)? {
            Some(Verdict::Stale(_)) => Ok("stale"),
            Some(Verdict::Foreign) => Ok("foreign"),
            Some(_) => Ok("another"),
            None => Ok("unknown"),
        }
    }

    #[test]
    fn a_path_that_does_not_exist_here_may_be_that_of_another_mount_namespace() {
        let covered = |file| judged(file, "vol-1", "LOOP_GET_STATUS64", "EIO", true);
        assert_eq!(covered("/others/vol-1"), Ok("stale"));
        assert_eq!(covered("/others/vol-2"), Ok("unknown"));
    }

    #[test]
    fn a_device_that_answers_is_the_volumes_by_its_name_and_filesystem() {
        let file = "/volumes/vol-1.bad";
        let named = |name| judged(file, name, "none", "EIO", false);
        assert_eq!(named("one.example/vol-1"), Ok("stale"));
        assert_eq!(named("one.example/vol-2"), Ok("unknown"));
        let failed = |call, errno| judged(file, "one.example/vol-1", call, errno, false);
        // The directory's filesystem fails, but the query of the device succeeds, so the device's
        // file is on another filesystem.
        assert_eq!(failed("statx", "EIO"), Ok("foreign"));
        assert_eq!(failed("statx", "EPERM"), Err(Kind::System));
        assert_eq!(failed("LOOP_GET_STATUS64", "EPERM"), Err(Kind::System));
        let elsewhere = judged("/tmpfs/vol-1", "one.example/vol-1", "none", "EIO", false);
        assert_eq!(elsewhere, Ok("foreign"));
    }

    #[test]
    fn on_a_failed_disk_a_device_is_the_volumes_if_it_has_the_path_of_its_file() {
        assert!(is_ours("/volumes/vol-1"));
        for other in ["/volumes/vol-2", "/volumes/vol-1.bad", "/others/vol-1"] {
            assert!(!is_ours(other), "{other}");
        }
    }

    /// The comparison must succeed even if the directory can no longer be found.
    #[test]
    fn the_path_of_the_file_is_compared_before_the_directory_is_looked_up() {
        let found = judged("/volumes/vol-1", "vol-1", "readlink", "EIO", false);
        assert_eq!(found, Ok("stale"));
    }

    #[test]
    fn only_a_disk_that_answers_eio_makes_a_file_unreadable() {
        let machine = Machine::new();
        machine.make_dir(Path::new("/volumes"));
        machine.make_file(Path::new("/volumes/vol-1"), 1 << 20);
        let kernel = machine.process();
        let driver = "one.example".parse().unwrap();
        let dir = LoopDir::open(&kernel, &driver, Path::new("/volumes")).unwrap();
        let volume = VolumeId::new("vol-1").unwrap();
        let is_unreadable = |fault| {
            machine.begin(fault);
            let is_unreadable = dir.is_unreadable(&kernel, &volume).unwrap();
            (is_unreadable, machine.end().len())
        };
        let (is_unreadable_now, calls) = is_unreadable(None);
        assert!(!is_unreadable_now);
        assert_eq!(calls, 3);
        for at in 1..=calls {
            assert!(is_unreadable(Some(Fault::Fail(at, "EIO"))).0, "call {at}");
            assert!(
                !is_unreadable(Some(Fault::Fail(at, "EPERM"))).0,
                "call {at}"
            );
        }
    }
}
