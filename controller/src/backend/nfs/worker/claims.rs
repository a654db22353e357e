//! Claims: files that record the volume to which a directory belongs. The directory `.belay/claims`
//! of the share, outside of every volume, contains a directory for each claimed path; its name is
//! the SHA-256 of the path. The directory of a path contains either one file `NONCE.STATE`, which
//! is the claim of a volume, or the directory `below` ([`super::above`]), if the path is a parent
//! directory of volumes.
//!
//! To create a claim, a call renames a prepared directory to a name that must be free. The state of
//! a claim is changed by renaming its file, whose name contains the claim's nonce. Therefore, if a
//! call was killed and the server executes its last request late, the request can change only the
//! claim of that call: the claim of a later volume has a different nonce.

use super::super::path::Dir;
use super::claim::{Claim, Record, State};
use super::copy::attributes;
use super::error::{self, Error};
use super::layout::{BELOW, CLAIMS, OLD, OWN, TEMPORARY, file_name, nonce, numbered};
use super::list;
use super::own::Own;
use super::tree::{self, Share, Tree};
use belay_server::call::Failure;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Maximum size of a claim file, in bytes: a path, a name, and room for JSON escapes.
const BYTES_MAX: u64 = 64 << 10;
/// Maximum number of attempts to read a claim that another call is changing.
const ATTEMPTS: usize = 4;
/// Time after which a creation is treated as abandoned if no call has refreshed it, in seconds.
const CREATING_MAX: i64 = 3600;

/// The volume to which a path belongs, according to the claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Occupancy {
    /// The path belongs to no volume.
    Free,
    /// Volumes may be below the path.
    Above,
    By(Claim),
}

/// The claim files of a share.
pub(super) struct Claims {
    /// Belay's own directory.
    pub(super) own: Own,
    pub(super) claims: OwnedFd,
    share: Share,
}

impl Claims {
    /// Opens the claims of the share, or creates them for the first claim.
    pub(super) fn open(tree: &Tree) -> Result<Self, Failure> {
        let own = Own::make(tree)?;
        let claims = own.make_directory(CLAIMS)?;
        let share = tree.share().clone();
        Ok(Self { own, claims, share })
    }

    /// Opens the claims of the share, or returns `None` if no volume in the share has ever had a
    /// claim.
    pub(super) fn find(tree: &Tree) -> Result<Option<Self>, Failure> {
        let Some(own) = Own::find(tree)? else {
            return Ok(None);
        };
        let found = own.find_directory(CLAIMS)?;
        let share = tree.share().clone();
        Ok(found.map(|claims| Self { own, claims, share }))
    }

    /// Returns the volume to which the directory belongs.
    ///
    /// # Errors
    /// Returns `Precondition` if the claim is damaged; `Busy` if other calls keep changing the
    /// claim.
    pub(super) fn read(&self, dir: &Dir) -> Result<Occupancy, Failure> {
        let mut files = Vec::new();
        for _ in 0..ATTEMPTS {
            let Some(directory) = self.directory(dir)? else {
                return Ok(Occupancy::Free);
            };
            let names = list::names(&directory, &shown(dir))?;
            let has_below = names.iter().any(|name| name == BELOW);
            files = names;
            files.retain(|name| name != BELOW);
            match &files[..] {
                [] if has_below => return Ok(Occupancy::Above),
                [name] => {
                    if let Some(claim) = self.claim(dir, &directory, name)? {
                        return Ok(Occupancy::By(claim));
                    }
                }
                // The file of the claim is being renamed, or was just removed.
                _ => {}
            }
        }
        match &files[..] {
            [] => Ok(Occupancy::Free),
            [_] => Err(changing(dir)),
            _ => {
                let own = shown(dir);
                let paths: Vec<_> = files.iter().map(|file| format!("{own}/{file}")).collect();
                Err(Failure::precondition(format!(
                    "directory {dir}: more than one claim in the share: {}; they have the names of \
                     their volumes; remove those of volumes that do not exist",
                    paths.join(", ")
                )))
            }
        }
    }

    /// Reads the claim in a file, or returns `None` if the file does not exist.
    fn claim(&self, dir: &Dir, directory: &OwnedFd, name: &str) -> Result<Option<Claim>, Failure> {
        let shown = format!("{}/{name}", shown(dir));
        match record(directory, name, &shown)? {
            None => Ok(None),
            Some(Some(claim)) if claim.of.dir == dir.to_string() => Ok(Some(claim)),
            Some(_) => Err(Failure::precondition(format!(
                "{shown:?} in the share: is no claim on {dir}; if no volume of Belay has that \
                 directory, remove the file"
            ))),
        }
    }

    /// Returns the claimed path and the claim in the directory `hash`. Returns `None` unless the
    /// directory contains exactly one valid claim.
    pub(super) fn by_hash(&self, hash: &str) -> Result<Option<(Dir, Claim)>, Failure> {
        let Some(directory) = tree::open_existing(&self.claims, hash, hash)? else {
            return Ok(None);
        };
        let names = list::names(&directory, hash)?;
        let [name] = &names[..] else {
            return Ok(None);
        };
        let claim = record(&directory, name, hash)?.flatten();
        let dir = claim.as_ref().map(|claim| Dir::read(&claim.of.dir));
        match (dir, claim) {
            (Some(Ok(Some(dir))), Some(claim)) if file_name(&dir) == hash => Ok(Some((dir, claim))),
            _ => Ok(None),
        }
    }

    /// Claims a directory. Returns `false` if the path already has a claim file.
    pub(super) fn publish(&self, dir: &Dir, claim: &Claim) -> Result<bool, Failure> {
        let name = numbered(dir, &claim.nonce);
        let temporary = self.own.make_directory(TEMPORARY)?;
        let content = serde_json::to_vec_pretty(&claim.of);
        let content = content.map_err(|error| Failure::bug(error.to_string()))?;
        let written = tree::own(&temporary, &name, TEMPORARY)?;
        tree::write_new(&written, &claim.file(), &content, &shown(dir))?;
        let rename = || {
            let to = (&self.claims, &*file_name(dir));
            tree::rename((&temporary, &name), to, &shown(dir))
        };
        let mut renamed = rename();
        // Some servers do not replace an empty directory, which a killed call may have left.
        if matches!(&renamed, Err(error) if is_taken(error)) && self.vacate(dir)? {
            renamed = rename();
        }
        match renamed {
            Ok(()) => Ok(true),
            Err(error) if is_taken(&error) => {
                self.forget(&temporary, &name)?;
                Ok(false)
            }
            // The server has executed the rename, but its response was lost.
            Err(error) if error.errno == Errno::NOENT => Ok(self.is_current(dir, claim)?),
            Err(error) => Err(error.into()),
        }
    }

    /// Changes the state of a claim.
    ///
    /// # Errors
    /// Returns `Busy` if another call has changed the claim; the errors of the server.
    pub(super) fn advance(&self, dir: &Dir, claim: &Claim, state: State) -> Result<Claim, Failure> {
        let new = Claim {
            state,
            ..claim.clone()
        };
        if new.state == claim.state {
            return Ok(new);
        }
        let directory = self.directory(dir)?.ok_or_else(|| changing(dir))?;
        let (from, to) = (claim.file(), new.file());
        match tree::rename((&directory, &from), (&directory, &to), &shown(dir)) {
            // Either the server has executed the rename, but its response was lost; or another call
            // has made the same change.
            Err(error) if error.errno == Errno::NOENT && self.is_current(dir, &new)? => Ok(new),
            Err(error) if error.errno == Errno::NOENT => Err(changing(dir)),
            result => Ok(result.map(|()| new)?),
        }
    }

    /// Whether the creation of the volume, or the removal of a copy, was abandoned: its call was
    /// killed, and no call has continued the work for an hour. If the call was not killed and is
    /// only slow, it fails when it finds that the claim has changed.
    pub(super) fn is_abandoned(&self, dir: &Dir, claim: &Claim) -> Result<bool, Failure> {
        let directory = match claim.state {
            State::Creating | State::Gone => self.directory(dir)?,
            _ => None,
        };
        let Some(directory) = directory else {
            return Ok(false);
        };
        let shown = shown(dir);
        let Some(made) = tree::modified(&directory, &claim.file(), &shown)? else {
            return Ok(false);
        };
        let temporary = self.own.make_directory(TEMPORARY)?;
        let name = numbered(dir, &nonce()?);
        let (_, now) = tree::probe(&temporary, &name, &shown)?;
        Ok(is_abandoned(made, now))
    }

    /// Records that a creation, or the removal of a copy, is still in progress.
    pub(super) fn refresh(&self, dir: &Dir, claim: &Claim) -> Result<(), Failure> {
        let directory = self.directory(dir)?.ok_or_else(|| changing(dir))?;
        match attributes::refresh(&directory, &claim.file(), &shown(dir)) {
            Err(error) if error.errno == Errno::NOENT => Err(changing(dir)),
            result => Ok(result?),
        }
    }

    /// Checks that the claim file has not changed since this call has read the file. This function
    /// is called before each change of the directory. Mounts the share again, to query the server
    /// instead of this mount's cache.
    ///
    /// # Errors
    /// Returns `Busy` if the claim has changed; the errors of the server.
    pub(super) fn check(&self, dir: &Dir, claim: &Claim) -> Result<(), Failure> {
        match self.afresh()? {
            Some(now) if now.is_current(dir, claim)? => Ok(()),
            _ => Err(changing(dir)),
        }
    }

    /// Opens the claims through a new mount, in which their current state on the server is visible.
    pub(super) fn afresh(&self) -> Result<Option<Self>, Failure> {
        Self::find(&self.share.afresh()?)
    }

    /// Removes a claim, the files about its volume in the claims of the parent directories, and
    /// temporary files of killed calls. Returns `false` if the claim has changed since this call
    /// has read it.
    pub(super) fn remove(&self, dir: &Dir, claim: &Claim) -> Result<bool, Failure> {
        // If the volume is being created, another call may complete the creation at the same time,
        // and then needs the claims of the parent directories. Therefore the claim of a volume in
        // creation is removed first.
        let is_first = claim.state == State::Creating;
        if is_first && !self.unlink(dir, claim)? || !is_first && !self.is_current(dir, claim)? {
            return Ok(false);
        }
        self.release_above(dir, claim)?;
        if !is_first {
            self.unlink(dir, claim)?;
        }
        self.vacate(dir)?;
        if let Some(temporary) = self.own.find_directory(TEMPORARY)? {
            let prefix = numbered(dir, "");
            for name in list::names(&temporary, TEMPORARY)? {
                if name.starts_with(&prefix) {
                    self.forget(&temporary, &name)?;
                }
            }
        }
        Ok(true)
    }

    fn unlink(&self, dir: &Dir, claim: &Claim) -> error::Result<bool> {
        match self.directory(dir)? {
            Some(directory) => tree::unlink_existing(&directory, &claim.file(), &shown(dir)),
            None => Ok(false),
        }
    }

    /// Removes the directory for the claim of a path, unless the directory contains a claim.
    /// Returns `true` if the path had no claim file.
    pub(super) fn vacate(&self, dir: &Dir) -> error::Result<bool> {
        tree::rmdir_if_empty(&self.claims, &file_name(dir), &shown(dir))
    }

    /// Removes a claim that was written, but not published. The claim is renamed first, so that a
    /// call that is still publishing the claim fails, instead of publishing a claim whose file is
    /// removed.
    fn forget(&self, temporary: &OwnedFd, name: &str) -> error::Result<()> {
        let old = match name.ends_with(OLD) {
            true => name.to_owned(),
            false => format!("{name}{OLD}"),
        };
        match tree::rename((temporary, name), (temporary, &old), TEMPORARY) {
            Err(error) if error.errno == Errno::NOENT => return Ok(()),
            result => result?,
        }
        let written = match tree::open_existing(temporary, &old, TEMPORARY) {
            Err(error) if error.errno == Errno::NOTDIR => {
                return tree::unlink(temporary, &old, TEMPORARY);
            }
            result => result?,
        };
        if let Some(written) = written {
            for file in list::names(&written, TEMPORARY)? {
                tree::unlink(&written, &file, TEMPORARY)?;
            }
        }
        tree::rmdir(temporary, &old, TEMPORARY)
    }

    fn is_current(&self, dir: &Dir, claim: &Claim) -> error::Result<bool> {
        let file = claim.file();
        Ok(self.files(&file_name(dir))?.contains(&file))
    }

    /// Returns the file names in the directory of a path's claim.
    pub(super) fn files(&self, hash: &str) -> error::Result<Vec<String>> {
        match tree::open_existing(&self.claims, hash, hash)? {
            Some(directory) => list::names(&directory, hash),
            None => Ok(Vec::new()),
        }
    }

    /// Opens the directory of a path's claim, or returns `None` if the directory does not exist.
    fn directory(&self, dir: &Dir) -> error::Result<Option<OwnedFd>> {
        tree::open_existing(&self.claims, &file_name(dir), &shown(dir))
    }
}

/// Whether a creation that was last refreshed at `made` is abandoned at `now`, in seconds since
/// 1970.
pub(super) fn is_abandoned(made: i64, now: i64) -> bool {
    now.saturating_sub(made) > CREATING_MAX
}

/// Reads the claim in a claim file. Returns `None` if the file does not exist, and `Some(None)` if
/// the file is not a valid claim.
fn record(directory: &OwnedFd, name: &str, shown: &str) -> error::Result<Option<Option<Claim>>> {
    let Some(file) = tree::open_file(directory, name, shown)? else {
        return Ok(None);
    };
    let content = tree::read(file, BYTES_MAX, shown)?;
    let of: Option<Record> = content.and_then(|it| serde_json::from_slice(&it).ok());
    let (nonce, state) = name.split_once('.').unwrap_or((name, ""));
    Ok(Some(of.zip(State::of(state)).map(|(of, state)| Claim {
        of,
        nonce: nonce.to_owned(),
        state,
    })))
}

/// Whether a rename failed because its target is not empty. Servers return ENOTEMPTY or EEXIST.
pub(super) fn is_taken(error: &Error) -> bool {
    [Errno::NOTEMPTY, Errno::EXIST].contains(&error.errno)
}

pub(super) fn changing(dir: &Dir) -> Failure {
    Failure::busy(format!(
        "directory {dir}: another call changes its volume; repeat the call"
    ))
}

pub(super) fn shown(dir: &Dir) -> String {
    format!("{OWN}/{CLAIMS}/{}", file_name(dir))
}
