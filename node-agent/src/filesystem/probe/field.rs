//! Numbers in superblocks. A field past the end of the block reads as 0, which is invalid in every
//! field that is read here; so no function can fail or panic on a short or hostile block.

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
}
