//! CRC-32C, for superblocks. A table of 256 entries is fast enough for a few hundred bytes.

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

/// Continues `crc` over `bytes`, as the kernel's function of this name does: neither the start
/// value nor the result is inverted.
pub(super) fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, byte| {
        let [low, ..] = crc.to_le_bytes();
        (crc >> 8) ^ TABLE[usize::from(low ^ byte)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value of the catalogue of CRCs, and the vectors of RFC 3720, appendix B.4.
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
