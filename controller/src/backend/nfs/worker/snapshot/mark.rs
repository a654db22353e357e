//! What the header of Belay's archives says: the volume, and when its files were read. Such an
//! archive has its name only once it is complete. One of csi-driver-nfs has no mark: it may be what
//! a killed process has left.

use flate2::{GzBuilder, GzHeader};
use std::time::{SystemTime, UNIX_EPOCH};

/// The comment begins with it; the ID of the volume follows.
const COMMENT: &str = "Belay snapshot of ";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The ID of the volume.
    pub(super) volume: String,
    /// In seconds since 1970.
    pub(super) created: u32,
}

impl Mark {
    /// That of an archive that is begun now.
    pub(super) fn now(volume: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = since.map_or(0, |since| since.as_secs());
        Self {
            volume: volume.to_owned(),
            created: u32::try_from(seconds).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn builder(&self) -> GzBuilder {
        let comment = format!("{COMMENT}{}", self.volume);
        GzBuilder::new()
            .mtime(self.created)
            .comment(comment.into_bytes())
    }

    /// None if it is another program's.
    pub(super) fn of(header: &GzHeader) -> Option<Self> {
        let comment = std::str::from_utf8(header.comment()?).ok()?;
        Some(Self {
            volume: comment.strip_prefix(COMMENT)?.to_owned(),
            created: header.mtime(),
        })
    }
}
