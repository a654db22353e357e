//! The name that a volume or snapshot has in the cloud. Those of the sidecars are used as they are;
//! others become a hash, always the same.

use belay_server::request::Name;
use ring::digest::{SHA256, digest};

/// Longest name of a volume.
const NAME_BYTES_MAX: usize = 64;
/// What a hash follows.
const PREFIX: &str = "csi-";
/// Bytes of the hash.
const HASH_BYTES: usize = 20;

/// The name in the cloud.
pub(super) fn in_cloud(name: &Name) -> String {
    let name = name.as_str();
    if is_plain(name) {
        return name.to_owned();
    }
    let hash = digest(&SHA256, name.as_bytes());
    let bytes = hash.as_ref().iter().take(HASH_BYTES);
    let digits = bytes.map(|byte| format!("{byte:02x}"));
    PREFIX.to_owned() + &digits.collect::<String>()
}

/// Whether the cloud accepts it (a letter, then letters, digits and dashes, in lower case), and it
/// cannot be mistaken for the hash of another one. Snapshots may have any name.
fn is_plain(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(is_fine)
        && !is_hash(name)
}

fn is_hash(name: &str) -> bool {
    let digits = name.strip_prefix(PREFIX).unwrap_or_default();
    digits.len() == 2 * HASH_BYTES && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(name: &str) -> String {
        in_cloud(&Name::new(name).unwrap())
    }

    #[test]
    fn names_of_the_sidecars_stay_and_others_become_a_name_that_the_cloud_accepts() {
        let pvc = "pvc-7f8b1c2d-1111-4222-8333-444455556666";
        let longest = "a".repeat(NAME_BYTES_MAX);
        for name in [pvc, "a", longest.as_str()] {
            assert_eq!(mapped(name), name);
        }
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in ["PVC-1", "1a", "-a", "a b", "a_b", "ä", long.as_str()] {
            let mapped = mapped(name);
            assert!(
                is_hash(&mapped) && mapped.len() <= NAME_BYTES_MAX,
                "{mapped}"
            );
            assert_eq!(mapped, super::in_cloud(&Name::new(name).unwrap()));
        }
        assert_ne!(mapped("A"), mapped("B"));
        // A name that looks like a hash is hashed too, so names cannot collide.
        assert_ne!(mapped(&mapped("A")), mapped("A"));
        let other = "csi-7f8b1c2d-1111-4222-8333-444455556666";
        assert_eq!(mapped(other), other);
        // Volumes in the field have these names.
        assert_eq!(
            mapped("PVC-1"),
            "csi-fda6d975a1d042d343286af74e638951c4988071"
        );
    }
}
