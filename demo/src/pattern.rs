//! Pseudo-random data, the same for the same seed, that no disk holds by chance.

/// Fills `buffer` with the sequence of `seed` (xorshift64*, Vigna 2016).
pub(crate) fn fill(buffer: &mut [u8], seed: u64) {
    // Zero is the one state that the generator never leaves.
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for word in buffer.chunks_mut(8) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let bytes = state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes();
        word.copy_from_slice(&bytes[..word.len()]);
    }
}

/// Offset of the first byte that differs from the sequence of `seed`.
pub(crate) fn first_difference(buffer: &[u8], seed: u64) -> Option<usize> {
    let mut expected = vec![0; buffer.len()];
    fill(&mut expected, seed);
    buffer
        .iter()
        .zip(&expected)
        .position(|(found, written)| found != written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_data_and_another_seed_other_data() {
        let mut buffer = [0; 4099];
        for seed in [0, 1, u64::MAX] {
            fill(&mut buffer, seed);
            assert_eq!(first_difference(&buffer, seed), None);
            assert!(first_difference(&buffer, seed.wrapping_add(2)).is_some_and(|at| at < 8));
        }
    }

    #[test]
    fn one_wrong_byte_is_found_where_it_is() {
        let mut buffer = [0; 4099];
        fill(&mut buffer, 7);
        for at in [0, 4095, 4098] {
            buffer[at] ^= 1;
            assert_eq!(first_difference(&buffer, 7), Some(at));
            buffer[at] ^= 1;
        }
    }
}
