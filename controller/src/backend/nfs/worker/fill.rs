//! Creates a volume with initial files. `Creation` claims the directory in the state *creating*;
//! then these steps follow:
//!
//! 1. The files are written to `copy.<nonce of the attempt>` in the trash directory of the claim,
//!    and synced to the server's disk.
//! 2. In the trash directory, the directory is renamed to `copy.complete`, and then it is renamed
//!    to the directory of the volume.
//! 3. The trash directory is removed, the state of the claim is set to *ready*, and the caller
//!    receives its response.
//!
//! A call that finds an incomplete copy of an earlier call removes the copy and begins again: the
//! files of the copy may be of any age, and a server that was restarted may have lost their
//! content. The later call renames the incomplete copy before it removes the copy. Therefore a
//! request of the earlier call that the server executes late either completes the volume or fails:
//! an incomplete copy never gets the name of a volume.

use super::super::call::{Copied, ExistingVolume, NewVolume};
use super::super::path::Dir;
use super::claim::{Claim, State};
use super::claims::{Claims, changing, is_taken};
use super::copy::report::Report;
use super::create::{Creation, CreationState};
use super::deletion::discard;
use super::error::is_final;
use super::layout::{COMPLETE, TRASH, is_note, note};
use super::list;
use super::trash::Trash;
use super::tree::{self, Tree};
use belay_server::call::{Failure, Kind};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Maximum time for removing files between two reports.
const SLICE: Duration = Duration::from_secs(10);
/// Maximum time for removing volumes whose creation was abandoned, to free their space.
const SWEEP_MAX: Duration = Duration::from_secs(20);

/// Maximum number of attempts to create the parent directories while another call removes them.
const ATTEMPTS: usize = 8;

/// A function that writes the files of a volume to the first directory. The function may create
/// hard links to the files in the second directory.
pub(super) type Fill<'a> =
    dyn Fn((&OwnedFd, &OwnedFd), &mut Report<'_>) -> Result<(), Failure> + 'a;

/// Creates the volume, or returns the existing volume. `source` is recorded as the source of the
/// volume's files.
///
/// # Errors
/// Returns the errors of a creation and of `fill`. After an error that a repeated call would return
/// again, no files are left behind.
pub(super) fn create(
    tree: &Tree,
    volume: &NewVolume,
    source: &str,
    progress: &dyn Fn(&Copied),
    fill: &Fill<'_>,
) -> Result<ExistingVolume, Failure> {
    let dir = &volume.at.dir;
    let creation = Creation {
        tree,
        claims: Claims::open(tree)?,
        order: volume,
        dir,
        source: Some(source),
        end: Instant::now() + SWEEP_MAX,
    };
    let claim = match creation.claimed()? {
        CreationState::Complete(seen) => return Ok(seen),
        CreationState::Creating(claim) => claim,
    };
    let refresh = || creation.claims.refresh(dir, &claim);
    let mut filling = Filling {
        creation: &creation,
        claim: &claim,
        report: Report::new(progress, &refresh),
    };
    match filling.complete(fill) {
        Err(failure) if is_final(failure.kind) => {
            filling.withdraw().map_err(Failure::may_be_running)?;
            Err(failure.rolled_back())
        }
        result => result.map_err(Failure::may_be_running),
    }
}

struct Filling<'a> {
    creation: &'a Creation<'a>,
    claim: &'a Claim,
    report: Report<'a>,
}

impl Filling<'_> {
    fn complete(&mut self, fill: &Fill<'_>) -> Result<ExistingVolume, Failure> {
        let (creation, claim) = (self.creation, self.claim);
        let Creation {
            tree, claims, dir, ..
        } = creation;
        claims.hold_above(tree, dir, claim)?;
        claims.refresh(dir, claim)?;
        let trash = Trash::of_current(claims, dir, claim)?;
        trash.disarm_attempts()?;
        if trash.complete()?.is_none() && !trash.has_placed(tree, dir)? {
            self.sweep();
            // Remove the notes (empty files with an inode number in their names) of an earlier
            // attempt whose directory was removed.
            trash.forget_notes()?;
            self.remove(&trash)?;
            self.attempt(&trash, fill)?;
        }
        if !trash.has_placed(tree, dir)? {
            self.place(&trash)?;
        }
        // Remove the hard links in the trash directory to files of the volume.
        self.remove(&trash)?;
        let ready = claims.advance(dir, claim, State::Ready)?;
        self.report.end();
        // Ignore errors: files that remain in the trash are empty, and are removed with the volume
        // at the latest.
        trash.empty(Instant::now() + SLICE).unwrap_or_default();
        trash.remove().unwrap_or_default();
        Ok(ExistingVolume {
            bytes: ready.of.bytes,
            is_deleting: false,
            source: ready.of.source,
        })
    }

    /// Writes all files to a directory in the trash, and then renames the directory to the name
    /// that marks it as complete.
    fn attempt(&mut self, trash: &Trash, fill: &Fill<'_>) -> Result<(), Failure> {
        let (name, target, links) = trash.begin_attempt()?;
        fill((&target, &links), &mut self.report)?;
        if let Some(mode) = self.creation.order.permissions {
            tree::chmod(&target, mode, &trash.shown)?;
        }
        tree::sync(&target, &trash.shown)?;
        trash.name_complete(&name)
    }

    /// Renames the complete directory in the trash to the directory of the volume.
    ///
    /// # Errors
    /// Returns `Incompatible` if another program has created a file of that name; `Busy` if another
    /// call creates or removes the volume.
    fn place(&self, trash: &Trash) -> Result<(), Failure> {
        let Creation {
            tree, claims, dir, ..
        } = self.creation;
        let complete = trash.complete()?.ok_or_else(|| changing(dir))?;
        tree::touch(&trash.own, &note(complete.identity.1), &trash.shown)?;
        for _ in 0..ATTEMPTS {
            let above = match tree.make_above(dir) {
                Err(error) if error.errno == Errno::NOENT => continue,
                result => result?,
            };
            // The directory's name belongs to the volume only as long as the claim is unchanged.
            claims.check(dir, self.claim)?;
            match tree::rename((&trash.own, COMPLETE), (&above, dir.name()), &trash.shown) {
                Ok(()) => return Ok(()),
                // Either the server has executed the rename, but its response was lost; or a parent
                // directory was removed.
                Err(error) if error.errno == Errno::NOENT => {
                    if trash.has_placed(tree, dir)? {
                        return Ok(());
                    }
                }
                Err(error) if is_taken(&error) || error.errno == Errno::NOTDIR => {
                    return Err(self.creation.foreign());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(changing(dir))
    }

    /// Removes the files that were moved to the trash.
    fn remove(&mut self, trash: &Trash) -> Result<(), Failure> {
        self.in_slices(|end| trash.empty_except(end, is_note))
    }

    /// Removes the copy and its claim file.
    fn withdraw(&mut self) -> Result<(), Failure> {
        let Creation {
            tree, claims, dir, ..
        } = self.creation;
        let gone = claims.advance(dir, self.claim, State::Gone)?;
        self.in_slices(|end| discard(tree, dir, &gone, end))
    }

    /// Repeats a removal until no files are left, and reports after each period that the call is
    /// still in progress.
    fn in_slices(
        &mut self,
        remove: impl Fn(Instant) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        loop {
            let end = Instant::now() + SLICE;
            match remove(end) {
                Err(failure) if failure.kind == Kind::Busy && Instant::now() >= end => {
                    self.report.beat()?;
                }
                result => return result,
            }
        }
    }

    /// Removes abandoned copies in the share, to free their space. Copies that cannot be removed
    /// are ignored.
    fn sweep(&mut self) {
        let Creation { tree, claims, .. } = self.creation;
        let end = Instant::now() + SWEEP_MAX;
        for (dir, claim) in abandoned(claims, self.claim).unwrap_or_default() {
            discard(tree, &dir, &claim, end).unwrap_or_default();
        }
    }
}

/// Returns the other copies in the share whose creation or removal was abandoned: no call has
/// continued it for an hour.
fn abandoned(claims: &Claims, own: &Claim) -> Result<Vec<(Dir, Claim)>, Failure> {
    let mut found = Vec::new();
    let Some(all) = claims.own.find_directory(TRASH)? else {
        return Ok(found);
    };
    for name in list::names(&all, TRASH)? {
        let Some((hash, nonce)) = name.split_once('.') else {
            continue;
        };
        if nonce != own.nonce
            && let Some((dir, claim)) = claims.by_hash(hash)?
            && claim.nonce == nonce
            && claim.of.source.is_some()
            && claims.is_abandoned(&dir, &claim)?
        {
            found.push((dir, claim));
        }
    }
    Ok(found)
}
