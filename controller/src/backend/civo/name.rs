//! Names of volumes and snapshots in Civo: the CSI name, as in civo-csi, with a suffix that records
//! the [`Promise`]. Civo stores no other data that this driver could set.

use super::size::Promise;
use belay_server::request::Name;
use ring::digest::{SHA256, digest};

/// The suffix of a volume's name if the capacity of the volume is the size of its disk.
const DISK_SUFFIX: &str = "-disk";
/// The prefix of a hashed name, which replaces a CSI name that Civo may refuse.
const HASHED_PREFIX: &str = "csi-";
/// Maximum length of a name that is not hashed, in bytes. Civo does not document the maximum length
/// of a name; 63 is the limit for a label of a host name.
const BYTES_MAX: usize = 63 - DISK_SUFFIX.len();
/// The number of bytes of the SHA-256 in a hashed name.
const HASH_BYTES: usize = 16;

/// Returns the name that the volume with a CSI name has in Civo.
pub(super) fn of_volume(name: &Name, promise: Promise) -> String {
    let name = safe(name.as_str());
    match promise {
        Promise::Volume => name,
        Promise::Disk => name + DISK_SUFFIX,
    }
}

/// Returns the names that the volume with a CSI name can have in Civo, one for each [`Promise`].
pub(super) fn of_any(name: &Name) -> [String; 2] {
    [Promise::Volume, Promise::Disk].map(|promise| of_volume(name, promise))
}

/// Returns the name that the snapshot with a CSI name has in Civo.
pub(super) fn of_snapshot(name: &Name) -> String {
    safe(name.as_str())
}

/// Returns the promise that a name in Civo records. For a volume of another program, the name
/// records no promise, and the capacity is the size of the Civo volume, as that program reports it.
pub(super) fn promise(name: &str) -> Promise {
    match name.ends_with(DISK_SUFFIX) {
        true => Promise::Disk,
        false => Promise::Volume,
    }
}

/// Returns the name unchanged if Civo accepts the name and the name cannot collide with a different
/// name in Civo. Otherwise returns its hash.
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
