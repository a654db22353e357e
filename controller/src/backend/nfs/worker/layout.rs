//! The names in `.belay`, Belay's own directory in a share. Makes no calls.
//!
//! ```text
//! claims/<hash of a path>/<nonce>.<state>   the claim of a volume (`claims`)
//! claims/<hash of a path>/below/            the volumes below a path (`above`)
//! tmp/<hash of a path>.<nonce>              a claim that is being written
//! trash/<hash of a path>.<nonce>/           what was moved away for a claim (`trash`)
//! snapshots/<hash of a path>.<nonce>        an archive that is being written (`snapshot`)
//! probe.<nonce>                             a file that shows whom the server takes us for (`own`)
//! ```

use super::super::path::Dir;
/// The name of the directory itself.
pub(super) use super::super::path::OWN;
use belay_server::call::{Failure, Kind};
use ring::digest::{SHA256, digest};
use std::fmt::Write as _;

pub(super) const CLAIMS: &str = "claims";
pub(super) const TEMPORARY: &str = "tmp";
pub(super) const TRASH: &str = "trash";
pub(super) const SNAPSHOTS: &str = "snapshots";
pub(super) const SNAPSHOTS_SHOWN: &str = ".belay/snapshots";

/// The directory of the volumes below a path, in the directory of the path's claims.
pub(super) const BELOW: &str = "below";
/// The suffix of a claim in `tmp` that is being removed.
pub(super) const OLD: &str = ".old";

/// The name of a directory in the trash that is not removed, but archived.
pub(super) const KEPT: &str = "volume";
/// The prefix of all names that a filled volume has in the trash.
pub(super) const COPY: &str = "copy.";
/// The name of a filled volume that is complete, in the trash.
pub(super) const COMPLETE: &str = "copy.complete";
/// The prefix of the note of a filled volume's inode, in the trash.
pub(super) const NOTE: &str = "copy.is.";

/// Returns the file name that represents a path.
pub(super) fn file_name(dir: &Dir) -> String {
    hash(&dir.to_string())
}

/// Returns the name of a file that belongs to one claim or attempt on a path.
pub(super) fn numbered(dir: &Dir, nonce: &str) -> String {
    format!("{}.{nonce}", file_name(dir))
}

/// Returns the names of a volume that is being filled, and of the directory for its hard links.
pub(super) fn attempt(nonce: &str) -> (String, String) {
    (format!("{COPY}{nonce}"), format!("{COPY}{nonce}.links"))
}

/// Returns the name of the note of an inode. st_dev differs between mounts.
pub(super) fn note(inode: u64) -> String {
    format!("{NOTE}{inode:x}")
}

/// Whether the name belongs to a note of an inode.
pub(super) fn is_note(name: &[u8]) -> bool {
    name.starts_with(NOTE.as_bytes())
}

/// Returns the SHA-256 of a text, in hexadecimal digits.
pub(super) fn hash(text: &str) -> String {
    hexadecimal(digest(&SHA256, text.as_bytes()).as_ref())
}

/// Returns 64 random bits, for names that no other process chooses.
///
/// # Errors
/// Returns `System` if the kernel returns none.
pub(super) fn nonce() -> Result<String, Failure> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(Kind::System, format!("getrandom: {error}")))?;
    Ok(hexadecimal(&bytes))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A string takes all that is written to it.
        write!(text, "{byte:02x}").ok();
        text
    })
}
