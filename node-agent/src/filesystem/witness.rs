//! The witness that makes a format mark count: an attribute of the file behind the device, which
//! is there before the mark is written and goes before the first mount.
//!
//! The mark is among the blocks that become the users' own, so a user can write one; the file and
//! its attributes of the class `trusted` he never reaches. Must not know what is on the device.

use belay_server::failure::Failure;

use super::FsType;
use super::probe::DeviceUnderTest;
use crate::kernel::{Cause, Error, Kernel};

/// xattr(7): to be seen, set and removed only with `CAP_SYS_ADMIN`.
pub(super) const ATTRIBUTE: &str = "trusted.belay.formatting";
/// Only that it is there counts.
const VALUE: &[u8] = b"1";

/// What the file behind a device testifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Witness {
    /// A format has begun, and nobody has used the device since.
    Present,
    /// No format is under way.
    Absent,
    /// Nothing: there is no file.
    NoFile,
}

/// A filesystem that may still have the witness of its format. It is not mounted like this: once
/// it is in use, a mark in its blocks would count.
#[derive(Debug)]
pub(crate) struct Unsettled(FsType);

impl Unsettled {
    pub(super) fn new(fs: FsType) -> Self {
        Unsettled(fs)
    }

    pub(super) fn fs_type(&self) -> FsType {
        self.0
    }

    /// Takes the witness away for good; which filesystem is now fit to be mounted.
    ///
    /// # Errors
    ///
    /// What the filesystem of the device's file said; the witness may still be there.
    pub(crate) fn settle<K: Kernel>(
        self,
        kernel: &K,
        device: &DeviceUnderTest<'_, K::Fd>,
    ) -> Result<FsType, Failure> {
        if let Some(file) = device.backing {
            dismiss(kernel, file)?;
        }
        Ok(self.0)
    }
}

/// Takes the witness away for good, if there is one: from now on no mark counts.
///
/// # Errors
///
/// What the filesystem of the file said; the witness may still be there.
pub(crate) fn dismiss<K: Kernel>(kernel: &K, file: &K::Fd) -> Result<(), Failure> {
    if ask(kernel, Some(file))? == Witness::Present {
        kernel.remove_xattr(file, ATTRIBUTE)?;
        kernel.fsync(file)?;
    }
    Ok(())
}

/// Asks the file behind a device.
pub(super) fn ask<K: Kernel>(kernel: &K, file: Option<&K::Fd>) -> Result<Witness, Error> {
    let Some(file) = file else {
        return Ok(Witness::NoFile);
    };
    match kernel.has_xattr(file, ATTRIBUTE) {
        Ok(true) => Ok(Witness::Present),
        Ok(false) => Ok(Witness::Absent),
        // Where there are no such attributes, no format has begun either.
        Err(error) if error.cause() == Cause::Unsupported => Ok(Witness::Absent),
        Err(error) => Err(error),
    }
}

/// Sets the witness, if there is a file to bear it, and waits until the disk has it.
///
/// # Errors
///
/// [`belay_server::failure::Kind::Precondition`] where the file's filesystem has no such
/// attributes.
pub(super) fn call<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<(), Failure> {
    let Some(file) = device.backing else {
        return Ok(());
    };
    match kernel.set_xattr(file, ATTRIBUTE, VALUE) {
        Ok(()) => Ok(kernel.fsync(file)?),
        Err(error) if error.cause() == Cause::Unsupported => Err(Failure::precondition(format!(
            "the volume is not formatted, since its file cannot bear the witness of a format \
             ({ATTRIBUTE}): {error}; keep the volumes' files on a filesystem with trusted \
             extended attributes, such as ext4, xfs or btrfs"
        ))),
        Err(error) => Err(error.into()),
    }
}
