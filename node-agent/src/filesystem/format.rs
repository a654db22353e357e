//! Creates a filesystem on a device that is proven blank, or on which an earlier format was
//! interrupted.
//!
//! The order of the steps makes a crash at any point safe. First, the witness is set, which is an
//! extended attribute of the device's backing file. Then the format mark is written to the device,
//! and then mkfs runs. Once the new filesystem has been checked, the mark is erased, and the
//! witness records that the volume is in use. A disk has no witness; its mark is erased permanently
//! before the mount. This module does not know where the filesystem will be mounted. The caller
//! mounts the filesystem only after [`format`] has returned.

use std::time::Duration;

use belay_contract::encryption::HEADER_BYTES;
use belay_contract::format::{FormatOptions, MARK_AT};
use belay_server::call::{Failure, Kind};
use belay_server::size::Exact;

use super::FsType;
use super::marking::{attempts, erase_mark, settle, write_mark};
use super::mkfs::{Recipe, mkfs, refuse_busy};
use super::probe::{Blank, DeviceUnderTest, Interrupted, Probed, examine, identify};
use crate::kernel::{Kernel, Open};

/// The permission to format a device. Only [`examine`] can grant this permission, and
/// [`Unfinished`] for the content of an encrypted device.
#[derive(Debug)]
pub(crate) enum Permit {
    /// Every byte of the device that must be read is zero.
    Blank(Blank),
    /// The device has only the remains of an earlier format of the same volume.
    Interrupted(Interrupted),
    /// The device is the content of an encrypted device that was never used.
    Unfinished(Unfinished),
}

/// The permission to format the content of an encrypted device: an agent has created the header of
/// the device for this volume, and no user of the volume has had access since.
#[derive(Debug)]
pub(crate) struct Unfinished {
    volume: String,
}

impl Unfinished {
    /// Returns the permission if `is_labelled` is true for an attempt to format that the records of
    /// the outer device prove. `is_labelled` says whether the header is labelled with the attempt.
    ///
    /// # Errors
    /// Returns an error if the records cannot be read.
    pub(crate) fn read<K: Kernel>(
        kernel: &K,
        outer: &DeviceUnderTest<'_, K::Fd>,
        is_labelled: impl Fn(&str) -> bool,
    ) -> Result<Option<Self>, Failure> {
        let is_ours = attempts(kernel, outer)?.iter().any(|it| is_labelled(it));
        Ok(is_ours.then(|| Unfinished {
            volume: outer.volume.to_owned(),
        }))
    }
}

impl From<Blank> for Permit {
    fn from(blank: Blank) -> Permit {
        Permit::Blank(blank)
    }
}

impl From<Interrupted> for Permit {
    fn from(interrupted: Interrupted) -> Permit {
        Permit::Interrupted(interrupted)
    }
}

impl Permit {
    /// Whether parts of the device were not read and may have any content.
    pub(super) fn is_sampled(&self) -> bool {
        matches!(self, Permit::Blank(blank) if blank.is_sampled())
    }

    fn is_about(&self, volume: &str, bytes: u64) -> bool {
        match self {
            Permit::Blank(blank) => blank.is_about(volume, bytes),
            Permit::Interrupted(interrupted) => interrupted.is_about(volume, bytes),
            Permit::Unfinished(unfinished) => unfinished.volume == volume,
        }
    }
}

/// Creates an empty filesystem of this type, with suitable options, on the device. Returns when the
/// filesystem is valid and on the disk.
///
/// # Errors
///
/// Returns [`Kind::Precondition`] for a device smaller than [`FsType::minimum_bytes`] and for a
/// backing file that cannot have extended attributes; [`Kind::Busy`] and [`Kind::Timeout`], after
/// which mkfs may still be running; [`Kind::System`] with the message of mkfs or the kernel. The
/// caller can retry the format after each of these errors.
pub(crate) fn format<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    (fs, options): (FsType, FormatOptions),
    permit: Permit,
    deadline: Duration,
) -> Result<(), Failure> {
    refuse(device, &permit, fs.minimum_bytes(), fs.name())?;
    refuse_busy(kernel, device)?;
    let writer = kernel.reopen(device.fd, Open::DeviceWrite)?;
    let is_inside = matches!(permit, Permit::Unfinished(_));
    let uuid = match is_inside {
        // The header of the encrypted device is the mark.
        true => kernel.new_uuid()?,
        false => write_mark(kernel, device, &writer)?,
    };
    let over_leftovers = is_inside || matches!(permit, Permit::Interrupted(_));
    let recipe = Recipe {
        fs,
        options,
        uuid: &uuid,
        over_leftovers,
        // Before the first attempt, the agent may have read only samples of the device.
        over_unread: permit.is_sampled() || over_leftovers && device.backing.is_none(),
    };
    mkfs(kernel, device, &recipe, deadline)?;
    // Without the mark, an incomplete filesystem could never be formatted again. Therefore sync the
    // new filesystem and read it back before erasing the mark.
    kernel.fsync(&writer)?;
    let made = identify(kernel, device)?;
    if made.fs_type() != Some(fs) {
        return Err(unexpected(fs, &made.to_string()));
    }
    if is_inside {
        return Ok(());
    }
    erase_mark(kernel, device, &writer)?;
    match examine(kernel, device) {
        Probed::Unsettled(made) if made.fs_type() == fs => settle(kernel, device, made).map(drop),
        Probed::Unsettled(made) => Err(unexpected(fs, made.fs_type().name())),
        // The device has no backing file, or another process has removed the file's attribute.
        Probed::Known(found) if found.fs == fs => Ok(()),
        Probed::Known(found) => Err(unexpected(fs, found.fs.name())),
        Probed::Foreign(foreign) => Err(unexpected(fs, &foreign.to_string())),
        Probed::Interrupted(_) => Err(unexpected(fs, "a format mark that was erased")),
        Probed::Blank(_) | Probed::Emptied => Err(unexpected(fs, "only zeros")),
        Probed::Unreadable(failure) => Err(failure),
    }
}

/// Creates the header of an encrypted device by calling `create` with the name of the attempt,
/// which is empty if no later call could prove the attempt. The order of the steps is that of
/// [`format`]: until the mark is erased, a retry creates the header again.
///
/// # Errors
///
/// Returns [`Kind::Precondition`] for a device that is too small, and the errors of `create`.
pub(crate) fn encrypt<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    permit: &Permit,
    create: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<Unfinished, Failure> {
    refuse(
        device,
        permit,
        MARK_AT + HEADER_BYTES,
        "an encrypted volume",
    )?;
    refuse_busy(kernel, device)?;
    let writer = kernel.reopen(device.fd, Open::DeviceWrite)?;
    write_mark(kernel, device, &writer)?;
    let attempts = attempts(kernel, device)?;
    create(attempts.first().map_or("", String::as_str))?;
    kernel.fsync(&writer)?;
    erase_mark(kernel, device, &writer)?;
    Ok(Unfinished {
        volume: device.volume.to_owned(),
    })
}

/// Refuses a permission for another device, and a device that is smaller than `least`.
fn refuse<Fd>(
    device: &DeviceUnderTest<'_, Fd>,
    permit: &Permit,
    least: u64,
    what: &str,
) -> Result<(), Failure> {
    if !permit.is_about(device.volume, device.bytes) {
        return Err(Failure::bug(
            "the permission to format is for another device",
        ));
    }
    if device.bytes < least {
        return Err(Failure::precondition(format!(
            "volume {}: has {}, the minimum for {what} is {}; request a larger one",
            device.volume,
            Exact(device.bytes),
            Exact(least)
        )));
    }
    Ok(())
}

fn unexpected(fs: FsType, found: &str) -> Failure {
    let text = format!("mkfs.{fs} reported success, but the device has {found}");
    Failure::new(Kind::System, text)
}
