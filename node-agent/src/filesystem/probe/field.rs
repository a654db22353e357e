//! Reads numbers from superblocks, and computes CRC-32C checksums. A field past the end of a block
//! reads as 0, so no function here can fail or panic on a short or hostile block. Callers check the
//! length of the block, or reject 0.

fn array<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    at.checked_add(N)
        .and_then(|end| block.get(at..end))
        .and_then(|field| field.try_into().ok())
        .unwrap_or([0; N])
}

pub(super) fn le16(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(block, at))
}

pub(super) fn le32(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(block, at))
}

pub(super) fn le64(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(block, at))
}

pub(super) fn be16(block: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(block, at))
}

pub(super) fn be32(block: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(block, at))
}

pub(super) fn be64(block: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(block, at))
}

/// The Castagnoli polynomial with its bits reversed (RFC 3720, appendix B.4).
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = table();

#[expect(
    clippy::cast_possible_truncation,
    reason = "an index into a table of 256 entries"
)]
const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index = 0;
    while index < table.len() {
        let mut crc = index as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ POLYNOMIAL
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

/// Computes CRC-32C with a lookup table, which is fast enough for a superblock.
///
/// Continues the checksum `crc` over `bytes`. Like the kernel's `crc32c()`, inverts neither the
/// start value nor the result.
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        (crc >> 8) ^ TABLE[usize::from(low ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn past_the_end_is_zero() {
        let block = [0xff; 5];
        assert_eq!(le32(&block, 1), u32::MAX);
        assert_eq!(le32(&block, 2), 0);
        assert_eq!(be64(&block, 0), 0);
        assert_eq!(le16(&block, usize::MAX), 0);
    }

    /// The check value from the catalogue of CRCs, and the test vectors of RFC 3720, appendix B.4.
    #[test]
    fn known_vectors_come_out() {
        let vectors: [(&[u8], u32); 4] = [
            (b"123456789", 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (b"", 0),
        ];
        for (bytes, expected) in vectors {
            assert_eq!(!crc32c(!0, bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn in_pieces_it_is_the_same() {
        let bytes = b"a superblock in two halves";
        assert_eq!(
            crc32c(crc32c(!0, &bytes[..7]), &bytes[7..]),
            crc32c(!0, bytes)
        );
    }
}
