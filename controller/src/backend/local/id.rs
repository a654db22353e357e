//! The volume and snapshot IDs of `local`: `vol-` or `snap-`, followed by 32 lowercase hexadecimal
//! digits. The digits are random, so that no ID is reused, even if the state was lost.

use belay_server::call::Failure;

/// The prefix of volume IDs.
pub(in crate::backend) const VOLUME: &str = "vol-";
/// The prefix of snapshot IDs.
pub(in crate::backend) const SNAPSHOT: &str = "snap-";
const RANDOM_BYTES: usize = 16;

/// Returns a new ID with this prefix.
///
/// # Errors
/// Returns `Bug` if the kernel provides no random bytes.
pub(in crate::backend) fn fresh(prefix: &str) -> Result<String, Failure> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::bug(format!("getrandom: {error}; repeat the call")))?;
    Ok(random.iter().fold(String::from(prefix), |mut id, byte| {
        id.push_str(&format!("{byte:02x}"));
        id
    }))
}

/// Whether the text has the form of an ID with this prefix.
pub(in crate::backend) fn is_ours(prefix: &str, text: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|digits| {
        digits.len() == 2 * RANDOM_BYTES
            && digits
                .bytes()
                .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_id_is_ours_and_never_the_same() {
        for kind in [VOLUME, SNAPSHOT] {
            let (one, other) = (fresh(kind).unwrap(), fresh(kind).unwrap());
            assert!(is_ours(kind, &one), "{one}");
            assert_ne!(one, other);
        }
    }

    #[test]
    fn anything_else_is_not_ours() {
        let digits = "0123456789abcdef0123456789abcdef";
        assert!(is_ours(VOLUME, &format!("vol-{digits}")));
        assert!(!is_ours(VOLUME, &format!("snap-{digits}")));
        for text in [
            "",
            "vol-",
            "vol-0",
            "../../etc/passwd",
            digits,
            &format!("VOL-{digits}"),
            &format!("vol-{}", digits.to_uppercase()),
            &format!("vol-{digits}0"),
            &format!("vol-{}/", &digits[1..]),
        ] {
            assert!(!is_ours(VOLUME, text), "{text:?}");
        }
    }
}
