//! The file behind a volume: one beneath `--loop-dir`, known by its inode, guarded by its lock.
//!
//! The lock travels into the loop device when that is bound and stays until it is unbound, so a
//! second device for the same file cannot come to be. Devices are bound in [`super::bind`].

use std::path::{Path, PathBuf};

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::bind::{claimed, clr_fd, loop_path, refuse_claimed};
use super::sysfs::with_name_of;
use crate::kernel::{Cause, Dev, FileKind, Kernel, Open, Patience, while_busy};

/// The folder that holds the volumes' files, opened once so that renaming it changes nothing.
pub(crate) struct LoopDir<K: Kernel> {
    path: PathBuf,
    fd: K::Fd,
}

/// A volume's file.
pub(crate) struct Backing<K: Kernel> {
    fd: K::Fd,
    name: String,
    path: PathBuf,
    dev: Dev,
    ino: u64,
    bytes: u64,
}

/// A device that an earlier operation left bound to a file.
pub(crate) struct Leftover<K: Kernel> {
    fd: K::Fd,
    number: u32,
}

/// Who has the lock of a file.
enum Owner<K: Kernel> {
    Us,
    Loop(Leftover<K>),
    /// Another process; or, for a moment, a child of ours that has not come to its exec, or a
    /// device that is just being unbound.
    Unseen,
}

impl<K: Kernel> LoopDir<K> {
    /// Opens the folder.
    ///
    /// # Errors
    /// When it is not there or not a folder.
    pub(crate) fn open(kernel: &K, path: &Path) -> crate::kernel::Result<Self> {
        Ok(LoopDir {
            path: path.to_owned(),
            fd: kernel.open(path, Open::Directory)?,
        })
    }

    /// Takes the folder's lock, which stays with us to the end: whether no other agent has it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn is_ours_alone(&self, kernel: &K) -> crate::kernel::Result<bool> {
        // A child that was just started has our descriptors until its exec; so has a dead agent's.
        while_busy(
            kernel,
            Patience::Moment,
            |alone| matches!(alone, Ok(false)),
            || kernel.flock(&self.fd),
        )
    }

    /// The folder, by name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder, as it was opened at the start.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// Where the volume's file should be.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is no file name.
    pub(crate) fn path_of(&self, volume: &VolumeId) -> Result<PathBuf, Failure> {
        Ok(self.path.join(file_name(volume)?))
    }

    /// The volume's file, opened for writing unless `read_only`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is no file name or a name that leads elsewhere,
    /// `NOT_FOUND` when there is no such file.
    pub(crate) fn backing(
        &self,
        kernel: &K,
        volume: &VolumeId,
        read_only: bool,
    ) -> Result<Backing<K>, Failure> {
        match read_only {
            true => self.open_file(kernel, volume, Open::FileRead),
            false => self.open_file(kernel, volume, Open::FileWrite),
        }
    }

    fn open_file(&self, kernel: &K, volume: &VolumeId, how: Open) -> Result<Backing<K>, Failure> {
        let name = file_name(volume)?;
        let path = self.path.join(name);
        // While another call asks who has the file open, which takes microseconds.
        let is_asked = |opened: &crate::kernel::Result<K::Fd>| {
            opened
                .as_ref()
                .is_err_and(|error| error.cause() == Cause::Again)
        };
        let open = || kernel.open_beneath(&self.fd, name, how);
        let fd =
            while_busy(kernel, Patience::Second, is_asked, open).map_err(|error| {
                match error.cause() {
                    Cause::Again => Failure::busy(format!(
                        "another process has a lease on {}: {error}",
                        path.display()
                    )),
                    Cause::Missing => Failure::not_found(format!(
                        "volume {volume}: no file {} on this node",
                        path.display()
                    )),
                    Cause::Escapes => Failure::invalid(
                        "volume_id",
                        format!(
                            "{} leads out of the loop directory; remove the link",
                            path.display()
                        ),
                    ),
                    Cause::Directory => not_a_file(&path),
                    _ => Failure::from(error),
                }
            })?;
        let stat = kernel.stat(&fd)?;
        if stat.kind != FileKind::File {
            return Err(not_a_file(&path));
        }
        Ok(Backing {
            fd,
            name: name.to_owned(),
            path,
            dev: stat.dev,
            ino: stat.ino,
            bytes: stat.bytes,
        })
    }

    /// [`LoopDir::backing`], or `None` when the file is gone.
    ///
    /// # Errors
    /// As [`LoopDir::backing`], apart from `NOT_FOUND`.
    pub(crate) fn backing_if_any(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<Backing<K>>, Failure> {
        unless_gone(self.open_file(kernel, volume, Open::FileRead))
    }

    /// [`LoopDir::backing_if_any`], opened by name only: to compare and to measure, and in the way
    /// of nobody who asks whether the file is open.
    ///
    /// # Errors
    /// As [`LoopDir::backing_if_any`].
    pub(crate) fn name_if_any(
        &self,
        kernel: &K,
        volume: &VolumeId,
    ) -> Result<Option<Backing<K>>, Failure> {
        unless_gone(self.open_file(kernel, volume, Open::Name))
    }
}

fn unless_gone<K: Kernel>(
    found: Result<Backing<K>, Failure>,
) -> Result<Option<Backing<K>>, Failure> {
    match found {
        Ok(backing) => Ok(Some(backing)),
        Err(failure) if failure.kind == Kind::NotFound => Ok(None),
        Err(failure) => Err(failure),
    }
}

impl<K: Kernel> Backing<K> {
    /// The open file.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// Where it is, or was.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the file, which is the volume's id.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its size at this moment, or what the kernel refused.
    pub(crate) fn bytes_now(&self, kernel: &K) -> crate::kernel::Result<u64> {
        Ok(kernel.stat(&self.fd)?.bytes)
    }

    /// The open loop device has a file of this file's filesystem behind it.
    ///
    /// # Errors
    /// When the device cannot be asked.
    pub(crate) fn is_beside(&self, kernel: &K, device: &K::Fd) -> crate::kernel::Result<bool> {
        let status = kernel.loop_status(device)?;
        Ok(status.is_some_and(|status| status.backing_dev == self.dev))
    }

    /// The open loop device has this very file behind it.
    ///
    /// # Errors
    /// When the device cannot be asked.
    pub(crate) fn is_behind(&self, kernel: &K, device: &K::Fd) -> crate::kernel::Result<bool> {
        Ok(kernel
            .loop_status(device)?
            .is_some_and(|s| s.backing_dev == self.dev && s.backing_ino == self.ino))
    }

    /// Who deletes a volume has its file's lock meanwhile, and the file may have been open here
    /// before that. So this tells for good once the lock is ours.
    ///
    /// # Errors
    /// `NOT_FOUND` when the file was deleted.
    pub(super) fn refuse_deleted(&self, kernel: &K) -> Result<(), Failure> {
        if kernel.stat(&self.fd)?.links > 0 {
            return Ok(());
        }
        Err(Failure::not_found(format!(
            "{} was deleted just now",
            self.path.display()
        )))
    }

    /// Takes the file's lock, or finds the device that has it.
    ///
    /// # Errors
    /// `ABORTED` when another process has it.
    pub(crate) fn leftover(&self, kernel: &K) -> Result<Option<Leftover<K>>, Failure> {
        let owner = while_busy(
            kernel,
            Patience::Second,
            |owner| matches!(owner, Ok(Owner::Unseen)),
            || {
                if kernel.flock(&self.fd)? {
                    return Ok(Owner::Us);
                }
                Ok(self.find(kernel)?.map_or(Owner::Unseen, Owner::Loop))
            },
        );
        match owner? {
            Owner::Us => Ok(None),
            Owner::Loop(leftover) => Ok(Some(leftover)),
            Owner::Unseen => Err(Failure::busy(format!(
                "{} is locked by another process and is on no loop device; a copy may be running",
                self.path.display()
            ))),
        }
    }

    /// Unbinds a device that nothing known is mounted from, and takes the file's lock.
    ///
    /// # Errors
    /// `ABORTED` while somebody has the device open.
    pub(crate) fn release(&self, kernel: &K, leftover: Leftover<K>) -> Result<(), Failure> {
        let Leftover { fd, number } = leftover;
        refuse_claimed(kernel, &fd, number)?;
        clr_fd(kernel, &fd)?;
        drop(fd);
        if while_busy(
            kernel,
            Patience::Second,
            |locked| matches!(locked, Ok(false)),
            || kernel.flock(&self.fd),
        )? {
            return Ok(());
        }
        Err(Failure::busy(format!(
            "/dev/loop{number} is still open in another process; it is freed when that closes it"
        )))
    }

    /// The loop device that this file is bound to, if any: kept for what a crash left behind.
    fn find(&self, kernel: &K) -> crate::kernel::Result<Option<Leftover<K>>> {
        for number in with_name_of(kernel, &self.path)? {
            if let Some(found) = Leftover::open(kernel, number)?
                && self.is_behind(kernel, &found.fd)?
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

impl<K: Kernel> Leftover<K> {
    /// Opens a device that was bound a moment ago; `None` when it was unbound and removed since.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(super) fn open(kernel: &K, number: u32) -> crate::kernel::Result<Option<Self>> {
        match kernel.open(&loop_path(number), Open::DeviceRead) {
            Ok(fd) => Ok(Some(Leftover { fd, number })),
            // Or with its disk failing.
            Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The open device.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// The open device and its number.
    pub(super) fn into_parts(self) -> (K::Fd, u32) {
        (self.fd, self.number)
    }

    /// What to say when it is claimed.
    pub(super) fn claimed(&self) -> Failure {
        claimed(self.number)
    }
}

fn not_a_file(path: &Path) -> Failure {
    Failure::invalid(
        "volume_id",
        format!("{} is not a regular file", path.display()),
    )
}

/// The id as a file name. `local` names its files so; nothing else may reach the file system.
pub(super) fn file_name(volume: &VolumeId) -> Result<&str, Failure> {
    let id = volume.as_str();
    if id == "." || id == ".." || id.contains('/') {
        return Err(Failure::invalid(
            "volume_id",
            format!("{id:?} is not the name of a file in the loop directory"),
        ));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_a_path_is_refused_by_name() {
        for id in ["..", ".", "../etc/passwd", "a/b", "/etc/passwd"] {
            let volume = VolumeId::new(id).unwrap();
            let failure = file_name(&volume).unwrap_err();
            assert!(failure.message.starts_with("volume_id: "), "{failure}");
        }
        let volume = VolumeId::new("vol-1..2").unwrap();
        assert_eq!(file_name(&volume).unwrap(), "vol-1..2");
    }
}
