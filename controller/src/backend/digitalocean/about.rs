//! What the description of a volume says of its creation. The cloud sets it with the volume, in one
//! step, and never changes it.

use belay_server::request::{ContentSource, Name, SnapshotId};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// How the description of a volume of Belay begins.
const BELAY: &str = "Created by Belay";
const SEPARATOR: &str = "; ";
const SNAPSHOT: &str = "snapshot";
const GIB: &str = "gib";
const NAME: &str = "name";

/// How Belay created a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct About {
    /// The snapshot that its data is from; none = it began empty.
    pub(super) snapshot: Option<SnapshotId>,
    /// The size that it must grow to before it is complete, in GiB.
    pub(super) gib: Option<u64>,
    /// Its CSI name, where its name in the cloud is another.
    pub(super) name: Option<String>,
}

impl About {
    /// Of a volume of that CSI name.
    pub(super) fn new(name: &Name, in_cloud: &str) -> Self {
        Self {
            name: (name.as_str() != in_cloud).then(|| name.as_str().to_owned()),
            ..Self::default()
        }
    }

    /// What a description says; none for a volume that Belay has not created.
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

    /// The description.
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
        // Of a later version.
        let later = About::read("Created by Belay; colour=red; gib=3").unwrap();
        assert_eq!(later.gib, Some(3));
    }
}
