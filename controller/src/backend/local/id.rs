//! The ids of `local`: `vol-` and 32 lowercase hex digits. Random, so that an id is never given out
//! twice, also not after the state was lost.

use belay_server::failure::Failure;

const PREFIX: &str = "vol-";
const RANDOM_BYTES: usize = 16;

/// A new id.
///
/// # Errors
/// `Bug`, if the kernel gives no random bytes.
pub(super) fn fresh() -> Result<String, Failure> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::bug(format!("getrandom: {error}; repeat the call")))?;
    Ok(random.iter().fold(String::from(PREFIX), |mut id, byte| {
        id.push_str(&format!("{byte:02x}"));
        id
    }))
}

/// Whether that could be an id of ours.
pub(super) fn is_ours(text: &str) -> bool {
    text.strip_prefix(PREFIX).is_some_and(|digits| {
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
        let (one, other) = (fresh().unwrap(), fresh().unwrap());
        assert!(is_ours(&one), "{one}");
        assert_ne!(one, other);
    }

    #[test]
    fn anything_else_is_not_ours() {
        let digits = "0123456789abcdef0123456789abcdef";
        assert!(is_ours(&format!("vol-{digits}")));
        for text in [
            "",
            "vol-",
            "../../etc/passwd",
            digits,
            &format!("VOL-{digits}"),
            &format!("vol-{}", digits.to_uppercase()),
            &format!("vol-{digits}0"),
            &format!("vol-{}/", &digits[1..]),
        ] {
            assert!(!is_ours(text), "{text:?}");
        }
    }
}
