//! Names of volumes and snapshots in the cloud, and the description of a volume, which records its
//! creation. The names that CSI sidecars choose are used unchanged; other names may be replaced by
//! their hashes. The cloud stores the description atomically with the volume, and never changes the
//! description.

use crate::backend::Order;
use belay_server::request::{ContentSource, Context, Name, SnapshotId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
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
const CLAIM: &str = "claim";

/// The maximum length of a description that contains the claim, in bytes. DigitalOcean documents no
/// limit. If the description would be longer, the claim is omitted, because it is only for people.
const WITH_CLAIM_BYTES_MAX: usize = 255;
/// The characters of the names of Kubernetes objects stay readable.
const OF_CLAIM: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.');

/// The data in the description of a volume that Belay has created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    /// The snapshot from which the volume was created; `None` if the volume was created empty.
    pub(super) snapshot: Option<SnapshotId>,
    /// The size to which the volume must be expanded before it is complete, in GiB.
    pub(super) gib: Option<u64>,
    /// The CSI name, if it differs from the name in the cloud.
    pub(super) name: Option<String>,
    /// The namespace and name of the claim, as the description contains them. Belay never reads
    /// them.
    pub(super) claim: Option<String>,
}

impl About {
    /// Creates the description of an empty volume.
    pub(super) fn new(order: &Order) -> Self {
        let name = order.name.as_str();
        Self {
            name: (name != in_cloud(&order.name)).then(|| name.to_owned()),
            claim: claim(&order.parameters),
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
        let part = |(key, value): (_, Option<String>)| Some(format!("{SEPARATOR}{key}={}", value?));
        let text = BELAY.to_owned() + &parts.into_iter().filter_map(part).collect::<String>();
        let claim = part((CLAIM, self.claim.clone())).unwrap_or_default();
        match text.len() + claim.len() <= WITH_CLAIM_BYTES_MAX {
            true => text + &claim,
            false => text,
        }
    }

    pub(super) fn source(&self) -> Option<ContentSource> {
        self.snapshot.clone().map(ContentSource::Snapshot)
    }
}

/// Returns the namespace and name of the claim that csi-provisioner passes with
/// `--extra-create-metadata`.
fn claim(parameters: &Context) -> Option<String> {
    let part = |key| {
        let value = parameters.get(&format!("csi.storage.k8s.io/pvc/{key}"))?;
        Some(utf8_percent_encode(value, OF_CLAIM).to_string())
    };
    Some(format!("{}/{}", part("namespace")?, part("name")?))
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
            claim: None,
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
        let of = |claim: &str| About {
            gib: Some(20),
            claim: Some(claim.to_owned()),
            ..About::default()
        };
        let text = "Created by Belay; gib=20; claim=shop/data-0";
        assert_eq!(of("shop/data-0").text(), text);
        assert_eq!(About::read(text).unwrap().gib, Some(20));
        assert_eq!(of(&"n".repeat(255)).text(), "Created by Belay; gib=20");
        // A later version has written this description.
        let later = About::read("Created by Belay; colour=red; gib=3").unwrap();
        assert_eq!(later.gib, Some(3));
    }
}
