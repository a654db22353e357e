//! A loop device that is bound to a volume's file and may be without a user.

use belay_server::call::{Failure, Kind};
use belay_server::request::VolumeId;

use super::bind::{clr_fd, loop_path};
use super::file::{Backing, Leftover, LoopDir};
use super::sysfs;
use crate::kernel::{Cause, Dev, Kernel, Open, Patience, Result, while_busy};

/// A device that stays bound by itself, to the file of a volume whose name it was given.
pub(crate) struct Remnant<K: Kernel> {
    volume: VolumeId,
    backing: Backing<K>,
    leftover: Leftover<K>,
}

impl<K: Kernel> Remnant<K> {
    /// The volume that the bound device of that number may be left of. One that unbinds itself is
    /// left of none: it has a user. Asks sysfs alone, so the device may be anybody's.
    ///
    /// # Errors
    /// When sysfs cannot be read.
    pub(crate) fn volume_of(kernel: &K, number: u32) -> Result<Option<VolumeId>> {
        let name = sysfs::kept_name(kernel, number)?;
        Ok(name.and_then(|name| VolumeId::new(name).ok()))
    }

    /// The bound device of that number, if it is one of a volume in `loop_dir`. One whose volume's
    /// id was too long to be its name is none.
    ///
    /// # Errors
    /// When the device or the file cannot be asked.
    pub(crate) fn at(
        kernel: &K,
        loop_dir: &LoopDir<K>,
        number: u32,
    ) -> std::result::Result<Option<Self>, Failure> {
        let Some(volume) = Self::volume_of(kernel, number)? else {
            return Ok(None);
        };
        let backing = match loop_dir.backing_if_any(kernel, &volume) {
            // A link, a folder: what a device of somebody else's is called as well.
            Err(failure) if failure.kind == Kind::Invalid => return Ok(None),
            backing => backing?,
        };
        let Some(backing) = backing else {
            return Ok(None);
        };
        let Some(leftover) = Leftover::open(kernel, number)? else {
            return Ok(None);
        };
        let status = kernel.loop_status(leftover.fd())?;
        let is_left = status
            .is_some_and(|status| status.name == volume.as_str() && !status.mode.autoclear)
            && backing.is_behind(kernel, leftover.fd())?;
        Ok(is_left.then_some(Remnant {
            volume,
            backing,
            leftover,
        }))
    }

    /// The volume.
    pub(crate) fn volume(&self) -> &VolumeId {
        &self.volume
    }

    /// The device's own number.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn dev(&self, kernel: &K) -> Result<Dev> {
        Ok(kernel.stat(self.leftover.fd())?.rdev)
    }

    /// Unbinds it, unless somebody has it mounted, claimed or open; whether it did.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub(crate) fn free(self, kernel: &K) -> Result<bool> {
        let (fd, number) = self.leftover.into_parts();
        clr_fd(kernel, &fd)?;
        drop(fd);
        // Whether others have it open shows only now.
        let is_left = |left: &Result<Option<K::Fd>>| matches!(left, Ok(Some(_)));
        let left = while_busy(kernel, Patience::Moment, is_left, || {
            match kernel.open(&loop_path(number), Open::DeviceRead) {
                Ok(fd) => Ok(self.backing.is_behind(kernel, &fd)?.then_some(fd)),
                Err(error) if matches!(error.cause(), Cause::Missing | Cause::NoDevice) => Ok(None),
                Err(error) => Err(error),
            }
        })?;
        match left {
            None => Ok(true),
            Some(fd) => {
                // It would be gone when the other closes it.
                kernel.loop_set_autoclear(&fd, false)?;
                Ok(false)
            }
        }
    }
}
