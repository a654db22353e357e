//! The names in `.belay`, Belay's own directory in a share. Makes no system calls.
//!
//! ```text
//! claims/<hash of a path>/<nonce>.<state>   the claim of a volume (`claims`)
//! claims/<hash of a path>/below/            the volumes below a path (`above`)
//! tmp/<hash of a path>.<nonce>              a claim that is being written
//! trash/<hash of a path>.<nonce>/           directories that were moved away (`trash`)
//! snapshots/<hash of a path>.<nonce>        an archive that is being written (`snapshot`)
//! probe.<nonce>                             a file whose owner is this process (`own`)
//! ```

use super::super::path::Dir;
/// The name of Belay's own directory.
pub(super) use super::super::path::OWN;
use belay_server::call::{Failure, Kind};
use ring::digest::{SHA256, digest};
use std::fmt::Write as _;

pub(super) const CLAIMS: &str = "claims";
pub(super) const TEMPORARY: &str = "tmp";
pub(super) const TRASH: &str = "trash";
pub(super) const SNAPSHOTS: &str = "snapshots";
pub(super) const SNAPSHOTS_SHOWN: &str = ".belay/snapshots";

/// The name of the directory that lists the volumes below a path. The directory that contains the
/// path's claim also contains this directory.
pub(super) const BELOW: &str = "below";
/// The suffix of a claim in `tmp` that is being removed.
pub(super) const OLD: &str = ".old";

/// The name that a directory has in the trash if it will be archived instead of removed.
pub(super) const KEPT: &str = "volume";
/// The prefix of all names in the trash that belong to a new volume to which initial files are
/// being written.
pub(super) const COPY: &str = "copy.";
/// The name that a new volume has in the trash when all its initial files are written.
pub(super) const COMPLETE: &str = "copy.complete";
/// The prefix of a note in the trash: an empty file whose name contains the inode number of the
/// directory to which a volume's initial files were written.
pub(super) const NOTE: &str = "copy.is.";

/// Returns the SHA-256 of a path, which is the name of the path in `.belay`.
pub(super) fn file_name(dir: &Dir) -> String {
    hash(&dir.to_string())
}

/// Returns a file name that consists of the hash of a path and a nonce.
pub(super) fn numbered(dir: &Dir, nonce: &str) -> String {
    format!("{}.{nonce}", file_name(dir))
}

/// Returns the names of two directories in the trash: for the initial files of a volume, and for
/// hard links to these files.
pub(super) fn attempt(nonce: &str) -> (String, String) {
    (format!("{COPY}{nonce}"), format!("{COPY}{nonce}.links"))
}

/// Returns the name of the note (an empty file) for an inode number. The name does not contain
/// st_dev, which differs between mounts.
pub(super) fn note(inode: u64) -> String {
    format!("{NOTE}{inode:x}")
}

/// Whether the name is the name of a note, which contains an inode number.
pub(super) fn is_note(name: &[u8]) -> bool {
    name.starts_with(NOTE.as_bytes())
}

/// Returns the SHA-256 of a text, in hexadecimal digits.
pub(super) fn hash(text: &str) -> String {
    hexadecimal(digest(&SHA256, text.as_bytes()).as_ref())
}

/// Returns 64 random bits in hexadecimal digits, for names that must differ from the names of other
/// processes.
///
/// # Errors
/// Returns `System` if the kernel returns no random bits.
pub(super) fn nonce() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Kind::System, format!("getrandom: {error}")))?;
    Ok(hexadecimal(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}
