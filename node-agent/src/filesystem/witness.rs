//! What the file behind a device testifies, by attributes that no user of the volume can reach:
//! that a format of ours has begun, or that the volume is in use and must hold data.
//!
//! The first makes a format mark count: the mark is among the blocks that become the users' own,
//! so a user can write one. The second is set before the first mount, and from then on nothing but
//! an operator makes the volume one that may be formatted. Must not know what is on the device.

use belay_server::call::Failure;

use super::FsType;
use super::probe::DeviceUnderTest;
use crate::kernel::{Cause, Error, Kernel};

/// xattr(7): a name of this class is visible only with `CAP_SYS_ADMIN`.
pub(super) const FORMATTING: &str = "trusted.belay.formatting";
/// [`FORMATTING`] for a volume in use. A name of its own, not another value: earlier releases look
/// only whether an attribute is there, and would believe a mark in a volume that is in use.
pub(crate) const USED: &str = "trusted.belay.used";
/// Only that it is there counts, but for this value: the disk may not have it yet.
const USE_BEGUN: &[u8] = b"0";
/// Its value once it is on the disk.
const USED_VALUE: &[u8] = b"1";

/// What the file behind a device testifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Witness {
    /// The volume has been in use: it holds data, or has lost it.
    Used,
    /// The same, and a loss of power may take that away: who was to sync it was killed, or failed.
    UseBegun,
    /// A format has begun, and nobody has used the device since.
    Formatting(Attempt),
    /// Nothing is known of it.
    Absent,
    /// Nothing: there is no file.
    NoFile,
}

/// The format that has begun, by the UUID that its filesystem gets where the tool can be told one.
/// All tries to end it have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt(Option<[u8; 16]>);

impl Attempt {
    /// An earlier release has begun it, or nobody.
    pub(super) const UNKNOWN: Attempt = Attempt(None);

    #[cfg(test)]
    pub(super) const fn of(uuid: [u8; 16]) -> Attempt {
        Attempt(Some(uuid))
    }

    /// The value of [`FORMATTING`]: the UUID as text.
    fn parse(value: &[u8]) -> Attempt {
        let digits: Vec<u8> = value.iter().copied().filter(|byte| *byte != b'-').collect();
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let byte = |pair: &[u8]| u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok();
        let bytes: Option<Vec<u8>> = digits.chunks_exact(2).map(byte).collect();
        let is_uuid = value.len() == 36 && digits.len() == 32;
        Attempt(
            bytes
                .filter(|_| is_uuid)
                .and_then(|all| all.try_into().ok()),
        )
    }

    /// A filesystem with this UUID is of this attempt.
    pub(super) fn made(self, uuid: [u8; 16]) -> bool {
        self.0 == Some(uuid)
    }
}

/// A filesystem whose file does not testify yet that it is in use. It is not mounted like this: a
/// mark in its blocks might count, and all zeros might pass for blank.
#[derive(Debug)]
pub(crate) struct Unsettled {
    fs: FsType,
    witness: Witness,
}

impl Unsettled {
    pub(super) fn new(fs: FsType, witness: Witness) -> Self {
        Unsettled { fs, witness }
    }

    pub(crate) fn fs_type(&self) -> FsType {
        self.fs
    }

    /// Lets the file testify that the volume is in use; which filesystem is now fit to be mounted.
    ///
    /// # Errors
    ///
    /// What the filesystem of the device's file said; the next stage does it again.
    pub(crate) fn settle<K: Kernel>(
        self,
        kernel: &K,
        device: &DeviceUnderTest<'_, K::Fd>,
    ) -> Result<FsType, Failure> {
        if let Some(file) = device.backing {
            testify_use(kernel, file, self.witness)?;
        }
        Ok(self.fs)
    }
}

/// Lets the file testify that the volume is in use, before anybody can write to it: from now on
/// no mark counts, and all zeros are a loss.
///
/// # Errors
///
/// What the filesystem of the file said; the witness of a format may still be there.
pub(crate) fn begin_use<K: Kernel>(kernel: &K, file: &K::Fd) -> Result<(), Failure> {
    testify_use(kernel, file, ask(kernel, Some(file))?)
}

fn testify_use<K: Kernel>(kernel: &K, file: &K::Fd, before: Witness) -> Result<(), Failure> {
    match before {
        Witness::Used | Witness::NoFile => return Ok(()),
        // First, since an earlier release may see what a crash leaves here.
        Witness::Formatting(_) => kernel.remove_xattr(file, FORMATTING)?,
        Witness::UseBegun | Witness::Absent => {}
    }
    match kernel.set_xattr(file, USED, USE_BEGUN) {
        Ok(()) => {}
        // Where there are no such attributes, nothing is ever formatted.
        Err(error) if error.cause() == Cause::Unsupported => return Ok(()),
        // A full disk must not keep the data from its pod. The next stage tries again.
        Err(error) if error.cause() == Cause::Full => {
            tracing::warn!("the volume's file does not record that it is in use: {error}");
        }
        Err(error) => return Err(error.into()),
    }
    kernel.fsync(file)?;
    match kernel.set_xattr(file, USED, USED_VALUE) {
        // The next stage syncs it again.
        Err(error) if error.cause() == Cause::Full => Ok(()),
        set => Ok(set?),
    }
}

/// Asks the file behind a device.
pub(super) fn ask<K: Kernel>(kernel: &K, file: Option<&K::Fd>) -> Result<Witness, Error> {
    let Some(file) = file else {
        return Ok(Witness::NoFile);
    };
    let value_of = |name| match kernel.xattr(file, name) {
        // Where there are no such attributes, no format has begun either.
        Err(error) if error.cause() == Cause::Unsupported => Ok(None),
        value => value,
    };
    if let Some(value) = value_of(USED)? {
        return Ok(match value == USE_BEGUN {
            true => Witness::UseBegun,
            false => Witness::Used,
        });
    }
    let begun = value_of(FORMATTING)?.map(|value| Attempt::parse(&value));
    Ok(begun.map_or(Witness::Absent, Witness::Formatting))
}

/// Lets the file, if there is one, testify that a format begins, and waits until the disk has it.
/// The UUID for its filesystem: that of an earlier try, else a new one.
///
/// # Errors
///
/// [`belay_server::call::Kind::Precondition`] where the file's filesystem has no such
/// attributes.
pub(super) fn begin_format<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<String, Failure> {
    let Some(file) = device.backing else {
        return Ok(kernel.new_uuid()?);
    };
    if let Ok(Some(value)) = kernel.xattr(file, FORMATTING)
        && Attempt::parse(&value) != Attempt::UNKNOWN
        && let Ok(uuid) = String::from_utf8(value)
    {
        // It may not be on the disk yet.
        kernel.fsync(file)?;
        return Ok(uuid);
    }
    let uuid = kernel.new_uuid()?;
    match kernel.set_xattr(file, FORMATTING, uuid.as_bytes()) {
        Ok(()) => {
            kernel.fsync(file)?;
            Ok(uuid)
        }
        Err(error) if error.cause() == Cause::Unsupported => Err(Failure::precondition(format!(
            "the volume is not formatted, since its file cannot bear the witness of a format \
             ({FORMATTING}): {error}; keep the volumes' files on a filesystem with trusted \
             extended attributes, such as ext4, xfs or btrfs"
        ))),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_known_by_its_uuid_and_by_nothing_else() {
        let attempt = Attempt::parse(b"00010203-0405-0607-0809-0a0b0c0d0eff");
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert!(attempt.made(uuid));
        assert!(!attempt.made([0; 16]));
        for value in [
            &b""[..],
            b"1",
            b"00010203-0405-0607-0809-0a0b0c0d0ef",
            b"00010203-0405-0607-0809-0a0b0c0d0efg",
            b"000102030405060708090a0b0c0d0eff0000",
            b"------------------------------------",
        ] {
            assert_eq!(Attempt::parse(value), Attempt::UNKNOWN, "{value:?}");
        }
    }
}
