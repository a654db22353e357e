//! Names of volumes and snapshots in the cloud, and the description of a volume, which records its
//! creation. The names that CSI sidecars choose are used unchanged; other names may be replaced by
//! their hashes. The cloud stores the description atomically with the volume, and never changes the
//! description.

use belay_server::request::{ContentSource, Name, SnapshotId};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use ring::digest::{SHA256, digest};

/// Maximum length of a name in the cloud, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// The prefix of a hashed name.
const PREFIX: &str = "csi-";
/// The number of bytes of the SHA-256 in a hashed name.
const HASH_BYTES: usize = 20;

/// Returns the name in the cloud for a CSI name.
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

/// Whether a CSI name can be used unchanged: the cloud must accept the name, and the name must not
/// look like a hashed name. The name of a volume must be a lower-case letter, followed by
/// lower-case letters, digits and dashes. Snapshots may have any name.
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

/// The start of the description of a volume that Belay has created.
const BELAY: &str = "Created by Belay";
const SEPARATOR: &str = "; ";
const SNAPSHOT: &str = "snapshot";
const GIB: &str = "gib";
const NAME: &str = "name";

/// The data in the description of a volume that Belay has created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    /// The snapshot from which the volume was created; `None` if the volume was created empty.
    pub(super) snapshot: Option<SnapshotId>,
    /// The size to which the volume must be expanded before it is complete, in GiB.
    pub(super) gib: Option<u64>,
    /// The CSI name, if it differs from the name in the cloud.
    pub(super) name: Option<String>,
}

impl About {
    /// Creates the description of an empty volume with this CSI name.
    pub(super) fn new(name: &Name, in_cloud: &str) -> Self {
        Self {
            name: (name.as_str() != in_cloud).then(|| name.as_str().to_owned()),
            ..Self::default()
        }
    }

    /// Parses a description; `None` if Belay has not created the volume.
    pub(super) fn read(description: &str) -> Option<Self> {
        let mut parts = description.split(SEPARATOR);
        if parts.next() != Some(BELAY) {
            return None;
        }
        let mut about = Self::default();
        for (key, value) in parts.filter_map(|part| part.split_once('=')) {
            match key {
                SNAPSHOT => about.snapshot = Some(SnapshotId::new(value).ok()?),
                GIB => about.gib = Some(value.parse().ok()?),
                NAME => {
                    let name = percent_decode_str(value).decode_utf8().ok()?;
                    about.name = Some(name.into_owned());
                }
                _ => {}
            }
        }
        Some(about)
    }

    /// Returns the description in the form in which the cloud stores it.
    pub(super) fn text(&self) -> String {
        let name = self.name.as_deref();
        let name = name.map(|name| utf8_percent_encode(name, NON_ALPHANUMERIC).to_string());
        let parts = [
            (SNAPSHOT, self.snapshot.as_ref().map(SnapshotId::to_string)),
            (GIB, self.gib.map(|gib| gib.to_string())),
            (NAME, name),
        ];
        let parts = parts
            .into_iter()
            .filter_map(|(key, value)| Some(format!("{SEPARATOR}{key}={}", value?)));
        BELAY.to_owned() + &parts.collect::<String>()
    }

    pub(super) fn source(&self) -> Option<ContentSource> {
        self.snapshot.clone().map(ContentSource::Snapshot)
    }
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
        // A name that looks like a hash is hashed, too, so that names cannot collide.
        assert_ne!(mapped(&mapped("A")), mapped("A"));
        let other = "csi-7f8b1c2d-1111-4222-8333-444455556666";
        assert_eq!(mapped(other), other);
        // The results must never change, since existing volumes have these names.
        assert_eq!(
            mapped("PVC-1"),
            "csi-fda6d975a1d042d343286af74e638951c4988071"
        );
    }

    #[test]
    fn a_description_says_what_was_written_and_no_other_program_has_written_it() {
        let plain = About::default();
        assert_eq!(plain.text(), "Created by Belay");
        let whole = About {
            snapshot: Some(SnapshotId::new("5a-b").unwrap()),
            gib: Some(20),
            name: Some("a; gib=3 ä".to_owned()),
        };
        for about in [plain, whole] {
            assert_eq!(About::read(&about.text()), Some(about));
        }
        for other in [
            "",
            "Created by DigitalOcean CSI driver",
            "Created by Belay2",
            "Created by Belay; gib=many",
        ] {
            assert_eq!(About::read(other), None, "{other}");
        }
        // A later version has written this description.
        let later = About::read("Created by Belay; colour=red; gib=3").unwrap();
        assert_eq!(later.gib, Some(3));
    }
}
