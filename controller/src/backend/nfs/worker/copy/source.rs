//! The volume that is copied.

use super::super::super::call::{Owned, Source};
use super::super::super::path::Dir;
use super::super::claim::{Claim, State};
use super::super::claims::{Claims, Held};
use super::super::error::at;
use super::super::own::is_missing;
use super::super::tree::Tree;
use super::refuse_nested;
use belay_server::call::Failure;
use std::os::fd::OwnedFd;

/// A volume that exists.
pub(in super::super) struct Original<'a> {
    tree: &'a Tree,
    source: &'a Source,
    /// None: it is one of csi-driver-nfs.
    claim: Option<Claim>,
    /// Its fileid: another mount has another st_dev.
    inode: u64,
    pub(in super::super) directory: OwnedFd,
}

impl<'a> Original<'a> {
    /// Opens it.
    ///
    /// # Errors
    /// `NotFound` if it does not exist; `Precondition` if what has its name is not the directory of
    /// one volume.
    pub(in super::super) fn open(tree: &'a Tree, source: &'a Source) -> Result<Self, Failure> {
        let dir = &source.at.dir;
        let claim = claimed(tree, source)?;
        refuse_nested(tree, dir, dir.above().chain([dir.clone()]))?;
        let directory = tree.open_directory(dir)?;
        let directory = directory.ok_or_else(|| missing(source))?;
        let stat = rustix::fs::fstat(&directory).map_err(at("fstat", dir));
        let stat = stat.map_err(Failure::from)?;
        Ok(Self {
            tree,
            source,
            claim,
            inode: stat.st_ino,
            directory,
        })
    }

    /// That it is the volume that was opened, and its deletion was not begun, by the server:
    /// otherwise, files may be missing.
    ///
    /// # Errors
    /// `NotFound`.
    pub(in super::super) fn check(&self) -> Result<(), Failure> {
        let now = self.tree.share().afresh()?;
        let found = match now.find(&self.source.at.dir) {
            Err(error) if is_missing(error.errno) => None,
            result => result?,
        };
        let is_same = found.is_some_and(|found| found.identity.1 == self.inode);
        match is_same && claimed(&now, self.source)? == self.claim {
            true => Ok(()),
            false => Err(Failure::not_found(format!(
                "volume {}: was deleted while it was copied",
                self.source.id
            ))),
        }
    }
}

/// Its claim; none if it is a volume of csi-driver-nfs.
fn claimed(tree: &Tree, source: &Source) -> Result<Option<Claim>, Failure> {
    let dir = &source.at.dir;
    let Some(claims) = Claims::find(tree)? else {
        return Ok(None);
    };
    match claims.read(dir)? {
        Held::By(claim) if claim.of.name == source.at.name && claim.state == State::Ready => {
            Ok(Some(claim))
        }
        Held::By(_) => Err(missing(source)),
        Held::Above if claims.is_above(tree, dir)? => Err(Failure::precondition(format!(
            "volume {}: directory {dir} has the directories of other volumes, so it is not copied",
            source.id
        ))),
        Held::Free | Held::Above => unclaimed(tree, &claims, source),
    }
}

fn unclaimed(tree: &Tree, claims: &Claims, source: &Source) -> Result<Option<Claim>, Failure> {
    let Source {
        at: Owned { dir, .. },
        id,
        ..
    } = source;
    if claims.is_gone(&source.at)? {
        return Err(missing(source));
    }
    for above in dir.above() {
        match claims.read(&above)? {
            Held::By(claim) if !claims.is_void(tree, &above, &claim)? => {
                return Err(part(id, dir, &above, &claim));
            }
            _ => {}
        }
    }
    Ok(None)
}

fn part(id: &str, dir: &Dir, above: &Dir, claim: &Claim) -> Failure {
    Failure::precondition(format!(
        "volume {id}: directory {dir} is inside {above}, which {}; a part of another volume is not \
         copied",
        claim.describe()
    ))
}

fn missing(source: &Source) -> Failure {
    Failure::not_found(format!("volume {}: does not exist", source.id))
}
