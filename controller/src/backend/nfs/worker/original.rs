//! The source volume of a clone or of a snapshot.

use super::super::call::{Owned, Source};
use super::super::path::Dir;
use super::claim::{Claim, State};
use super::claims::{Claims, Occupancy};
use super::copy::report::Report;
use super::copy::target::Target;
use super::copy::{Sink, walk};
use super::delete::unrecorded;
use super::error::at;
use super::own::{is_missing, refuse_nested};
use super::tree::{self, Tree};
use belay_server::call::Failure;
use std::os::fd::OwnedFd;

/// An existing volume that is opened as a source.
pub(super) struct Original<'a> {
    tree: &'a Tree,
    source: &'a Source,
    /// The claim of the volume: the record that the directory belongs to the volume. `None` for a
    /// volume of csi-driver-nfs.
    claim: Option<Claim>,
    /// The inode number of the directory: its NFS fileid. st_dev is not compared, since it differs
    /// between mounts.
    inode: u64,
    directory: OwnedFd,
}

/// Copies a volume to a directory. In `links`, a hard link to each file with several names is
/// created.
///
/// # Errors
/// Returns `NotFound` if the volume does not exist or is deleted meanwhile; `Precondition` if the
/// volume has files that cannot be copied; the errors of the server.
pub(super) fn clone(
    tree: &Tree,
    source: &Source,
    (target, links): (&OwnedFd, &OwnedFd),
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let original = Original::open(tree, source)?;
    let root = tree::open(target, c".", ".")?;
    let mut target = Target::new(root, links, true);
    original.read(&mut target, report)?;
    let ended = target.end();
    ended.map_err(|stop| stop.failure(|why| Failure::precondition(why)))?;
    original.check()
}

impl<'a> Original<'a> {
    /// Opens a volume.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist; `Precondition` if its path is not the
    /// directory of exactly one volume.
    pub(super) fn open(tree: &'a Tree, source: &'a Source) -> Result<Self, Failure> {
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

    /// Passes all files of the volume to a sink.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume is deleted meanwhile; the errors of [`walk::directory`].
    pub(super) fn read(
        &self,
        sink: &mut impl Sink,
        report: &mut Report<'_>,
    ) -> Result<(), Failure> {
        let shown = self.source.at.dir.to_string();
        let passed = walk::directory(&self.directory, &shown, sink, report);
        passed.or_else(|failure| {
            // If the volume is deleted during the copy, system calls fail with errors such as
            // ESTALE, which must not be reported as failures of the server.
            self.check()?;
            Err(failure)
        })
    }

    /// Checks on the server that the opened volume still exists, and that its deletion has not
    /// begun. If the deletion has begun, files may be missing in the copy.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume was deleted.
    pub(super) fn check(&self) -> Result<(), Failure> {
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

/// Reads the claim file of a volume. Returns `None` for a volume of csi-driver-nfs.
fn claimed(tree: &Tree, source: &Source) -> Result<Option<Claim>, Failure> {
    let dir = &source.at.dir;
    let Some(claims) = Claims::find(tree)? else {
        return unclaimed(tree, None, source);
    };
    match claims.read(dir)? {
        Occupancy::By(claim) if claim.of.name == source.at.name && claim.state == State::Ready => {
            Ok(Some(claim))
        }
        Occupancy::By(_) => Err(missing(source)),
        Occupancy::Above if claims.is_above(tree, dir)? => Err(Failure::precondition(format!(
            "volume {}: directory {dir} has the directories of other volumes, so it is not copied",
            source.id
        ))),
        Occupancy::Free | Occupancy::Above => unclaimed(tree, Some(&claims), source),
    }
}

fn unclaimed(
    tree: &Tree,
    claims: Option<&Claims>,
    source: &Source,
) -> Result<Option<Claim>, Failure> {
    let Owned { dir, adopts, .. } = &source.at;
    if !adopts {
        let is_there = match tree.is_directory(dir) {
            Err(error) if is_missing(error.errno) => false,
            result => result?,
        };
        return Err(match is_there {
            true => unrecorded(&format!("volume {}: directory {dir}", source.id), "copied"),
            false => missing(source),
        });
    }
    let Some(claims) = claims else {
        return Ok(None);
    };
    for above in dir.above() {
        match claims.read(&above)? {
            Occupancy::By(claim) if !claims.is_void(tree, &above, &claim)? => {
                return Err(part(&source.id, dir, &above, &claim));
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
