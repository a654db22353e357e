//! A volume's file on a disk that answers EIO: what is still known of it.

use std::path::PathBuf;

use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::file::{LoopDir, file_name};
use super::sysfs::with_name_of;
use crate::kernel::{Cause, Kernel, Open};

impl<K: Kernel> LoopDir<K> {
    /// The volume's file cannot be looked at or opened, since its disk fails or its filesystem has
    /// shut itself down.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is no file name.
    pub(crate) fn is_unreadable(&self, kernel: &K, volume: &VolumeId) -> Result<bool, Failure> {
        let name = file_name(volume)?;
        let read = || {
            kernel.stat(&kernel.open_beneath(self.fd(), name, Open::Name)?)?;
            kernel.open_beneath(self.fd(), name, Open::FileRead)
        };
        Ok(read().is_err_and(|error| error.cause() == Cause::Io))
    }

    /// The bound devices whose files have the volume's name, wherever these are. Asks sysfs alone.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is no file name; when sysfs cannot be read.
    pub(crate) fn with_name(&self, kernel: &K, volume: &VolumeId) -> Result<Vec<u32>, Failure> {
        Ok(with_name_of(kernel, &self.path_of(volume)?)?)
    }

    /// The file behind the device has the volume's path, by sysfs; or its name, and a path that
    /// leads nowhere here: that of a mount namespace that is gone. One that is seen at another path
    /// may be another driver's.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an id that is no file name; when sysfs cannot be read.
    pub(super) fn is_file_of(
        &self,
        kernel: &K,
        volume: &VolumeId,
        number: u32,
    ) -> Result<bool, Failure> {
        let (name, expected) = (file_name(volume)?, self.path_of(volume)?);
        let Some(found) = kernel.loop_file(number)?.map(|found| found.path) else {
            return Ok(false);
        };
        if found.file_name() != expected.file_name() {
            return Ok(false);
        }
        // The folder is held open, so the way to it needs no disk.
        let real = || -> Option<PathBuf> { Some(kernel.real(self.path()).ok()??.join(name)) };
        Ok(found == expected
            || real().is_some_and(|real| found == real)
            || matches!(kernel.look(&found), Ok(None)))
    }
}
