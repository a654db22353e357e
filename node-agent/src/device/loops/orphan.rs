//! A loop device whose file has lost the volume's name, or cannot be looked at: known by the name
//! that it was given.

use std::ffi::OsStr;
use std::path::PathBuf;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::bind::{clr_fd, loop_path, refuse_claimed};
use super::file::{Backing, LoopDir};
use crate::kernel::{Cause, Kernel, Open, Patience, while_busy};

/// A device that was bound to the volume's file, which is gone, elsewhere, or on a dead disk.
pub(crate) struct Orphan<K: Kernel> {
    fd: K::Fd,
    number: u32,
}

impl<K: Kernel> Orphan<K> {
    /// The bound device, if it carries the volume's name.
    ///
    /// # Errors
    /// When the device cannot be asked.
    pub(crate) fn of(
        kernel: &K,
        volume: &VolumeId,
        fd: K::Fd,
        number: u32,
    ) -> crate::kernel::Result<Option<Self>> {
        Ok(is_named(kernel, &fd, volume)?.then_some(Orphan { fd, number }))
    }

    /// The bound device of the volume's old file, which was removed or renamed since: `backing` has
    /// the volume's name now. sysfs names the candidates, so no other device is asked.
    ///
    /// # Errors
    /// When sysfs cannot be read, or a device cannot be asked.
    pub(crate) fn replaced_by(
        kernel: &K,
        backing: &Backing<K>,
        volume: &VolumeId,
    ) -> crate::kernel::Result<Option<Self>> {
        for number in kernel.loop_bound()? {
            if file_name_of(kernel, volume, number)? != FileName::Old {
                continue;
            }
            let fd = match kernel.open(&loop_path(number), Open::DeviceRead) {
                Ok(fd) => fd,
                Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => continue,
                Err(error) => return Err(error),
            };
            // Another driver's volume may have the same id.
            if is_named(kernel, &fd, volume)? && backing.is_beside(kernel, &fd)? {
                return Ok(Some(Orphan { fd, number }));
            }
        }
        Ok(None)
    }

    /// The open device.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
    }

    /// Its name.
    pub(crate) fn path(&self) -> PathBuf {
        loop_path(self.number)
    }

    /// For what needs the device to itself: a mount and a running mkfs claim it.
    ///
    /// # Errors
    /// `ABORTED` while anybody does.
    pub(crate) fn refuse_claimed(&self, kernel: &K) -> Result<(), Failure> {
        refuse_claimed(kernel, &self.fd, self.number)
    }

    /// Unbinds it. There is no file whose lock would tell, so the device itself is asked again.
    ///
    /// # Errors
    /// `ABORTED` while somebody has it open.
    pub(crate) fn release(self, kernel: &K, volume: &VolumeId) -> Result<(), Failure> {
        let Orphan { fd, number } = self;
        clr_fd(kernel, &fd)?;
        drop(fd);
        let is_bound = || match kernel.open(&loop_path(number), Open::DeviceRead) {
            Ok(fd) => match is_named(kernel, &fd, volume) {
                // Its disk is dead.
                Err(error) if error.cause() == Cause::Io => {
                    Ok(kernel.loop_file_name(number)?.is_some())
                }
                is_named => is_named,
            },
            Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => Ok(false),
            Err(error) => Err(error),
        };
        let still = |bound: &crate::kernel::Result<bool>| matches!(bound, Ok(true));
        if while_busy(kernel, Patience::Second, still, is_bound)? {
            return Err(Failure::busy(format!(
                "/dev/loop{number} is still open in another process; it is freed when that closes \
                 it"
            )));
        }
        Ok(())
    }
}

/// How the name of the file behind a device compares with a volume's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileName {
    /// It is the volume's.
    Same,
    /// The volume's file may have got it when it was removed or moved aside.
    Old,
    /// It is another one, or nothing is bound.
    Other,
}

/// Compares the name of the file behind the device of that number. Asks sysfs alone.
///
/// # Errors
/// When sysfs cannot be read.
pub(crate) fn file_name_of<K: Kernel>(
    kernel: &K,
    volume: &VolumeId,
    number: u32,
) -> crate::kernel::Result<FileName> {
    let name = kernel.loop_file_name(number)?;
    Ok(match name.as_deref().and_then(OsStr::to_str) {
        Some(name) if name == volume.as_str() => FileName::Same,
        Some(name) if is_old_name(volume.as_str(), name) => FileName::Old,
        _ => FileName::Other,
    })
}

/// What a device is to a volume whose file cannot be looked at.
pub(crate) enum Unread<K: Kernel> {
    /// Bound to that file.
    Ours(Orphan<K>),
    /// Bound to nothing.
    Unbound,
    /// Bound to a file of another filesystem, or of another name.
    Other,
    /// Nothing tells.
    Unproven,
}

impl<K: Kernel> Unread<K> {
    /// Judges the device of that number. One whose file's filesystem answers has the volume's name
    /// and a file of the folder's filesystem; of one that does not, sysfs has the file's path.
    ///
    /// # Errors
    /// When the device cannot be opened or asked, for another reason than a dead disk.
    pub(crate) fn at(
        kernel: &K,
        loop_dir: &LoopDir<K>,
        volume: &VolumeId,
        number: u32,
    ) -> Result<Self, Failure> {
        let fd = match kernel.open(&loop_path(number), Open::DeviceRead) {
            Ok(fd) => fd,
            Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => {
                let is_bound = kernel.loop_file_name(number)?.is_some();
                return Ok(if is_bound {
                    Unread::Unproven
                } else {
                    Unread::Unbound
                });
            }
            Err(error) => return Err(error.into()),
        };
        let is_ours = match kernel.loop_status(&fd) {
            Ok(None) => return Ok(Unread::Unbound),
            Ok(Some(status)) => match kernel.stat(loop_dir.fd()) {
                Ok(folder) if folder.dev != status.backing_dev => return Ok(Unread::Other),
                Ok(_) => status.name == volume.as_str(),
                // What answers is not on the disk that does not.
                Err(error) if error.cause() == Cause::Io => return Ok(Unread::Other),
                Err(error) => return Err(error.into()),
            },
            Err(error) if error.cause() == Cause::Io => false,
            Err(error) => return Err(error.into()),
        };
        Ok(if is_ours || loop_dir.is_file_of(kernel, volume, number)? {
            Unread::Ours(Orphan { fd, number })
        } else {
            Unread::Unproven
        })
    }
}

/// What a file is called that was moved aside (`vol-1.bad`), or removed (`vol-1 (deleted)`).
fn is_old_name(volume: &str, name: &str) -> bool {
    let rest = name
        .strip_prefix(volume)
        .and_then(|rest| rest.chars().next());
    rest.is_some_and(|next| !next.is_ascii_alphanumeric())
}

/// The bound device was given the volume's name. One that is longer than the field has no name.
fn is_named<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    volume: &VolumeId,
) -> crate::kernel::Result<bool> {
    let status = kernel.loop_status(device)?;
    Ok(status.is_some_and(|status| status.name == volume.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_name_begins_with_the_volumes_and_is_not_that_of_another_volume() {
        for old in ["vol-1.bad", "vol-1~", "vol-1 (deleted)"] {
            assert!(is_old_name("vol-1", old), "{old}");
        }
        for other in ["vol-1", "vol-12", "vol-12 (deleted)", "old-vol-1", ""] {
            assert!(!is_old_name("vol-1", other), "{other}");
        }
    }
}
