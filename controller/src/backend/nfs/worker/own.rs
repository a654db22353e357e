//! Belay's own directory in a share, `.belay`. The content of `.belay` determines which directories
//! are deleted, so `.belay` is used only if no other user can write in it.

use super::super::path::Dir;
use super::error::at;
use super::layout::{OWN, nonce};
use super::tree::{self, Tree};
use belay_server::call::Failure;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The mode bits that let other users change a directory.
const WRITABLE: u32 = 0o022;

/// The name of Belay's directory in upper case.
const OTHER_CASE: &str = ".BELAY";

/// Belay's own directory in a share.
pub(super) struct Own {
    directory: OwnedFd,
    /// The UID that owns the directory: root, or the UID to which the server maps this process.
    owner: u32,
}

impl Own {
    /// Opens `.belay` in the share, and creates it if it is missing.
    ///
    /// # Errors
    /// Returns `Precondition` if another user may control the directory; the errors of the server.
    pub(super) fn make(tree: &Tree) -> Result<Self, Failure> {
        let own = tree::own(tree.root(), OWN, OWN)?;
        refuse_one_case(tree, OTHER_CASE)?;
        Self::of(own)
    }

    /// Opens `.belay` in the share, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// Returns `Precondition` if another user may control the directory; the errors of the server.
    pub(super) fn find(tree: &Tree) -> Result<Option<Self>, Failure> {
        let Some(found) = tree::open_existing(tree.root(), OWN, OWN)? else {
            return Ok(None);
        };
        refuse_one_case(tree, OTHER_CASE)?;
        Self::of(found).map(Some)
    }

    /// Opens a directory in `.belay`, and creates it if it is missing.
    ///
    /// # Errors
    /// Returns `Precondition` if another user may control the directory; the errors of the server.
    pub(super) fn make_directory(&self, name: &str) -> Result<OwnedFd, Failure> {
        let directory = tree::own(&self.directory, name, &format!("{OWN}/{name}"))?;
        self.trusted(directory, name)
    }

    /// Opens a directory in `.belay`, or returns `None` if it does not exist.
    ///
    /// # Errors
    /// Returns `Precondition` if another user may control the directory; the errors of the server.
    pub(super) fn find_directory(&self, name: &str) -> Result<Option<OwnedFd>, Failure> {
        let found = tree::open_existing(&self.directory, name, &format!("{OWN}/{name}"))?;
        found.map(|found| self.trusted(found, name)).transpose()
    }

    fn of(directory: OwnedFd) -> Result<Self, Failure> {
        let owner = owner(&directory, OWN)?;
        let own = rustix::process::geteuid().as_raw();
        // A server may map root to another user, so create a file to determine to which user the
        // server maps this process.
        if ![0, own].contains(&owner) {
            let (seen_as, _) = tree::probe(&directory, &format!("probe.{}", nonce()?), OWN)?;
            if seen_as != owner {
                return Err(foreign(OWN, owner, seen_as));
            }
        }
        Ok(Self { directory, owner })
    }

    fn trusted(&self, directory: OwnedFd, name: &str) -> Result<OwnedFd, Failure> {
        let shown = format!("{OWN}/{name}");
        let owner = owner(&directory, &shown)?;
        match [0, self.owner].contains(&owner) {
            true => Ok(directory),
            false => Err(foreign(&shown, owner, self.owner)),
        }
    }
}

/// Refuses a share whose server ignores the case of names. If a server ignores case, two paths with
/// different claims could refer to the same directory.
fn refuse_one_case(tree: &Tree, other: &str) -> Result<(), Failure> {
    let found = tree::find(tree.root(), other, other)?;
    if found.is_none() || found != tree::find(tree.root(), OWN, OWN)? {
        return Ok(());
    }
    Err(Failure::precondition(format!(
        "directory {OWN} in the share: is {other}, too, so the server does not distinguish the \
         case of names, and two volumes could get one directory; export a filesystem that does"
    )))
}

/// Refuses the directory `dir` if one of the directories in `shares` contains `.belay`. A directory
/// that contains `.belay` is or was exported as a share itself, and files in it could be claimed
/// through that share, too.
///
/// # Errors
/// Returns `Precondition` if one of the directories is a share; the errors of the server.
pub(super) fn refuse_nested(
    tree: &Tree,
    dir: &Dir,
    shares: impl IntoIterator<Item = Dir>,
) -> Result<(), Failure> {
    for share in shares {
        let directory = match tree.open_directory(&share) {
            // A different check refuses a path that leads through a file or a link.
            Err(error) if is_missing(error.errno) => break,
            result => result?,
        };
        let Some(directory) = directory else {
            break;
        };
        if tree::find(&directory, OWN, &format!("{share}/{OWN}"))?.is_some() {
            return Err(Failure::precondition(format!(
                "directory {dir}: {share} has a directory {OWN}, so it is a share itself, or was, \
                 and its volumes are not known here; use one of the two shares only, and move \
                 {share}/{OWN} away if no class and no volume has that share"
            )));
        }
    }
    Ok(())
}

/// Returns the UID that owns a directory, or `Precondition` if other users can write in the
/// directory.
fn owner(directory: &OwnedFd, shown: &str) -> Result<u32, Failure> {
    let stat = rustix::fs::fstat(directory).map_err(at("fstat", shown));
    let stat = stat.map_err(Failure::from)?;
    let mode = stat.st_mode & 0o7777;
    if mode & WRITABLE != 0 {
        return Err(Failure::precondition(format!(
            "directory {shown} in the share: has mode {mode:04o}, so other users can write in it \
             and forge what Belay records; inspect it, and set mode 0700. Moved away, the record \
             of all volumes is lost"
        )));
    }
    Ok(stat.st_uid)
}

fn foreign(shown: &str, owner: u32, own: u32) -> Failure {
    Failure::precondition(format!(
        "directory {shown} in the share: belongs to UID {owner}, not to {own} as whom the server \
         sees the controller, so what it records may be forged; inspect it, and change its owner. \
         Moved away, the record of all volumes is lost"
    ))
}

/// Whether a lookup failed because the file does not exist, or because a file or a link is in its
/// path.
pub(super) fn is_missing(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
}

#[cfg(test)]
mod tests {
    use super::super::tree::Share;
    use super::*;
    use belay_server::call::Kind;
    use std::fs;

    #[test]
    fn a_share_without_the_case_of_names_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join(OWN)).unwrap();
        let tree = Share::Local(dir.path().to_owned()).afresh().unwrap();
        refuse_one_case(&tree, OTHER_CASE).unwrap();
        // The two names refer to two directories.
        fs::create_dir(dir.path().join(OTHER_CASE)).unwrap();
        refuse_one_case(&tree, OTHER_CASE).unwrap();
        // On a server that ignores case, the name in upper case refers to the same directory.
        let refused = refuse_one_case(&tree, OWN).unwrap_err();
        assert_eq!(refused.kind, Kind::Precondition);
        assert!(refused.message.contains("the case of names"), "{refused}");
    }
}
