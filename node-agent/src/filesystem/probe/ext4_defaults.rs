//! What the superblock of an ext4 asks of its mount (Linux: fs/ext4/ext4.h). The options of
//! `s_default_mount_opts` need no check: a class may have each of them as a flag.

use std::ops::Range;

use belay_contract::mount_flags;

use super::field::le16;

/// `s_errors`, and its value `EXT4_ERRORS_PANIC`.
const ERRORS_AT: usize = 0x3c;
const ERRORS_PANIC: u16 = 3;
/// `s_mount_opts`: mount options that the kernel applies before those of the mount. The last byte
/// is a zero.
const MOUNT_OPTS: Range<usize> = 0x200..0x240;

/// Whether it asks for `errors=panic`, so that an error halts the node unless the mount has another
/// `errors`.
pub(super) fn panics(block: &[u8]) -> bool {
    le16(block, ERRORS_AT) == ERRORS_PANIC
}

/// Checks the mount options that it contains, which no flag of a mount removes.
///
/// # Errors
/// Which option is refused, and why.
pub(super) fn check_options(block: &[u8]) -> Result<(), String> {
    let bytes = block.get(MOUNT_OPTS).unwrap_or_default();
    // Kernels have read past options without an end (CVE-2025-40198), and those that were repaired
    // first then stopped with an oops.
    let end = bytes.iter().position(|byte| *byte == 0);
    let end = end.ok_or_else(|| "they have no end".to_owned())?;
    let checked = mount_flags::check_stored(&String::from_utf8_lossy(&bytes[..end]));
    // After the semicolon is what to do about a flag of a class.
    checked.map_err(|why| why.split(';').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 is what the kernel takes for `remount-ro`.
    #[test]
    fn only_one_behaviour_after_errors_halts_the_node() {
        for errors in 0..5 {
            let mut block = [0; 1024];
            block[ERRORS_AT] = errors;
            assert_eq!(panics(&block), errors == 3, "{errors}");
        }
    }

    #[test]
    fn mount_options_of_the_superblock_follow_the_rules_for_flags() {
        let checked = |options: &[u8]| {
            let mut block = [0; 1024];
            block[0x200..0x200 + options.len()].copy_from_slice(options);
            check_options(&block)
        };
        let no_longer = b"discard\0noload";
        for harmless in [&b""[..], b"discard,commit=30", b"nobarrier", no_longer] {
            assert_eq!(checked(harmless), Ok(()), "{harmless:?}");
        }
        for (options, part) in [
            (&b"noload"[..], "noload"),
            (b"discard,errors=panic", "halt the node"),
            (b"journal_dev=0x801", "journal_dev"),
            (&[b'n'; 64], "no end"),
            (b"\xff", "no name"),
        ] {
            let why = checked(options).unwrap_err();
            assert!(why.contains(part) && !why.contains(';'), "{why}");
        }
    }
}
