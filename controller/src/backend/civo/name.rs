//! The name of a volume at Civo: the name in the request, as in civo-csi, with a suffix that
//! records the promise of its class. Civo stores nothing else that this driver can set.

use super::size::Promise;
use belay_server::request::Name;
use ring::digest::{SHA256, digest};

/// The end of a volume's name if its capacity is the size of its disk.
const DISK_SUFFIX: &str = "-disk";
/// The start of a volume's name if Civo may refuse the name in the request.
const HASHED_PREFIX: &str = "csi-";
/// Maximum length of a name that is not hashed, in bytes. Civo's limit is unknown, but the limit of
/// host names is safe.
const BYTES_MAX: usize = 63 - DISK_SUFFIX.len();
/// The number of bytes of the hash in a name.
const HASH_BYTES: usize = 16;

/// Returns the name of the volume for a request.
pub(super) fn of_volume(name: &Name, promise: Promise) -> String {
    let name = safe(name.as_str());
    match promise {
        Promise::Volume => name,
        Promise::Disk => name + DISK_SUFFIX,
    }
}

/// Returns the names that the volume of a request can have, one for each promise of its size.
pub(super) fn of_any(name: &Name) -> [String; 2] {
    [Promise::Volume, Promise::Disk].map(|promise| of_volume(name, promise))
}

/// Returns the name of the snapshot for a request.
pub(super) fn of_snapshot(name: &Name) -> String {
    safe(name.as_str())
}

/// Returns the promise that a name records. A volume of another program has no promise, so its
/// capacity is the size that its program sees.
pub(super) fn promise(name: &str) -> Promise {
    match name.ends_with(DISK_SUFFIX) {
        true => Promise::Disk,
        false => Promise::Volume,
    }
}

/// Returns the name itself if Civo accepts it and it cannot be mistaken for another name, or else
/// its hash.
fn safe(name: &str) -> String {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric();
    let is_plain = name.len() <= BYTES_MAX
        && name
            .bytes()
            .all(|byte| is_letter(byte) || b"-_.".contains(&byte))
        && name.bytes().next().is_some_and(is_letter)
        && !name.ends_with(DISK_SUFFIX)
        && !name.starts_with(HASHED_PREFIX);
    if is_plain {
        return name.to_owned();
    }
    let hash = digest(&SHA256, name.as_bytes());
    let hash = hash.as_ref().iter().take(HASH_BYTES);
    let hash: String = hash.map(|byte| format!("{byte:02x}")).collect();
    format!("{HASHED_PREFIX}{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, promise: Promise) -> String {
        of_volume(&Name::new(name).unwrap(), promise)
    }

    #[test]
    fn the_name_of_a_claim_stays_and_records_the_promise() {
        let name = "pvc-7f8b1c2d-1111-4222-8333-444455556666";
        assert_eq!(of(name, Promise::Volume), name);
        assert_eq!(of(name, Promise::Disk), format!("{name}-disk"));
        assert_eq!(promise(name), Promise::Volume);
        assert_eq!(promise(&of(name, Promise::Disk)), Promise::Disk);
    }

    #[test]
    fn any_other_name_is_a_hash_and_no_two_names_become_one() {
        let long = "x".repeat(128);
        let names = [
            "two words",
            "ümlaut",
            "-dash",
            "a-disk",
            "csi-0123",
            "tab\t",
            &long,
            &"x".repeat(127),
        ];
        let mut hashed = std::collections::BTreeSet::new();
        for name in names {
            let short = of(name, Promise::Volume);
            assert!(short.starts_with("csi-") && short.len() == 36, "{short}");
            assert_eq!(promise(&short), Promise::Volume);
            assert_eq!(promise(&of(name, Promise::Disk)), Promise::Disk);
            assert!(of(name, Promise::Disk).len() <= 63);
            hashed.insert(short);
        }
        assert_eq!(hashed.len(), names.len());
        assert_ne!(of("a", Promise::Disk), of("a-disk", Promise::Volume));
    }
}
