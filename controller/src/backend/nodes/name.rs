//! The names of objects. Makes no calls.

use crate::kubernetes::is_label;
use belay_server::request::Name;
use ring::digest::{SHA256, digest};

/// The prefix of an object's name that is a hash of the name in the request.
const HASHED: &str = "n-";

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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
}
