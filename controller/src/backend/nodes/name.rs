//! The names and IDs of objects. Makes no calls.

use belay_server::call::Failure;
use belay_server::request::Name;
use ring::digest::{SHA256, digest};

/// The prefix of volume IDs.
pub(super) const VOLUME: &str = "vol-";
/// The prefix of snapshot IDs.
pub(super) const SNAPSHOT: &str = "snap-";
const RANDOM_BYTES: usize = 16;

/// The prefix of an object's name that is a hash of the name in the request.
const HASHED: &str = "n-";

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a new random ID with this prefix.
///
/// # Errors
/// Returns `Bug` if the kernel provides no random bytes.
pub(super) fn fresh(prefix: &str) -> Result<String, Failure> {
    let mut random = [0; RANDOM_BYTES];
    getrandom::fill(&mut random)
        .map_err(|error| Failure::bug(format!("getrandom: {error}; repeat the call")))?;
    Ok(format!("{prefix}{}", hexadecimal(&random)))
}

/// Whether the text has the form of an ID with this prefix.
pub(super) fn is_id(prefix: &str, text: &str) -> bool {
    text.strip_prefix(prefix).is_some_and(|digits| {
        digits.len() == 2 * RANDOM_BYTES
            && digits
                .bytes()
                .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Returns the name of the object for a name in a request: the same name if an object can have it,
/// and else a hash.
pub(super) fn of(name: &Name) -> String {
    let name = name.as_str();
    match name.split('.').all(is_label) {
        true => name.to_owned(),
        false => {
            let hash = digest(&SHA256, name.as_bytes());
            format!("{HASHED}{}", hexadecimal(hash.as_ref()))
        }
    }
}

/// Whether the text can be the name of a disk, or a part between dots of an object's name (RFC
/// 1123). The maximum length of a name in a request is less than the maximum of an object's name.
pub(super) fn is_label(text: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(is_plain)
        && bytes.last().is_some_and(is_plain)
        && bytes.iter().all(|byte| is_plain(byte) || *byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_object_can_have_is_hashed_and_each_to_another_name() {
        let object = |name: &str| of(&Name::new(name).unwrap());
        for name in ["pvc-1", "a.b-c.d", "0", "n-1"] {
            assert_eq!(object(name), name);
        }
        let mut seen = Vec::new();
        for name in ["PVC-1", "a_b", "-a", "a-", "a..b", ".", "a/b", "ä", "a b"] {
            let hashed = object(name);
            assert_eq!(hashed.len(), HASHED.len() + 64, "{hashed}");
            assert!(is_label(&hashed) && !seen.contains(&hashed), "{hashed}");
            seen.push(hashed);
        }
    }

    #[test]
    fn a_fresh_id_has_the_form_of_one_kind_and_is_never_the_same() {
        let (one, other) = (fresh(VOLUME).unwrap(), fresh(VOLUME).unwrap());
        assert!(is_id(VOLUME, &one) && !is_id(SNAPSHOT, &one), "{one}");
        assert_ne!(one, other);
        for text in ["", "vol-", "vol-0", &one.to_uppercase(), &format!("{one}0")] {
            assert!(!is_id(VOLUME, text), "{text:?}");
        }
    }
}
