//! A loop device whose file has lost the volume's name: known by the name that it was given.

use belay_server::failure::Failure;
use belay_server::request::VolumeId;

use super::loopdev::{clr_fd, loop_path};
use crate::kernel::{Cause, Kernel, Open, Patience, while_busy};

/// A device that was bound to the volume's file, which is gone or elsewhere by now.
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

    /// The open device.
    pub(crate) fn fd(&self) -> &K::Fd {
        &self.fd
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
            Ok(fd) => is_named(kernel, &fd, volume),
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

/// The bound device was given the volume's name. One that is longer than the field has no name.
fn is_named<K: Kernel>(
    kernel: &K,
    device: &K::Fd,
    volume: &VolumeId,
) -> crate::kernel::Result<bool> {
    let status = kernel.loop_status(device)?;
    Ok(status.is_some_and(|status| status.name == volume.as_str()))
}
