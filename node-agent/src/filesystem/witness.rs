//! The witness: a record in an extended attribute of the backing file of a device, which no user of
//! the volume can change. The witness states that the volume is new, that a format has begun, or
//! that the volume is in use and must hold data.
//!
//! A format mark is valid only together with the record of a format, since users can later write
//! any block, including a mark. The record of use is set before the first mount. From then on, only
//! an operator can make the volume formattable. This module must not know the content of the
//! device.

use std::fmt;

use belay_contract::drivers::local::{IS_NEW, NEW, USE_BEGUN};
use belay_server::call::Failure;

use crate::kernel::{Cause, Error, Kernel};

/// The record in the backing file of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Witness {
    /// The volume was never used.
    New,
    /// A format has begun, and the volume has not been in use since.
    Formatting(Attempt),
    /// The volume has been in use, but a power loss may undo this record: the agent was killed
    /// before it had synced the file, or fsync has failed.
    UseBegun,
    /// The volume has been in use, or no record shows that the volume is new. The volume holds
    /// data, or its data is lost.
    Used,
    /// The device has no backing file.
    NoFile,
}

/// An interrupted format, identified by the UUID that it gives to the filesystem if mkfs accepts a
/// UUID. All attempts to complete the format use the same UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attempt(Option<[u8; 16]>);

impl Attempt {
    /// An attempt to format whose UUID is unknown, or no attempt.
    pub(super) const UNKNOWN: Attempt = Attempt(None);

    pub(super) const fn of(uuid: [u8; 16]) -> Attempt {
        Attempt(Some(uuid))
    }

    /// Parses the value of the attribute [`NEW`]. Returns [`Attempt::UNKNOWN`] if the value is not
    /// the text of a UUID.
    pub(super) fn parse(value: &[u8]) -> Attempt {
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

    /// Returns the UUID; `None` if it is unknown.
    pub(super) fn uuid(self) -> Option<[u8; 16]> {
        self.0
    }

    /// Whether this attempt has made the filesystem with this UUID.
    pub(super) fn made(self, uuid: [u8; 16]) -> bool {
        self.0 == Some(uuid)
    }
}

/// Writes the UUID as text, or nothing if it is unknown.
impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().flatten().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Records in the backing file that the volume is in use, before users can write to the volume.
/// From then on, no format mark is valid, and a volume of zeros counts as a volume that has lost
/// its data.
///
/// # Errors
///
/// Returns the error of the filesystem that contains the file. After an error, the file may still
/// record that a format has begun.
pub(crate) fn begin_use<K: Kernel>(kernel: &K, file: &K::Fd) -> Result<(), Failure> {
    testify_use(kernel, file, ask(kernel, file)?)
}

/// Records in the backing file that the volume is in use, like [`begin_use`]. `before` is the
/// present record.
///
/// # Errors
///
/// Returns the error of the filesystem that contains the file.
pub(super) fn testify_use<K: Kernel>(
    kernel: &K,
    file: &K::Fd,
    before: Witness,
) -> Result<(), Failure> {
    if matches!(before, Witness::Used | Witness::NoFile) {
        return Ok(());
    }
    match kernel.set_xattr(file, NEW, USE_BEGUN) {
        Ok(()) => kernel.fsync(file)?,
        // A full disk must not prevent the pod's access to its data. On most filesystems, the
        // removal of an attribute needs no space. On an xfs without free blocks, the removal fails
        // too. Then NodeStageVolume fails, since a volume that is in use must not count as new.
        Err(error) if error.cause() == Cause::Full => {
            kernel.remove_xattr(file, NEW)?;
            return Ok(kernel.fsync(file)?);
        }
        Err(error) => return Err(error.into()),
    }
    // If a power loss undoes this removal, the next NodeStageVolume call removes the attribute
    // again.
    Ok(kernel.remove_xattr(file, NEW)?)
}

/// Reads the record in the backing file of a device.
pub(super) fn ask<K: Kernel>(kernel: &K, file: &K::Fd) -> Result<Witness, Error> {
    Ok(match kernel.xattr(file, NEW)?.as_deref() {
        // On a filesystem without extended attributes, the agent formats no volume.
        None => Witness::Used,
        Some(IS_NEW) => Witness::New,
        Some(USE_BEGUN) => Witness::UseBegun,
        Some(value) => match Attempt::parse(value) {
            Attempt::UNKNOWN => Witness::Used,
            attempt => Witness::Formatting(attempt),
        },
    })
}

/// Records in the backing file that a format begins, and waits until the record is on the disk.
/// Returns the UUID for the filesystem: the UUID of an earlier attempt, or otherwise a new UUID.
///
/// # Errors
///
/// Returns [`belay_server::call::Kind::Precondition`] if the file does not record that the volume
/// is new, or that a format has begun; otherwise the kernel's error.
pub(super) fn begin_format<K: Kernel>(kernel: &K, file: &K::Fd) -> Result<String, Failure> {
    let uuid = match ask(kernel, file)? {
        // The record of the earlier attempt may not be on the disk yet: the file is synced below.
        Witness::Formatting(attempt) => attempt.to_string(),
        Witness::New => {
            let uuid = kernel.new_uuid()?;
            kernel.set_xattr(file, NEW, uuid.as_bytes())?;
            uuid
        }
        Witness::Used | Witness::UseBegun | Witness::NoFile => {
            return Err(Failure::precondition(format!(
                "the volume is not formatted, since its file does not record that it is new ({NEW})"
            )));
        }
    };
    kernel.fsync(file)?;
    Ok(uuid)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use belay_server::call::Kind;

    use super::*;
    use crate::kernel::Open;
    use crate::kernel::fake::{Fake, Fault, Fd, Machine};

    #[test]
    fn an_attempt_is_known_by_its_uuid_and_by_nothing_else() {
        let attempt = Attempt::parse(b"00010203-0405-0607-0809-0a0b0c0d0eff");
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255];
        assert!(attempt.made(uuid));
        assert_eq!(attempt.uuid(), Some(uuid));
        assert_eq!(Attempt::UNKNOWN.uuid(), None);
        assert_eq!(attempt.to_string(), "00010203-0405-0607-0809-0a0b0c0d0eff");
        assert!(!attempt.made([0; 16]));
        for value in [
            &b""[..],
            b"1",
            b"00010203-0405-0607-0809-0a0b0c0d0ef",
            b"00010203-0405-0607-0809-0a0b0c0d0efg",
            b"00010203-0405-0607-08090a0b0c0d0eff",
            b"000102030405060708090a0b0c0d0eff0000",
            b"------------------------------------",
        ] {
            assert_eq!(Attempt::parse(value), Attempt::UNKNOWN, "{value:?}");
        }
    }

    /// Returns a machine with the backing file of a new volume, and the file.
    fn file() -> (Machine, Fake, Fd) {
        let machine = Machine::new();
        let path = Path::new("/file");
        machine.make_file(path, 1 << 20);
        let kernel = machine.process();
        let file = kernel.open(path, Open::FileWrite).unwrap();
        kernel.set_xattr(&file, NEW, IS_NEW).unwrap();
        (machine, kernel, file)
    }

    #[test]
    fn each_attempt_to_complete_a_format_has_the_uuid_of_the_first() {
        let (machine, kernel, file) = file();
        let begin = || {
            machine.begin(None);
            let uuid = begin_format(&kernel, &file).unwrap();
            let last = machine.end().pop().map(|call| call.name);
            assert_eq!(last, Some("fsync"), "it may not be on the disk yet");
            uuid
        };
        let first = begin();
        assert_eq!(begin(), first);
        let Witness::Formatting(attempt) = ask(&kernel, &file).unwrap() else {
            panic!("the file records the format");
        };
        assert!(attempt != Attempt::UNKNOWN);
        for (value, witness) in [(USE_BEGUN, Witness::UseBegun), (b"other", Witness::Used)] {
            kernel.set_xattr(&file, NEW, value).unwrap();
            assert_eq!(ask(&kernel, &file).map_err(drop), Ok(witness));
            let refused = begin_format(&kernel, &file).unwrap_err();
            assert_eq!(refused.kind, Kind::Precondition, "{refused}");
        }
    }

    /// If the record of a format remained, a mark that a user writes would be valid.
    #[test]
    fn the_record_of_a_format_is_gone_once_the_volume_is_used_even_on_a_full_disk() {
        let (machine, kernel, file) = file();
        begin_format(&kernel, &file).unwrap();
        // The calls are fgetxattr and fsetxattr.
        machine.begin(Some(Fault::Fail(2, "EOPNOTSUPP")));
        begin_use(&kernel, &file).unwrap_err();
        machine.end();
        machine.begin(Some(Fault::FailFrom(2, "ENOSPC")));
        begin_use(&kernel, &file).unwrap_err();
        machine.end();
        begin_format(&kernel, &file).unwrap();
        machine.begin(Some(Fault::Fail(2, "ENOSPC")));
        begin_use(&kernel, &file).unwrap();
        machine.end();
        assert_eq!(ask(&kernel, &file).map_err(drop), Ok(Witness::Used));
    }

    /// A failed system call is an error. A filesystem without attributes has no record, and a full
    /// filesystem must not prevent access to the data.
    #[test]
    fn only_a_lack_of_attributes_or_of_space_is_no_error_of_a_record() {
        let fail = |number, errno, act: fn(&Fake, &Fd) -> Result<(), Failure>| {
            let (machine, kernel, file) = file();
            machine.begin(Some(Fault::Fail(number, errno)));
            let result = act(&kernel, &file);
            machine.end();
            result.map(|()| ask(&kernel, &file).unwrap())
        };
        let asked = |kernel: &Fake, file: &_| {
            assert_eq!(ask(kernel, file)?, Witness::Used);
            Ok(())
        };
        assert_eq!(fail(1, "EOPNOTSUPP", asked), Ok(Witness::New));
        assert!(fail(1, "EIO", asked).is_err());

        // The calls are fgetxattr, fsetxattr, fsync and fremovexattr.
        assert_eq!(fail(1, "EOPNOTSUPP", begin_use), Ok(Witness::New));
        assert_eq!(fail(2, "ENOSPC", begin_use), Ok(Witness::Used));
        for number in [2, 3, 4] {
            assert!(fail(number, "EIO", begin_use).is_err(), "{number}");
        }

        // The calls are fgetxattr, the read of a new UUID, fsetxattr and fsync.
        let begun = |kernel: &Fake, file: &_| begin_format(kernel, file).map(drop);
        let kind = |errno| fail(3, errno, begun).unwrap_err().kind;
        assert_eq!(kind("EIO"), Kind::System);
        assert!(fail(4, "EIO", begun).is_err());
    }
}
