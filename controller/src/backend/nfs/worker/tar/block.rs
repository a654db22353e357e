//! The header of a file: one block with fields of fixed length.

use super::BLOCK;

/// The position and the length of a field in the header, in bytes.
type Field = (usize, usize);

const NAME: Field = (0, 100);
const MODE: Field = (100, 8);
const USER: Field = (108, 8);
const GROUP: Field = (116, 8);
const SIZE: Field = (124, 12);
const MODIFIED: Field = (136, 12);
const CHECKSUM: Field = (148, 8);
const TYPE: usize = 156;
const TARGET: Field = (157, 100);
const MAGIC: Field = (257, 8);
const MAJOR: Field = (329, 8);
const MINOR: Field = (337, 8);
const PREFIX: Field = (345, 155);

/// The magic number `ustar`, and the version of the format.
const USTAR: &[u8; 8] = b"ustar\x0000";
/// Maximum length of a name in a header, in bytes.
pub(super) const NAME_BYTES_MAX: usize = NAME.1;

/// The fields of a header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) flag: u8,
    pub(super) target: Vec<u8>,
    pub(super) mode: u64,
    pub(super) user: u64,
    pub(super) group: u64,
    pub(super) size: u64,
    pub(super) modified: i64,
    pub(super) device: (u64, u64),
}

/// Whether a number fits into a field of that length.
const fn fits(value: u64, length: usize) -> bool {
    value >> (3 * (length - 1)) == 0
}

/// Whether a number fits into the field of an owner.
pub(super) fn fits_owner(value: u32) -> bool {
    fits(u64::from(value), USER.1)
}

/// Whether a number fits into the field of a size.
pub(super) fn fits_size(value: u64) -> bool {
    fits(value, SIZE.1)
}

/// Whether a number fits into the field of a time.
pub(super) fn fits_time(value: i64) -> bool {
    u64::try_from(value).is_ok_and(|value| fits(value, MODIFIED.1))
}

impl Header {
    /// Returns the header as a block. A number that does not fit is written as 0, and a long name
    /// is truncated; the pax records contain the full values.
    pub(super) fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        text(&mut block, NAME, &self.name);
        number(&mut block, MODE, self.mode);
        number(&mut block, USER, self.user);
        number(&mut block, GROUP, self.group);
        number(&mut block, SIZE, self.size);
        number(
            &mut block,
            MODIFIED,
            u64::try_from(self.modified).unwrap_or_default(),
        );
        block[TYPE] = self.flag;
        text(&mut block, TARGET, &self.target);
        text(&mut block, MAGIC, USTAR);
        number(&mut block, MAJOR, self.device.0);
        number(&mut block, MINOR, self.device.1);
        let sum = format!("{:06o}\0 ", checksum(&block));
        text(&mut block, CHECKSUM, sum.as_bytes());
        block
    }

    /// Reads a block. Returns `None` if the checksum of the block is wrong, or if a field does not
    /// contain a number.
    pub(super) fn read(block: &[u8; BLOCK]) -> Option<Self> {
        let stored = unsigned(field(block, CHECKSUM))?;
        if stored != checksum(block) && stored != signed_checksum(block) {
            return None;
        }
        let is_ustar = field(block, MAGIC) == USTAR;
        let prefix = match is_ustar {
            true => ended(field(block, PREFIX)),
            false => b"",
        };
        let own = ended(field(block, NAME));
        let name = match prefix {
            b"" => own.to_vec(),
            prefix => [prefix, b"/", own].concat(),
        };
        Some(Self {
            name,
            flag: block[TYPE],
            target: ended(field(block, TARGET)).to_vec(),
            mode: unsigned(field(block, MODE))?,
            user: unsigned(field(block, USER))?,
            group: unsigned(field(block, GROUP))?,
            size: unsigned(field(block, SIZE))?,
            modified: signed(field(block, MODIFIED))?,
            // Only devices have a major and a minor number, and older formats lack these fields.
            device: (
                unsigned(field(block, MAJOR)).unwrap_or_default(),
                unsigned(field(block, MINOR)).unwrap_or_default(),
            ),
        })
    }
}

fn field(block: &[u8; BLOCK], (begin, length): Field) -> &[u8] {
    &block[begin..begin + length]
}

fn text(block: &mut [u8; BLOCK], (begin, length): Field, value: &[u8]) {
    let length = length.min(value.len());
    block[begin..begin + length].copy_from_slice(&value[..length]);
}

fn number(block: &mut [u8; BLOCK], field: Field, value: u64) {
    let value = if fits(value, field.1) { value } else { 0 };
    let digits = field.1 - 1;
    text(block, field, format!("{value:0digits$o}").as_bytes());
}

/// Returns the name in a field, which ends at a zero byte or fills the field.
fn ended(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// Returns the checksum of a block. The bytes of the checksum field are treated as spaces.
fn checksum(block: &[u8; BLOCK]) -> u64 {
    sum(block).map(u64::from).sum()
}

/// Returns the checksum of signed bytes, as some old programs compute it.
fn signed_checksum(block: &[u8; BLOCK]) -> u64 {
    let sum: i64 = sum(block).map(|byte| i64::from(byte.cast_signed())).sum();
    u64::try_from(sum).unwrap_or(u64::MAX)
}

fn sum(block: &[u8; BLOCK]) -> impl Iterator<Item = u8> + '_ {
    let own = CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1;
    let bytes = block.iter().enumerate();
    bytes.map(move |(at, byte)| if own.contains(&at) { b' ' } else { *byte })
}

fn unsigned(field: &[u8]) -> Option<u64> {
    signed(field).and_then(|value| u64::try_from(value).ok())
}

/// Reads an octal number, or a binary number of GNU tar's format. An empty field is 0.
fn signed(field: &[u8]) -> Option<i64> {
    let first = *field.first()?;
    if first & 0x80 != 0 {
        return binary(field, first == 0xff);
    }
    let is_digit = |byte: &u8| (b'0'..=b'7').contains(byte);
    let begin = field.iter().position(|byte| *byte != b' ');
    let digits = &field[begin.unwrap_or(field.len())..];
    let end = digits.iter().position(|byte| !is_digit(byte));
    let (digits, rest) = digits.split_at(end.unwrap_or(digits.len()));
    if rest.iter().any(|byte| ![0, b' '].contains(byte)) {
        return None;
    }
    digits.iter().try_fold(0, |value: i64, digit| {
        value.checked_mul(8)?.checked_add(i64::from(digit - b'0'))
    })
}

fn binary(field: &[u8], is_negative: bool) -> Option<i64> {
    let first = match is_negative {
        true => -1,
        false => i64::from(field[0] & 0x7f),
    };
    field[1..].iter().try_fold(first, |value: i64, byte| {
        value.checked_mul(256)?.checked_add(i64::from(*byte))
    })
}
