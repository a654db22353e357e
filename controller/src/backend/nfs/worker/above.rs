//! Claims on the parent directories of a volume's directory: no parent directory may become a
//! volume. The claim directory of a parent contains a directory `below`, with a file for each
//! volume below the parent. `below` is removed with its last file, so nothing remains of a deleted
//! volume. A file in `below` is stale if its volume has no claim; the next call that finds a stale
//! file removes the file.

use super::super::path::Dir;
use super::claim::{Claim, State};
use super::claims::{Claims, Occupancy, changing, shown};
use super::error;
use super::layout::{BELOW, file_name, numbered};
use super::list;
use super::own::is_missing;
use super::tree::{self, Tree};
use belay_server::call::Failure;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// Maximum number of attempts to add a volume while another call removes empty directories.
const ATTEMPTS: usize = 32;

impl Claims {
    /// Claims the parent directories of a volume's directory.
    ///
    /// # Errors
    /// Returns `Incompatible` if a parent directory is or was the directory of another volume, and
    /// the errors of the server.
    pub(super) fn hold_above(&self, tree: &Tree, dir: &Dir, claim: &Claim) -> Result<(), Failure> {
        for above in dir.above() {
            if let Some(other) = self.hold(tree, &above, &reference(dir, claim))? {
                return Err(Failure::incompatible(format!(
                    "directory {dir}: is inside {above}, which {}; choose another directory",
                    other.describe()
                )));
            }
        }
        Ok(())
    }

    /// Releases the parent directories of the volume's directory.
    pub(super) fn release_above(&self, dir: &Dir, claim: &Claim) -> error::Result<()> {
        for above in dir.above() {
            self.release(&above, &reference(dir, claim))?;
        }
        Ok(())
    }

    /// Whether a volume exists below the directory. Removes stale files from `below`.
    pub(super) fn is_above(&self, tree: &Tree, dir: &Dir) -> Result<bool, Failure> {
        let hash = file_name(dir);
        if let Some(below) = self.below(&hash)? {
            loop {
                let names = list::names(&below, &shown(dir))?;
                if names.is_empty() {
                    break;
                }
                for name in names {
                    if self.stands(tree, &name)? {
                        return Ok(true);
                    }
                    tree::unlink(&below, &name, &shown(dir))?;
                }
            }
        }
        self.vacate_above(dir)?;
        Ok(false)
    }

    /// Returns true if the directory that a claim file names does not exist. Either another program
    /// has moved a retained or archived volume away, or the volume was never created.
    pub(super) fn is_void(&self, tree: &Tree, dir: &Dir, claim: &Claim) -> Result<bool, Failure> {
        let may_be = match claim.state {
            State::Retained => true,
            // While the archived volume also has its original claim, its directory may still be
            // moved to the archive's name.
            State::Archived => match (dir.archive_of(), &claim.of.archive_of) {
                (Some(of), Some(nonce)) => match self.afresh()? {
                    Some(now) => !now.is_claimed(&numbered(&of, nonce))?,
                    None => false,
                },
                _ => true,
            },
            State::Creating if claim.of.source.is_none() => self.is_abandoned(dir, claim)?,
            _ => false,
        };
        match tree.exists(dir) {
            Ok(is_there) => Ok(may_be && !is_there),
            Err(error) if is_missing(error.errno) => Ok(may_be),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds a volume to `below`, the record of the volumes below a directory. If the directory
    /// itself belongs to a volume, adds nothing and returns the claim of that volume.
    fn hold(&self, tree: &Tree, above: &Dir, reference: &str) -> Result<Option<Claim>, Failure> {
        for _ in 0..ATTEMPTS {
            match self.add(above, reference) {
                Err(error) if [Errno::NOENT, Errno::STALE].contains(&error.errno) => continue,
                result => result?,
            }
            return match self.read(above)? {
                Occupancy::By(claim) if self.is_void(tree, above, &claim)? => {
                    self.remove(above, &claim)?;
                    continue;
                }
                Occupancy::By(claim) => {
                    self.release(above, reference)?;
                    Ok(Some(claim))
                }
                Occupancy::Free | Occupancy::Above => Ok(None),
            };
        }
        Err(changing(above))
    }

    fn add(&self, above: &Dir, reference: &str) -> error::Result<()> {
        let path = tree::own(&self.claims, &file_name(above), &shown(above))?;
        let below = tree::own(&path, BELOW, &shown(above))?;
        tree::touch(&below, reference, &shown(above))
    }

    fn release(&self, above: &Dir, reference: &str) -> error::Result<()> {
        if let Some(below) = self.below(&file_name(above))? {
            tree::unlink(&below, reference, &shown(above))?;
        }
        self.vacate_above(above)
    }

    fn vacate_above(&self, above: &Dir) -> error::Result<()> {
        let (hash, shown) = (file_name(above), shown(above));
        if let Some(path) = tree::open_existing(&self.claims, &hash, &shown)?
            && tree::rmdir_if_empty(&path, BELOW, &shown)?
        {
            self.vacate(above)?;
        }
        Ok(())
    }

    fn below(&self, hash: &str) -> error::Result<Option<OwnedFd>> {
        match tree::open_existing(&self.claims, hash, hash)? {
            Some(path) => tree::open_existing(&path, BELOW, hash),
            None => Ok(None),
        }
    }

    /// Whether the volume of a file in `below` still exists. A volume is claimed before its file in
    /// `below` is created, so a file is stale if its volume has no claim.
    fn stands(&self, tree: &Tree, reference: &str) -> Result<bool, Failure> {
        if !self.is_claimed(reference)? {
            return Ok(false);
        }
        let (hash, _) = reference.split_once('.').unwrap_or((reference, ""));
        Ok(match self.by_hash(hash)? {
            Some((dir, claim)) if self.is_void(tree, &dir, &claim)? => {
                !self.remove(&dir, &claim)?
            }
            _ => true,
        })
    }

    /// Whether a claim file exists, in any state. `numbered` consists of the hash of the claimed
    /// path and the nonce of the claim.
    fn is_claimed(&self, numbered: &str) -> Result<bool, Failure> {
        let (hash, nonce) = numbered.split_once('.').unwrap_or((numbered, ""));
        let own = format!("{nonce}.");
        // A directory listing during a rename may contain neither the old nor the new name.
        for _ in 0..2 {
            if self.files(hash)?.iter().any(|file| file.starts_with(&own)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn reference(dir: &Dir, claim: &Claim) -> String {
    numbered(dir, &claim.nonce)
}
