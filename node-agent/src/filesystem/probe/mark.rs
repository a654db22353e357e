//! The format mark: a block on the device that records that a format of the volume is in progress.
//! The mark is written before mkfs runs, and erased after mkfs and before the first mount. A device
//! with a valid mark may be formatted again.
//!
//! The mark is at byte 100 MiB of the device. The fields of the mark, in little-endian order, are
//! the magic (16 bytes), the version (u32), the length of the volume ID (u32), the ID, and zeros.
//! Version 2 has the volume's secret (32 bytes) at byte 160, and then the UUID of the attempt (16
//! bytes). At byte 508 is the CRC-32C of all bytes before it, followed by zeros up to byte 4096.
//! All fields are in the first 512 bytes, which disks write atomically, so a mark cannot be torn.
//!
//! Once the device is in use, users of the volume can write a mark too. On a device with a backing
//! file, a mark is therefore valid only with the file's witness (`filesystem/witness.rs`). On a
//! disk, a mark is valid only with the secret of the volume, which users do not know.

use belay_contract::drivers::local::NEW;
pub(in crate::filesystem) use belay_contract::format::MARK_AT;
use belay_contract::mark::MarkSecret;
use belay_server::call::Failure;

use crate::filesystem::witness::{Attempt, Witness};
use crate::kernel::Kernel;

use super::disk::{Area, DeviceUnderTest, Disk, KernelDisk};
use super::field::{self, crc32c};

/// The size of the mark in bytes: one block of any device.
pub(in crate::filesystem) const MARK_BYTES: usize = 4096;

const MAGIC: &[u8; 16] = b"BELAY-MKFS-MARK\n";
const VERSION: u32 = 1;
/// The version of marks with a secret.
const VERSION_SECRET: u32 = 2;
const ID_AT: usize = 24;
/// The maximum length of a CSI volume ID, in bytes.
const ID_BYTES_MAX: usize = 128;
const SECRET_AT: usize = 160;
const UUID_AT: usize = 192;
const CHECKSUM_AT: usize = 508;

/// An interrupted format of a volume: the permission to format the volume again. Only a format mark
/// grants this permission.
#[derive(Debug)]
pub(crate) struct Interrupted {
    volume: String,
    bytes: u64,
    origin: Origin,
}

/// The possible writer of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An agent wrote the mark: the backing file has a witness, or the mark has a secret of the
    /// volume.
    Agent,
    /// Perhaps an agent wrote the mark: its secret was derived from an unknown key.
    OtherKey,
    /// An agent or a user of the volume wrote the mark: the mark has no secret.
    Anyone,
}

impl Interrupted {
    /// Whether the mark was read from a device of this volume and this size in bytes.
    pub(in crate::filesystem) fn is_about(&self, volume: &str, bytes: u64) -> bool {
        self.volume == volume && self.bytes == bytes
    }

    /// Returns the possible writer of the mark.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }
}

/// The content at the mark's offset.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// There is no mark.
    Absent,
    /// A damaged mark, or a mark of an unknown version.
    Unreadable,
    /// A valid mark: the ID of its volume, and the proof that a mark of version 2 has.
    Of(String, Option<Proof>),
}

/// The additional content of a mark of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::filesystem) struct Proof {
    /// The volume's secret.
    pub(in crate::filesystem) secret: MarkSecret,
    /// The UUID that the attempt gives to the filesystem, if mkfs accepts a UUID.
    pub(in crate::filesystem) uuid: [u8; 16],
}

impl Mark {
    /// Returns the interrupted format of `volume`, if the mark is for this volume and has one of
    /// these secrets.
    pub(super) fn attempt(&self, volume: &str, secrets: &[MarkSecret]) -> Option<Attempt> {
        match self {
            Mark::Of(id, Some(proof)) if id == volume && secrets.contains(&proof.secret) => {
                Some(Attempt::of(proof.uuid))
            }
            _ => None,
        }
    }

    /// Returns the permission to format `volume` again, if the mark is for this volume. `is_proven`
    /// states whether the volume's record proves that an agent wrote the mark.
    pub(super) fn interrupted(
        &self,
        volume: &str,
        bytes: u64,
        is_proven: bool,
    ) -> Option<Interrupted> {
        match self {
            Mark::Of(id, proof) if id == volume => Some(Interrupted {
                volume: id.clone(),
                bytes,
                origin: match proof {
                    _ if is_proven => Origin::Agent,
                    Some(_) => Origin::OtherKey,
                    None => Origin::Anyone,
                },
            }),
            _ => None,
        }
    }

    /// Returns the interrupted format of `volume`, if the mark is for this volume and records
    /// `uuid`, the UUID of the filesystem. The mark need not have the secret.
    pub(super) fn of_attempt(
        &self,
        volume: &str,
        bytes: u64,
        uuid: [u8; 16],
    ) -> Option<Interrupted> {
        match self {
            Mark::Of(_, Some(proof)) if proof.uuid == uuid => {
                self.interrupted(volume, bytes, false)
            }
            _ => None,
        }
    }

    /// Describes a mark that does not permit formatting `volume`; `None` if there is no mark.
    pub(super) fn foreign_name(&self, volume: &str) -> Option<String> {
        match self {
            Mark::Absent => None,
            Mark::Of(id, _) if id == volume => Some(format!(
                "a format mark without its witness ({NEW} on the volume's file)"
            )),
            Mark::Unreadable => Some("a format mark that cannot be read".to_owned()),
            Mark::Of(id, _) => Some(format!("the format mark of volume {id:?}")),
        }
    }
}

/// Encodes the mark of a volume. Returns `None` if the volume ID is empty or longer than 128 bytes.
pub(in crate::filesystem) fn encode(
    volume: &str,
    proof: Option<&Proof>,
) -> Option<[u8; MARK_BYTES]> {
    if !(1..=ID_BYTES_MAX).contains(&volume.len()) {
        return None;
    }
    let version = proof.map_or(VERSION, |_| VERSION_SECRET);
    let mut block = [0; MARK_BYTES];
    block[..16].copy_from_slice(MAGIC);
    block[16..20].copy_from_slice(&version.to_le_bytes());
    block[20..24].copy_from_slice(&u32::try_from(volume.len()).ok()?.to_le_bytes());
    block[ID_AT..ID_AT + volume.len()].copy_from_slice(volume.as_bytes());
    if let Some(proof) = proof {
        block[SECRET_AT..UUID_AT].copy_from_slice(proof.secret.bytes());
        block[UUID_AT..UUID_AT + 16].copy_from_slice(&proof.uuid);
    }
    let checksum = !crc32c(!0, &block[..CHECKSUM_AT]);
    block[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&checksum.to_le_bytes());
    Some(block)
}

/// Decodes the block at the mark's offset. A mark is valid only if every byte equals the output of
/// [`encode`] for the volume ID and the proof in the mark.
pub(super) fn decode(block: &[u8]) -> Mark {
    if !block.starts_with(MAGIC) {
        return Mark::Absent;
    }
    let length = usize::try_from(field::le32(block, 20)).unwrap_or(usize::MAX);
    let id = block.get(ID_AT..).and_then(|rest| rest.get(..length));
    let id = id.and_then(|id| std::str::from_utf8(id).ok());
    let proof = proof(block);
    match id {
        Some(id) if encode(id, proof.as_ref()).is_some_and(|mark| mark == block) => {
            Mark::Of(id.to_owned(), proof)
        }
        _ => Mark::Unreadable,
    }
}

/// Reads the mark of a device.
///
/// # Errors
///
/// Returns an error if the mark's block cannot be read.
pub(super) fn read_mark(disk: &impl Disk) -> Result<Mark, Failure> {
    if disk.bytes() < MARK_AT + MARK_BYTES as u64 {
        return Ok(Mark::Absent);
    }
    let block = Area::read(disk, MARK_AT..MARK_AT + MARK_BYTES as u64)?;
    Ok(decode(block.get(MARK_AT, MARK_BYTES).unwrap_or_default()))
}

/// Returns the record in the backing file of a device. For a disk, which has no backing file,
/// returns [`Witness::Formatting`] if the disk has a mark with a secret of the volume, and
/// otherwise [`Witness::NoFile`].
///
/// # Errors
///
/// Returns an error if the record or the mark's block cannot be read.
pub(super) fn witness(disk: &impl Disk, volume: &str) -> Result<Witness, Failure> {
    let witness = disk.witness()?;
    if witness != Witness::NoFile || disk.secrets().is_empty() {
        return Ok(witness);
    }
    let attempt = read_mark(disk)?.attempt(volume, disk.secrets());
    Ok(attempt.map_or(Witness::NoFile, Witness::Formatting))
}

/// Returns the interrupted format of the device, if the device's record shows an interrupted
/// format.
///
/// # Errors
///
/// Returns an error if the record cannot be read.
pub(in crate::filesystem) fn attempt<K: Kernel>(
    kernel: &K,
    device: &DeviceUnderTest<'_, K::Fd>,
) -> Result<Option<Attempt>, Failure> {
    Ok(
        match witness(&KernelDisk { kernel, device }, device.volume)? {
            Witness::Formatting(attempt) => Some(attempt),
            Witness::New | Witness::UseBegun | Witness::Used | Witness::NoFile => None,
        },
    )
}

/// Whether the block is a valid mark of the volume.
pub(in crate::filesystem) fn is_of(volume: &str, block: &[u8]) -> bool {
    matches!(decode(block), Mark::Of(id, _) if id == volume)
}

/// Whether the block is a valid mark of the volume with any secret.
pub(in crate::filesystem) fn has_secret_of(volume: &str, block: &[u8]) -> bool {
    matches!(decode(block), Mark::Of(id, Some(_)) if id == volume)
}

fn proof(block: &[u8]) -> Option<Proof> {
    if field::le32(block, 16) != VERSION_SECRET {
        return None;
    }
    let secret: [u8; 32] = block.get(SECRET_AT..UUID_AT)?.try_into().ok()?;
    let uuid = block.get(UUID_AT..UUID_AT + 16)?.try_into().ok()?;
    Some(Proof {
        secret: secret.into(),
        uuid,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn proof(secret: u8) -> Proof {
        Proof {
            secret: [secret; 32].into(),
            uuid: [9; 16],
        }
    }

    #[test]
    fn only_the_same_volume_may_format_again() {
        let mark = decode(&encode("vol-1", None).unwrap());
        let permit = mark.interrupted("vol-1", 7, true).unwrap();
        assert!(permit.is_about("vol-1", 7));
        assert!(!permit.is_about("vol-1", 8) && !permit.is_about("vol-2", 7));
        assert!(mark.interrupted("vol-10", 7, true).is_none());
        assert!(mark.foreign_name("vol-10").unwrap().contains("\"vol-1\""));
        assert!(mark.foreign_name("vol-1").unwrap().contains("witness"));
    }

    /// The layout must not change: after an upgrade, a newer agent must find the mark of an older
    /// agent.
    #[test]
    fn the_mark_has_these_bytes() {
        let mark = encode("vol-1", None).unwrap();
        let start = b"BELAY-MKFS-MARK\n\x01\0\0\0\x05\0\0\0vol-1\0";
        assert!(mark.starts_with(start));
        assert_eq!(field::le32(&mark, CHECKSUM_AT), 0xf785_6d74);
    }

    #[test]
    fn a_secret_proves_who_wrote_the_mark_and_nothing_else_does() {
        let marks = [None, Some(proof(1)), Some(proof(2))]
            .map(|proof| decode(&encode("vol-1", proof.as_ref()).unwrap()));
        let secrets = [[1; 32].into(), [3; 32].into()];
        let attempts = marks.each_ref().map(|mark| mark.attempt("vol-1", &secrets));
        assert_eq!(attempts, [None, Some(Attempt::of([9; 16])), None]);
        assert!(
            marks
                .iter()
                .all(|mark| mark.attempt("vol-2", &secrets).is_none())
        );
        assert!(
            marks
                .iter()
                .all(|mark| mark.attempt("vol-1", &[]).is_none())
        );
        let origin = |mark: &Mark| mark.interrupted("vol-1", 7, false).unwrap().origin();
        let origins = marks.each_ref().map(origin);
        assert_eq!(
            origins,
            [Origin::Anyone, Origin::OtherKey, Origin::OtherKey]
        );
    }

    #[test]
    fn without_its_secret_a_mark_counts_for_the_filesystem_of_its_uuid_alone() {
        let [bare, marked] =
            [None, Some(proof(1))].map(|proof| decode(&encode("vol-1", proof.as_ref()).unwrap()));
        let origin = |mark: &Mark, volume, uuid| {
            let found = mark.of_attempt(volume, 7, uuid);
            found.map(|interrupted| interrupted.origin())
        };
        assert_eq!(origin(&marked, "vol-1", [9; 16]), Some(Origin::OtherKey));
        assert_eq!(origin(&marked, "vol-1", [8; 16]), None);
        assert_eq!(origin(&marked, "vol-2", [9; 16]), None);
        assert_eq!(origin(&bare, "vol-1", [9; 16]), None);
    }

    #[test]
    fn a_block_is_the_mark_of_one_volume_or_of_none() {
        let marked = encode("vol-1", Some(&proof(1))).unwrap();
        let bare = encode("vol-1", None).unwrap();
        assert!(is_of("vol-1", &marked) && has_secret_of("vol-1", &marked));
        assert!(is_of("vol-1", &bare) && !has_secret_of("vol-1", &bare));
        assert!(!is_of("vol-2", &marked) && !has_secret_of("vol-2", &marked));
        let data = [0xa5; MARK_BYTES];
        assert!(!is_of("vol-1", &data) && !has_secret_of("vol-1", &data));
    }

    #[test]
    fn everything_is_in_the_first_sector() {
        let mark = encode(&"v".repeat(ID_BYTES_MAX), Some(&proof(255))).unwrap();
        assert!(mark[512..].iter().all(|byte| *byte == 0));
        assert_eq!(mark[ID_AT + ID_BYTES_MAX..SECRET_AT], [0; 8]);
    }

    #[test]
    fn an_id_that_cannot_be_has_no_mark() {
        assert_eq!(encode("", None), None);
        assert_eq!(encode(&"v".repeat(ID_BYTES_MAX + 1), None), None);
    }

    proptest! {
        #[test]
        fn a_mark_names_its_volume(id in "[ -~]{1,128}", secret in proptest::option::of(0..9_u8)) {
            let proof = secret.map(proof);
            let mark = encode(&id, proof.as_ref()).unwrap();
            prop_assert_eq!(decode(&mark), Mark::Of(id, proof));
        }

        #[test]
        fn one_changed_bit_is_no_valid_mark(bit in 0..MARK_BYTES * 8, has_secret: bool) {
            let proof = has_secret.then(|| proof(1));
            let mut block = encode("vol-0123456789abcdef", proof.as_ref()).unwrap();
            block[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!matches!(decode(&block), Mark::Of(..)));
        }

        #[test]
        fn no_block_makes_it_panic(mut block in proptest::collection::vec(any::<u8>(), 0..600)) {
            decode(&block);
            let length = block.len().min(16);
            block[..length].copy_from_slice(&MAGIC[..length]);
            prop_assert!(!matches!(decode(&block), Mark::Of(..)));
        }
    }
}
