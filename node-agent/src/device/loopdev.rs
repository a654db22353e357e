//! The `loop` transport: one file beneath `--loop-dir` for each volume, one loop device for it.
//!
//! A device is ours when its backing inode is the volume's file; names of files and numbers of
//! devices prove nothing. The lock on the file travels into the loop device when it is bound and
//! stays until it is unbound, so a second device for the same file cannot come to be.

use std::path::{Path, PathBuf};

use belay_server::failure::Failure;
use belay_server::request::VolumeId;

use crate::kernel::{Cause, Dev, FileKind, Kernel, LoopMode, Open, failed_busy, while_busy};

/// How often another process may snatch the free device before we give up. LOOP_CTL_GET_FREE only
/// says which was free a moment ago.
const SNATCHED_MAX: u32 = 64;

/// The device node of loop device `number`.
pub(crate) fn loop_path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// The folder that holds the volumes' files, opened once so that renaming it changes nothing.
pub(crate) struct LoopDir<K: Kernel> {
    path: PathBuf,
    fd: K::Fd,
}

/// A volume's file.
pub(crate) struct Backing<K: Kernel> {
    fd: K::Fd,
    path: PathBuf,
    dev: Dev,
    ino: u64,
    bytes: u64,
}

/// A loop device bound to a volume's file, held open: its number cannot be reused meanwhile.
pub(crate) struct Attached<K: Kernel> {
    // Declared before the backing file: the device is closed first.
    fd: K::Fd,
    backing: Backing<K>,
    number: u32,
}

/// A device that an earlier operation left bound to a file.
pub(crate) struct Leftover<K: Kernel> {
    fd: K::Fd,
    number: u32,
}

impl<K: Kernel> Leftover<K> {
    /// The open device.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// A mount and a running mkfs claim the device; a mere reader does not.
    fn refuse_claimed(&self, kernel: &K) -> Result<(), Failure> {
        match while_busy(kernel, failed_busy, || {
            kernel.reopen(&self.fd, Open::DeviceExclusive)
        }) {
            Ok(_) => Ok(()),
            Err(error) if error.cause() == Cause::Busy => Err(Failure::busy(format!(
                "/dev/loop{} is still in use for this volume, by a mount elsewhere or by a mkfs \
                 that outlived an earlier attempt",
                self.number
            ))),
            Err(error) => Err(error.into()),
        }
    }
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
        let name = file_name(volume)?;
        let how = if read_only {
            Open::FileRead
        } else {
            Open::FileWrite
        };
        let path = self.path.join(name);
        let fd = kernel
            .open_beneath(&self.fd, name, how)
            .map_err(|error| match error.cause() {
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
                _ => Failure::from(error),
            })?;
        let stat = kernel.stat(&fd)?;
        if stat.kind != FileKind::File {
            return Err(Failure::invalid(
                "volume_id",
                format!("{} is not a regular file", path.display()),
            ));
        }
        Ok(Backing {
            fd,
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
        match self.backing(kernel, volume, true) {
            Ok(backing) => Ok(Some(backing)),
            Err(failure) if failure.kind == belay_server::failure::Kind::NotFound => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

impl<K: Kernel> Backing<K> {
    /// The open file.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
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

    /// Takes the file's lock, or finds the device that has it.
    ///
    /// # Errors
    /// `ABORTED` when another process has it.
    pub(crate) fn leftover(&self, kernel: &K) -> Result<Option<Leftover<K>>, Failure> {
        if kernel.flock(&self.fd)? {
            return Ok(None);
        }
        match self.find(kernel)? {
            Some(leftover) => Ok(Some(leftover)),
            None => Err(Failure::busy(format!(
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
        leftover.refuse_claimed(kernel)?;
        let Leftover { fd, number } = leftover;
        clr_fd(kernel, &fd)?;
        drop(fd);
        if while_busy(
            kernel,
            |locked| matches!(locked, Ok(false)),
            || kernel.flock(&self.fd),
        )? {
            return Ok(());
        }
        Err(Failure::busy(format!(
            "/dev/loop{number} is still open in another process; it is freed when that closes it"
        )))
    }

    /// The loop device that this file is bound to, if any. Looks at every bound device, so it is
    /// kept for what a crash left behind.
    fn find(&self, kernel: &K) -> crate::kernel::Result<Option<Leftover<K>>> {
        for number in kernel.loop_bound()? {
            let fd = match kernel.open(&loop_path(number), Open::DeviceRead) {
                Ok(fd) => fd,
                // Unbound and removed, or with its disk failing, since the listing.
                Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => continue,
                Err(error) => return Err(error),
            };
            if self.is_behind(kernel, &fd)? {
                return Ok(Some(Leftover { number, fd }));
            }
        }
        Ok(None)
    }
}

impl<K: Kernel> Attached<K> {
    /// Binds the file to a loop device. With `autoclear` the device unbinds itself at its last
    /// close; without, somebody must call [`Attached::release`]. The file's lock must be held (see
    /// [`Backing::leftover`]): the device keeps it.
    ///
    /// # Errors
    /// `ABORTED` when no device can be had.
    pub(crate) fn attach(kernel: &K, backing: Backing<K>, mode: LoopMode) -> Result<Self, Failure> {
        for _ in 0..SNATCHED_MAX {
            let number = kernel.loop_get_free()?;
            let fd = kernel.open(&loop_path(number), Open::DeviceRead)?;
            match configure(kernel, &fd, &backing.fd, mode) {
                Ok(()) => {
                    return Ok(Attached {
                        fd,
                        backing,
                        number,
                    });
                }
                Err(error) if error.cause() == Cause::Busy => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::busy(format!(
            "other processes took {SNATCHED_MAX} free loop devices in a row before they could be \
             bound; try again"
        )))
    }

    /// Goes on with the device that an earlier attempt left bound, if it is bound as wanted; else
    /// unbinds it and binds another.
    ///
    /// # Errors
    /// `ABORTED` while somebody else works on the device.
    pub(crate) fn take_over(
        kernel: &K,
        backing: Backing<K>,
        leftover: Leftover<K>,
        mode: LoopMode,
    ) -> Result<Self, Failure> {
        leftover.refuse_claimed(kernel)?;
        match kernel.loop_status(&leftover.fd)? {
            Some(status) if status.mode.read_only == mode.read_only => {
                if status.mode.autoclear != mode.autoclear {
                    kernel.loop_set_autoclear(&leftover.fd, mode.autoclear)?;
                }
                let Leftover { fd, number } = leftover;
                Ok(Attached {
                    fd,
                    backing,
                    number,
                })
            }
            _ => {
                backing.release(kernel, leftover)?;
                Self::attach(kernel, backing, mode)
            }
        }
    }

    /// Unbinds the device as soon as nobody has it open any more.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn release(self, kernel: &K) -> crate::kernel::Result<()> {
        clr_fd(kernel, &self.fd)
    }

    /// An already bound device that is known to belong to the file.
    pub(crate) fn held(fd: K::Fd, backing: Backing<K>, number: u32) -> Self {
        Attached {
            fd,
            backing,
            number,
        }
    }

    /// The open device.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// The file behind it.
    pub(crate) fn backing(&self) -> &Backing<K> {
        &self.backing
    }

    /// Its name, which is what mount shows as the source.
    pub(crate) fn path(&self) -> PathBuf {
        loop_path(self.number)
    }

    /// Takes over a grown file and returns the device's size in bytes.
    ///
    /// # Errors
    /// When the device cannot be asked.
    pub(crate) fn refresh(&self, kernel: &K) -> crate::kernel::Result<u64> {
        let bytes = kernel.device_bytes(&self.fd)?;
        if bytes >= self.backing.bytes {
            return Ok(bytes);
        }
        kernel.loop_set_capacity(&self.fd)?;
        kernel.device_bytes(&self.fd)
    }
}

/// Binds the held device. A device that is not open for writing would be bound read-only, and one
/// that stays open for writing cannot be mounted on every kernel: so that descriptor goes at once.
fn configure<K: Kernel>(
    kernel: &K,
    held: &K::Fd,
    file: &K::Fd,
    mode: LoopMode,
) -> crate::kernel::Result<()> {
    if mode.read_only {
        return kernel.loop_configure(held, file, mode);
    }
    let writable = kernel.reopen(held, Open::DeviceWrite)?;
    kernel.loop_configure(&writable, file, mode)
}

/// Unbinds at the last close. That the device is unbound already is as good.
fn clr_fd<K: Kernel>(kernel: &K, device: &K::Fd) -> crate::kernel::Result<()> {
    match kernel.loop_clr_fd(device) {
        Err(error) if error.cause() == Cause::NoDevice => Ok(()),
        result => result,
    }
}

/// The id as a file name. `local` names its files so; nothing else may reach the file system.
fn file_name(volume: &VolumeId) -> Result<&str, Failure> {
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
