//! Reads the binary part of a LUKS header (LUKS2 On-Disk Format Specification 1.1, section 2.1):
//! only whether there is a header, and the label of a format that the agent has not finished. The
//! JSON area is only read to explain why a header was not opened.
//!
//! luksFormat writes the label with the first header, and the agent removes it before the volume is
//! first mounted or bound. A LUKS2 header has two copies, and cryptsetup changes the first copy
//! before the second. So a format counts as unfinished only if both copies have the label, and as
//! finished only if neither has it. In between, nothing inside is formatted, and the label is
//! removed before the volume is used: cryptsetup repairs a damaged copy from the other one, which
//! would bring a label that is left in one copy back to both.

use belay_contract::encryption::UNFINISHED;

use crate::kernel::{AlignedBuf, Kernel, Result};

/// The magic numbers of the first and the second copy.
const FIRST: &[u8] = b"LUKS\xba\xbe";
const SECOND: &[u8] = b"SKUL\xba\xbe";
const VERSION: u16 = 2;
/// The size in bytes that is read of each copy.
const BLOCK_BYTES: usize = 4096;
/// The possible offsets of the second copy in bytes: the sizes that the first copy may have.
const SECOND_AT: [u64; 9] = [
    0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000,
];
/// Maximum size in bytes of a copy whose JSON area is read: parsed, the area may need 70 times its
/// size of memory. cryptsetup creates copies of 16 KiB.
const READ_MAX: u64 = 0x1_0000;
/// The offsets of fields in a copy.
const VERSION_AT: usize = 6;
const SIZE_AT: usize = 8;
const LABEL_AT: usize = 24;
const SUBSYSTEM_AT: usize = 208;
/// The size in bytes of the label and of the subsystem.
const TEXT_BYTES: usize = 48;

/// A LUKS header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The label, if both copies of the header have it, and the subsystem [`UNFINISHED`].
    unfinished: Option<String>,
    /// Whether no copy of the header has the subsystem [`UNFINISHED`].
    is_finished: bool,
    /// Whether a copy of a LUKS2 header does not begin as a copy does.
    lacks_copy: bool,
    /// Whether this is a LUKS2 header.
    is_second_version: bool,
}

impl Header {
    /// Reads the header of a device; `None` if neither copy exists.
    ///
    /// # Errors
    /// Returns an error if the device cannot be read.
    pub(crate) fn read<K: Kernel>(kernel: &K, device: &K::Fd) -> Result<Option<Self>> {
        let block = |at: u64| -> Result<Vec<u8>> {
            let mut buffer = AlignedBuf::new(BLOCK_BYTES);
            let length = kernel.pread(device, &mut buffer, at)?;
            Ok(buffer.get(..length).unwrap_or_default().to_vec())
        };
        let first = block(0)?;
        // cryptsetup opens a device by its second copy as well.
        let search = || -> Result<Option<Vec<u8>>> {
            for at in SECOND_AT {
                let second = block(at)?;
                if is_second(&second) {
                    return Ok(Some(second));
                }
            }
            Ok(None)
        };
        if !first.starts_with(FIRST) {
            return Ok(search()?.map(|second| Self::of(&[], &second)));
        }
        if version(&first) != VERSION {
            return Ok(Some(Self::of(&first, &[])));
        }
        let second = match size(&first) {
            Some(at) => block(at)?,
            None => search()?.unwrap_or_default(),
        };
        Ok(Some(Self::of(&first, &second)))
    }

    fn of(first: &[u8], second: &[u8]) -> Self {
        let second = Some(second).filter(|block| is_second(block));
        let lacks_copy = first.is_empty() || version(first) == VERSION && second.is_none();
        let labels = [Some(first), second].map(|block| block.and_then(unfinished));
        Header {
            lacks_copy,
            is_second_version: second.is_some() || version(first) == VERSION,
            is_finished: labels == [None, None],
            unfinished: match labels {
                [Some(one), Some(other)] if one == other => Some(one),
                _ => None,
            },
        }
    }

    /// Returns the label of a format that was not finished; `None` if it was, or if another program
    /// has created the header.
    pub(crate) fn unfinished(&self) -> Option<&str> {
        self.unfinished.as_deref()
    }

    /// Whether the label of an unfinished format was removed from both copies.
    pub(super) fn is_finished(&self) -> bool {
        self.is_finished
    }

    pub(super) fn is_second_version(&self) -> bool {
        self.is_second_version
    }

    /// Whether a copy of a LUKS2 header is destroyed. The checksums are not verified.
    pub(super) fn lacks_copy(&self) -> bool {
        self.lacks_copy
    }
}

/// The key slots of a LUKS2 header (section 3.2).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) count: usize,
    /// The memory in bytes that the most expensive key derivation needs; 0 if it is not given.
    pub(super) memory: u64,
}

/// Reads the key slots of a LUKS2 header; `None` if the first copy of the header is damaged, or
/// larger than [`READ_MAX`].
///
/// # Errors
/// Returns an error if the device cannot be read.
pub(super) fn slots<K: Kernel>(kernel: &K, device: &K::Fd) -> Result<Option<Slots>> {
    let mut buffer = AlignedBuf::new(BLOCK_BYTES);
    let length = kernel.pread(device, &mut buffer, 0)?;
    let first = buffer.get(..length).unwrap_or_default();
    let bytes = size(first).filter(|bytes| first.starts_with(FIRST) && *bytes <= READ_MAX);
    let Some(bytes) = bytes else {
        return Ok(None);
    };
    let mut json = AlignedBuf::new(usize::try_from(bytes).unwrap_or(0) - BLOCK_BYTES);
    let length = kernel.pread(device, &mut json, BLOCK_BYTES as u64)?;
    Ok(slots_in(json.get(..length).unwrap_or_default()))
}

/// Returns the size of a copy in bytes, if it is a size that the format allows.
fn size(block: &[u8]) -> Option<u64> {
    let size = block.get(SIZE_AT..SIZE_AT + 8)?;
    let size = u64::from_be_bytes(size.try_into().ok()?);
    SECOND_AT.contains(&size).then_some(size)
}

/// Reads a JSON area, which ends with null characters. The area has the memory in KiB.
fn slots_in(area: &[u8]) -> Option<Slots> {
    let end = area.iter().position(|byte| *byte == 0);
    let json = area.get(..end.unwrap_or(area.len()))?;
    let json: serde_json::Value = serde_json::from_slice(json).ok()?;
    let slots = json.get("keyslots")?.as_object()?;
    let costs = slots
        .values()
        .filter_map(|slot| slot.pointer("/kdf/memory")?.as_u64());
    Some(Slots {
        count: slots.len(),
        memory: costs.max().unwrap_or(0).saturating_mul(1024),
    })
}

/// Returns the label of a header that is created for this attempt to format.
pub(crate) fn label(attempt: &str) -> String {
    format!("belay-{attempt}")
}

fn is_second(block: &[u8]) -> bool {
    block.starts_with(SECOND) && version(block) == VERSION
}

fn version(block: &[u8]) -> u16 {
    let version = block.get(VERSION_AT..VERSION_AT + 2);
    version
        .and_then(|it| it.try_into().ok())
        .map_or(0, u16::from_be_bytes)
}

/// Returns the label of a LUKS2 copy whose subsystem is [`UNFINISHED`].
fn unfinished(block: &[u8]) -> Option<String> {
    let text = |at: usize| {
        let field = block.get(at..at + TEXT_BYTES)?;
        let end = field.iter().position(|byte| *byte == 0)?;
        std::str::from_utf8(&field[..end]).ok()
    };
    let is_unfinished = version(block) == VERSION && text(SUBSYSTEM_AT)? == UNFINISHED;
    is_unfinished.then_some(text(LABEL_AT)?.to_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::kernel::Open;
    use crate::kernel::fake::Machine;

    fn copy(magic: &[u8], label: &str, subsystem: &str) -> Vec<u8> {
        let mut block = vec![0; BLOCK_BYTES];
        block[..6].copy_from_slice(magic);
        block[VERSION_AT + 1] = 2;
        block[SIZE_AT..SIZE_AT + 8].copy_from_slice(&0x4000_u64.to_be_bytes());
        block[LABEL_AT..LABEL_AT + label.len()].copy_from_slice(label.as_bytes());
        block[SUBSYSTEM_AT..SUBSYSTEM_AT + subsystem.len()].copy_from_slice(subsystem.as_bytes());
        block
    }

    /// Returns the first and the second copy of a header, with or without the label.
    pub(in super::super) fn labelled([first, second]: [bool; 2]) -> [(u64, Vec<u8>); 2] {
        let of = |magic, is_labelled| match is_labelled {
            true => copy(magic, &label("0123"), UNFINISHED),
            false => copy(magic, "", ""),
        };
        [(0, of(FIRST, first)), (0x4000, of(SECOND, second))]
    }

    /// Returns a machine with a file that has these blocks.
    pub(in super::super) fn machine_with(blocks: &[(u64, Vec<u8>)]) -> Machine {
        let machine = Machine::new();
        let path = Path::new("/file");
        machine.make_file(path, 32 << 20);
        let kernel = machine.process();
        let file = kernel.open(path, Open::FileWrite).unwrap();
        for (at, block) in blocks {
            kernel.pwrite(&file, block, *at).unwrap();
        }
        machine
    }

    /// Reads the header of a file with these blocks.
    fn read(blocks: &[(u64, Vec<u8>)]) -> Option<Header> {
        let kernel = machine_with(blocks).process();
        let file = kernel.open(Path::new("/file"), Open::FileRead).unwrap();
        Header::read(&kernel, &file).unwrap()
    }

    #[test]
    fn a_format_is_unfinished_only_if_both_copies_say_so() {
        let label = label("0123");
        let first = |label: &str, subsystem: &str| (0, copy(FIRST, label, subsystem));
        let second = |label: &str, subsystem: &str| (0x4000, copy(SECOND, label, subsystem));
        // The size of the first copy, which is the offset of the second one, is damaged.
        let damaged = |(at, mut copy): (u64, Vec<u8>)| {
            copy[SIZE_AT] = 0xff;
            (at, copy)
        };
        let both = read(&[first(&label, UNFINISHED), second(&label, UNFINISHED)]).unwrap();
        assert_eq!(both.unfinished(), Some("belay-0123"));
        assert!(!both.is_finished());
        for (blocks, is_finished) in [
            (vec![first("", ""), second("", "")], true),
            (vec![first(&label, "other"), second(&label, "other")], true),
            // A power loss between the changes of the two copies.
            (vec![first("", ""), second(&label, UNFINISHED)], false),
            (vec![first(&label, UNFINISHED)], false),
            (
                vec![first(&label, UNFINISHED), second("belay-9", UNFINISHED)],
                false,
            ),
            // The first copy is damaged.
            (vec![second(&label, UNFINISHED)], false),
            (
                vec![damaged(first("", "")), second(&label, UNFINISHED)],
                false,
            ),
        ] {
            let header = read(&blocks).unwrap();
            assert_eq!(header.unfinished(), None, "{header:?}");
            assert_eq!(header.is_finished(), is_finished, "{header:?}");
            assert_eq!(header.lacks_copy(), blocks.len() < 2, "{header:?}");
            assert!(header.is_second_version());
        }
    }

    #[test]
    fn any_luks_header_is_a_header_and_other_content_is_none() {
        let mut old = copy(FIRST, "", "");
        old[VERSION_AT + 1] = 1;
        let old = read(&[(0, old)]).unwrap();
        assert!(old.is_finished() && !old.lacks_copy() && !old.is_second_version());
        assert!(read(&[(0x40_0000, copy(SECOND, "", ""))]).is_some());
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[(0x5000, copy(SECOND, "", ""))]), None);
        assert_eq!(read(&[(0, copy(b"LUKS\xba\xbf", "", ""))]), None);
    }

    #[test]
    fn the_key_slots_of_a_header_are_known() {
        let json = |slots: &str| format!("{{\"keyslots\":{{{slots}}}}}\0\0");
        let argon2id = r#""0":{"kdf":{"type":"argon2id","memory":32768}}"#;
        let pbkdf2 = r#""1":{"kdf":{"type":"pbkdf2","iterations":1000}}"#;
        let huge = r#""2":{"kdf":{"memory":18446744073709551615}}"#;
        for (area, known) in [
            (json(argon2id), Some((1, 32 << 20))),
            (json(&format!("{argon2id},{pbkdf2}")), Some((2, 32 << 20))),
            (json(&format!("{argon2id},{huge}")), Some((2, u64::MAX))),
            (json(pbkdf2), Some((1, 0))),
            (json(""), Some((0, 0))),
            (r#"{"keyslots":[1]}"#.to_owned(), None),
            ("{".to_owned(), None),
        ] {
            let known = known.map(|(count, memory)| Slots { count, memory });
            let json = (BLOCK_BYTES as u64, area.into_bytes());
            let machine = machine_with(&[(0, copy(FIRST, "", "")), json]);
            let kernel = machine.process();
            let file = kernel.open(Path::new("/file"), Open::FileRead).unwrap();
            assert_eq!(slots(&kernel, &file).unwrap(), known);
        }
    }

    proptest! {
        #[test]
        fn no_json_area_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(slots_in(&bytes).is_none());
        }

        #[test]
        fn no_header_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut first = FIRST.to_vec();
            first.extend(&bytes);
            let header = Header::of(&first, &bytes);
            prop_assert!(header.unfinished().is_none());
        }
    }
}
