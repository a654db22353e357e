//! The mark in the gzip header of Belay's archives: the volume, and the time at which its files
//! were read. A marked archive is complete, since Belay creates the final name of an archive only
//! when the archive is complete. An archive of csi-driver-nfs has no mark, and is incomplete if the
//! process that wrote it was killed.

use super::super::layout::hash;
use flate2::{GzBuilder, GzHeader};
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// The prefix of the gzip header's comment, before the ID of the volume or its digest.
const COMMENT: &str = "Belay snapshot of ";
/// Maximum length of the comment, in bytes: Go's compress/gzip, with which csi-driver-nfs reads
/// archives, has a buffer of 512 bytes for the comment and the zero byte after it (`readString`).
const COMMENT_BYTES_MAX: usize = 511;
/// The prefix of a digest, the SHA-256 that replaces an ID that is too long.
const DIGEST: &str = "sha256:";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    /// The ID of the volume, or its digest.
    volume: String,
    /// The time at which the archive was begun, in seconds since 1970.
    pub(super) created: u32,
}

impl Mark {
    /// Creates the mark of a new archive, with the current time as the time of the snapshot.
    pub(super) fn now(volume: &str) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = since.map_or(0, |since| since.as_secs());
        Self {
            volume: written(volume),
            created: u32::try_from(seconds).unwrap_or(u32::MAX),
        }
    }

    pub(super) fn is_of(&self, volume: &str) -> bool {
        self.volume == written(volume)
    }

    /// Returns the ID of the volume, or `None` if the mark contains only the digest of the ID.
    pub(super) fn volume(&self) -> Option<&str> {
        Some(&*self.volume).filter(|volume| !volume.starts_with(DIGEST))
    }

    pub(super) fn builder(&self) -> GzBuilder {
        let comment = format!("{COMMENT}{}", self.volume);
        GzBuilder::new()
            .mtime(self.created)
            .comment(comment.into_bytes())
    }

    /// Reads the mark. Returns `None` for an archive of another program.
    pub(super) fn of(header: &GzHeader) -> Option<Self> {
        let comment = std::str::from_utf8(header.comment()?).ok()?;
        Some(Self {
            volume: comment.strip_prefix(COMMENT)?.to_owned(),
            created: header.mtime(),
        })
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.volume() {
            Some(volume) => write!(f, "volume {volume}"),
            None => f.write_str("another volume"),
        }
    }
}

/// Returns the ID of a volume as the comment contains it: a digest replaces an ID that is too long.
/// No ID looks like a digest, since each ID begins with the name of a server.
fn written(volume: &str) -> String {
    match COMMENT.len() + volume.len() <= COMMENT_BYTES_MAX {
        true => volume.to_owned(),
        false => format!("{DIGEST}{}", hash(volume)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_comment_of_the_longest_id_is_read_by_csi_driver_nfs() {
        let kept = COMMENT_BYTES_MAX - COMMENT.len();
        for (bytes, is_written) in [(1, true), (kept, true), (kept + 1, false), (1024, false)] {
            let id = "v".repeat(bytes);
            let mark = Mark::now(&id);
            assert!(COMMENT.len() + mark.volume.len() <= 511, "{bytes}");
            assert!(mark.is_of(&id) && !mark.is_of(&format!("{id}v")));
            assert_eq!(mark.volume(), is_written.then_some(&*id));
            assert_eq!(mark.to_string().contains(&id), is_written, "{bytes}");
        }
    }
}
