//! Writes the format mark of a device, and erases it before the volume is used.

use belay_server::call::{Failure, Kind};

use super::probe::{
    DeviceUnderTest, MARK_AT, MARK_BYTES, Proof, Sound, Unsettled, attempt, encode_mark,
    has_secret_of, is_of,
};
use super::witness::{self, Attempt, Witness};
use crate::kernel::{AlignedBuf, Kernel, Open};

/// Records that a format of the device begins, in the format mark and, if there is a backing file,
/// in the file's attribute. Waits until both records are on the disk. Returns the UUID for the
/// filesystem. If an earlier attempt to format has recorded a UUID, this is the recorded UUID;
/// otherwise, it is a new UUID.
///
/// # Errors
///
/// Returns [`Kind::Precondition`] if the attribute of the backing file records neither that the
/// volume is new nor that a format has begun. Returns the kernel's error if a read or write fails.
pub(super) fn write_mark<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    writer: &K::Fd,
) -> Result<String, Failure> {
    let (uuid, secret) = match device.backing {
        Some(file) => (witness::begin_format(kernel, file)?, None),
        None => (uuid_of_attempt(kernel, device)?, device.secrets.first()),
    };
    let proof = secret.and_then(|secret| {
        let uuid = Attempt::parse(uuid.as_bytes()).uuid()?;
        Some(Proof {
            secret: *secret,
            uuid,
        })
    });
    let mark = encode_mark(device.volume, proof.as_ref())
        .ok_or_else(|| Failure::bug("the volume id is too long for a format mark"))?;
    write_block(kernel, writer, &mark)?;
    kernel.fsync(writer)?;
    Ok(uuid)
}

/// Returns the UUID of an earlier attempt to format, otherwise a new UUID. All attempts use the
/// same UUID: the superblock of an interrupted attempt remains until mkfs overwrites it, and would
/// count as a complete filesystem if the mark had another UUID.
fn uuid_of_attempt<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<String, Failure> {
    match attempt(kernel, device)? {
        Some(attempt) => Ok(attempt.to_string()),
        None => Ok(kernel.new_uuid()?),
    }
}

/// Returns the names of the attempts to format that the records of the device prove, as 32
/// hexadecimal digits: the attempt that the backing file records, or the attempts of a disk, which
/// are named after its secrets.
///
/// # Errors
///
/// Returns the kernel's error.
pub(super) fn attempts<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<Vec<String>, Failure> {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .take(16)
            .map(|byte| format!("{byte:02x}"))
            .collect()
    };
    let Some(file) = device.backing else {
        let secrets = device.secrets.iter();
        return Ok(secrets.map(|secret| hex(secret.bytes())).collect());
    };
    Ok(match witness::ask(kernel, file)? {
        Witness::Formatting(attempt) => attempt.uuid().iter().map(|uuid| hex(uuid)).collect(),
        Witness::New | Witness::UseBegun | Witness::Used | Witness::NoFile => Vec::new(),
    })
}

/// Erases the format mark of the volume, unless mkfs has overwritten the mark. For a file, the
/// fsync that records the volume's use also writes the erasure to the disk. Until this fsync, the
/// mark may be valid; afterwards, the agent never reads the mark. For a disk, the mark remains
/// valid until the erasure is on the disk, so this function calls fsync. If the agent is killed
/// before the fsync, the first fsync by a user of the volume also writes the erasure. Until that
/// first fsync, users have no synced data that another format could destroy.
///
/// # Errors
///
/// Returns the kernel's error.
pub(super) fn erase_mark<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    writer: &K::Fd,
) -> Result<(), Failure> {
    let mut block = AlignedBuf::new(MARK_BYTES);
    let length = kernel.pread(writer, &mut block, MARK_AT)?;
    if length != MARK_BYTES {
        let text = format!("short read of {length} bytes at the format mark");
        return Err(Failure::new(Kind::System, text));
    }
    if is_of(device.volume, &block) {
        write_block(kernel, writer, &[0; MARK_BYTES])?;
    }
    if device.backing.is_none() {
        kernel.fsync(writer)?;
    }
    Ok(())
}

/// Records in the backing file that the volume is in use, or erases the format mark of a disk.
/// Returns the filesystem, which may now be mounted.
///
/// # Errors
///
/// Returns the error of the disk, or of the filesystem that contains the device's file. The next
/// stage retries.
pub(crate) fn settle<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    found: Unsettled,
) -> Result<Sound, Failure> {
    match device.backing {
        Some(file) => witness::testify_use(kernel, file, found.witness)?,
        None => {
            let writer = kernel.reopen(device.fd, Open::DeviceWrite)?;
            erase_mark(kernel, device, &writer)?;
        }
    }
    Ok(found.unsettled())
}

/// Erases a format mark that contains a secret. The caller must erase the mark before users of the
/// raw device can read the secret, and before their data could be mistaken for the remains of a
/// mkfs.
///
/// # Errors
///
/// Returns [`Kind::Precondition`] if `read_only` is true and the device has a format mark with a
/// secret; otherwise the kernel's error.
pub(crate) fn begin_raw_use<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
    read_only: bool,
) -> Result<(), Failure> {
    if device.bytes < MARK_AT + MARK_BYTES as u64 {
        return Ok(());
    }
    let mut block = AlignedBuf::new(MARK_BYTES);
    let length = kernel.pread(device.fd, &mut block, MARK_AT)?;
    if length != MARK_BYTES || !has_secret_of(device.volume, &block) {
        return Ok(());
    }
    if read_only {
        return Err(Failure::precondition(format!(
            "volume {}: a format of it was interrupted; a reader of the raw device would see its \
             mark: stage it for writing first",
            device.volume
        )));
    }
    let writer = kernel.reopen(device.fd, Open::DeviceWrite)?;
    write_block(kernel, &writer, &[0; MARK_BYTES])?;
    Ok(kernel.fsync(&writer)?)
}

/// Writes a block at the mark's offset.
fn write_block<K: Kernel>(
    kernel: &K,
    writer: &K::Fd,
    block: &[u8; MARK_BYTES],
) -> Result<(), Failure> {
    let mut buffer = AlignedBuf::new(MARK_BYTES);
    buffer.copy_from_slice(block);
    let length = kernel.pwrite(writer, &buffer, MARK_AT)?;
    if length != MARK_BYTES {
        let text = format!("short write of {length} bytes at the format mark");
        return Err(Failure::new(Kind::System, text));
    }
    Ok(())
}
