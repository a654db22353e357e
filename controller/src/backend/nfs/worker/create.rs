//! Creates the directory of a volume. The order of the steps ensures that a directory with files
//! never becomes the directory of another volume:
//!
//! 1. A directory that exists without a claim is refused, unless it has the name of the volume and
//!    is empty.
//! 2. The directory is claimed in the state *creating*; then its parent directories are claimed.
//! 3. The directory is created. If the directory exists by now, it must be empty, since no caller
//!    knows the volume yet.
//! 4. The state of the claim is set to *ready*, and the caller receives its response.

use super::super::call::{ExistingVolume, NewVolume, snapshot_of};
use super::super::path::Dir;
use super::claim::{Claim, Record, State};
use super::claims::{Claims, Occupancy, changing};
use super::deletion::discard;
use super::own::{is_missing, refuse_nested};
use super::tree::{self, Tree};
use super::{error, list};
use belay_server::call::{Failure, Kind};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Maximum number of attempts to create the parent directories while another call removes them, and
/// to read the claim while another call changes it.
const ATTEMPTS: usize = 8;

/// Maximum time for which a creation removes the files of a deleted volume that had the same
/// directory. The time is limited since the creation may occupy a slot that is reserved for calls
/// other than deletions.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// Creates the volume, or returns the existing volume.
///
/// # Errors
/// Returns `Incompatible` if the directory belongs to another volume, or exists without a claim;
/// `Busy` if the volume's deletion has begun; the errors of the server.
pub(super) fn create(
    tree: &Tree,
    order: &NewVolume,
    end: Instant,
) -> Result<ExistingVolume, Failure> {
    let creation = Creation {
        tree,
        claims: Claims::open(tree)?,
        order,
        dir: &order.at.dir,
        source: None,
        end,
    };
    let claim = match creation.claimed()? {
        CreationState::Complete(seen) => return Ok(seen),
        CreationState::Creating(claim) => claim,
    };
    // If a later step fails, the claim file remains, unless the failure is rolled back.
    let done = creation.complete(&claim);
    done.map_err(|failure| match failure.certainty {
        belay_server::call::Certainty::RolledBack => failure,
        _ => failure.may_be_running(),
    })
}

pub(super) struct Creation<'a> {
    pub(super) tree: &'a Tree,
    pub(super) claims: Claims,
    pub(super) order: &'a NewVolume,
    pub(super) dir: &'a Dir,
    /// The recorded source of the volume's files. `None` if the volume begins without files.
    pub(super) source: Option<&'a str>,
    /// Deadline for removing the files of an abandoned creation.
    pub(super) end: Instant,
}

/// Formats the directory for messages. If the directory comes from a parameter, the name of the
/// parameter precedes it.
impl fmt::Display for Creation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.order.is_named_so {
            true => "directory",
            false => "subDir",
        };
        write!(f, "{what} {}", self.dir)
    }
}

pub(super) enum CreationState {
    /// The volume exists.
    Complete(ExistingVolume),
    /// The directory is claimed, but the volume is not complete.
    Creating(Claim),
}

impl Creation<'_> {
    /// Returns the claim (the record that the directory belongs to the volume), which is created if
    /// it does not exist.
    pub(super) fn claimed(&self) -> Result<CreationState, Failure> {
        // An abandoned creation may have left an empty directory.
        let mut was_abandoned = false;
        for _ in 0..ATTEMPTS {
            match self.claims.read(self.dir)? {
                Occupancy::Above if self.claims.is_above(self.tree, self.dir)? => {
                    return Err(Failure::incompatible(format!(
                        "{self}: has the directories of other volumes; choose another directory"
                    )));
                }
                Occupancy::By(claim)
                    if claim.state != State::Creating
                        && self.claims.is_void(self.tree, self.dir, &claim)? =>
                {
                    self.claims.remove(self.dir, &claim)?;
                }
                Occupancy::By(claim)
                    if claim.state == State::Gone
                        || !self.is_own(&claim)
                            && self.claims.is_abandoned(self.dir, &claim)? =>
                {
                    was_abandoned = match (claim.state, &claim.of.source) {
                        (State::Creating, None) => self.claims.remove(self.dir, &claim)?,
                        _ => {
                            // The removal includes the directory of a copy. If time runs out,
                            // DeleteVolume continues the removal.
                            let end = self.end.min(Instant::now() + FINISH_MAX);
                            discard(self.tree, self.dir, &claim, end)?;
                            false
                        }
                    };
                    continue;
                }
                Occupancy::By(claim) => return self.owned(claim),
                Occupancy::Free | Occupancy::Above => {}
            }
            if !was_abandoned && let Err(failure) = self.refuse_foreign() {
                match self.claims.read(self.dir)? {
                    // A concurrent call has created the volume.
                    Occupancy::By(_) => continue,
                    Occupancy::Free | Occupancy::Above => return Err(failure),
                }
            }
            let claim = Claim::new(self.record(), State::Creating)?;
            let made = self.claims.publish(self.dir, &claim);
            if made.map_err(Failure::may_be_running)? {
                return Ok(CreationState::Creating(claim));
            }
            was_abandoned = false;
        }
        Err(changing(self.dir))
    }

    /// Returns the volume of an existing claim, or an error if the claim does not match this call.
    fn owned(&self, claim: Claim) -> Result<CreationState, Failure> {
        let (dir, name) = (self.dir, &self.order.at.name);
        if matches!(claim.state, State::Retained | State::Archived) {
            return Err(Failure::incompatible(format!(
                "{self}: {}; move the directory away, and repeat the call, or create a \
                 PersistentVolume for the directory by hand",
                claim.describe()
            )));
        }
        if claim.of.name != *name {
            return Err(Failure::incompatible(format!(
                "{self}: {}; choose another directory, for example with \
                 ${{pv.metadata.name}}",
                claim.describe()
            )));
        }
        if claim.state == State::Creating && !self.is_own(&claim) {
            return Err(Failure::incompatible(format!(
                "name {name:?}: was begun as {}, and not as {}; choose another name",
                origin(claim.of.source.as_deref()),
                origin(self.source)
            )));
        }
        match claim.state {
            State::Creating => Ok(CreationState::Creating(claim)),
            State::Ready if self.tree.is_directory(dir)? => {
                Ok(CreationState::Complete(ExistingVolume {
                    bytes: claim.of.bytes,
                    is_deleting: false,
                    source: claim.of.source,
                }))
            }
            State::Ready => Err(Failure::precondition(format!(
                "name {name:?}: its directory {dir} is missing in the share; restore it, or delete \
                 the volume"
            ))),
            _ => Err(Failure::busy(format!(
                "name {name:?}: the volume of that name is being deleted"
            ))),
        }
    }

    /// Whether the claim was made by a call with the same name and source, so that this call can
    /// continue it.
    fn is_own(&self, claim: &Claim) -> bool {
        claim.of.name == self.order.at.name && claim.of.source.as_deref() == self.source
    }

    /// Whether the volume may use a directory that already exists: the directory has the name of
    /// the volume and is empty, so an interrupted call may have created it.
    fn may_take(&self) -> Result<bool, Failure> {
        if !self.order.is_named_so || self.source.is_some() {
            return Ok(false);
        }
        match self.tree.open_directory(self.dir) {
            Err(error) if is_missing(error.errno) => Ok(false),
            Err(error) => Err(error.into()),
            Ok(None) => Ok(true),
            Ok(Some(found)) => Ok(list::some(&found, 1, &self.dir.to_string())?.is_empty()),
        }
    }

    /// Refuses a directory if another program has created it or one of its parents.
    fn refuse_foreign(&self) -> Result<(), Failure> {
        if self.tree.exists(self.dir)? && !self.may_take()? {
            return Err(self.foreign());
        }
        let shares = self.dir.above().chain([self.dir.clone()]);
        refuse_nested(self.tree, self.dir, shares)?;
        if let Some(archives) = self.dir.archives()
            && self.claims.read(&archives)? == Occupancy::Free
            && self.tree.exists(&archives)?
        {
            return Err(Failure::incompatible(format!(
                "{self}: {archives} exists, and is called as an archive; choose another directory, \
                 or move that one away"
            )));
        }
        for above in self.dir.above() {
            if self.claims.read(&above)? != Occupancy::Free {
                continue;
            }
            let Some(directory) = self.tree.open_directory(&above)? else {
                break;
            };
            if list::has_files(&directory, &above.to_string())? {
                return Err(Failure::incompatible(format!(
                    "{self}: is inside {above}, which has files, and may be the volume of another \
                     program; choose another directory, or move the files away"
                )));
            }
        }
        Ok(())
    }

    fn complete(&self, claim: &Claim) -> Result<ExistingVolume, Failure> {
        match self.claims.hold_above(self.tree, self.dir, claim) {
            Err(failure) if failure.kind == Kind::Incompatible => {
                self.claims.remove(self.dir, claim)?;
                return Err(failure.rolled_back());
            }
            result => result?,
        }
        match self.make(claim) {
            Ok(true) => {}
            Ok(false) => return self.refuse(claim),
            // The server has responded, so the call cannot take effect later.
            Err(failure) if failure.kind != Kind::Unreachable && self.withdrawn(claim) => {
                return Err(failure.rolled_back());
            }
            Err(failure) => return Err(failure),
        }
        let ready = self.claims.advance(self.dir, claim, State::Ready)?;
        Ok(ExistingVolume {
            bytes: ready.of.bytes,
            is_deleting: false,
            source: None,
        })
    }

    /// Creates the directory. Returns `false` if the directory has files, or if a file has the
    /// directory's name.
    fn make(&self, claim: &Claim) -> Result<bool, Failure> {
        let shown = self.dir.to_string();
        let above = self.made()?;
        let directory = match tree::open(&above, self.dir.name(), &shown) {
            // A file or a link has the directory's name.
            Err(error) if [Errno::NOTDIR, Errno::LOOP].contains(&error.errno) => {
                return Ok(false);
            }
            result => result?,
        };
        if !list::some(&directory, 1, &shown)?.is_empty() {
            return Ok(false);
        }
        if let Some(mode) = self.order.permissions {
            self.claims.check(self.dir, claim)?;
            tree::chmod(&directory, mode, &shown)?;
        }
        Ok(true)
    }

    /// Creates the directory, unless a file of any type has its name. Returns the parent directory.
    fn made(&self) -> error::Result<OwnedFd> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let above = match self.tree.make_above(self.dir) {
                Err(error) if error.errno == Errno::NOENT && attempts < ATTEMPTS => continue,
                result => result?,
            };
            match tree::make_volume(&above, self.dir) {
                Err(error) if error.errno == Errno::NOENT && attempts < ATTEMPTS => {}
                Err(error) if error.errno != Errno::EXIST => return Err(error),
                _ => return Ok(above),
            }
        }
    }

    /// Removes the claim after the server has refused the directory, so that a repeated call begins
    /// again. Returns whether the claim file was removed.
    fn withdrawn(&self, claim: &Claim) -> bool {
        let is_there = match self.tree.exists(self.dir) {
            // A file or a link in the path also means that the directory does not exist.
            Err(error) => !is_missing(error.errno),
            Ok(is_there) => is_there,
        };
        !is_there && matches!(self.claims.remove(self.dir, claim), Ok(true))
    }

    /// Removes the claim on a directory that has files, or on a file that is not a directory. If
    /// another call has completed the volume, returns the volume instead.
    fn refuse(&self, claim: &Claim) -> Result<ExistingVolume, Failure> {
        if self.claims.remove(self.dir, claim)? {
            return Err(self.foreign().rolled_back());
        }
        match self.claims.read(self.dir)? {
            Occupancy::By(claim) => match self.owned(claim)? {
                CreationState::Complete(seen) => Ok(seen),
                CreationState::Creating(_) => Err(changing(self.dir)),
            },
            Occupancy::Free | Occupancy::Above => Err(changing(self.dir)),
        }
    }

    pub(super) fn foreign(&self) -> Failure {
        Failure::incompatible(format!(
            "{self}: exists in the share, and is not known to be this volume's; choose another \
             directory, for example with ${{pv.metadata.name}}, or create a PersistentVolume for \
             the existing one by hand"
        ))
    }

    fn record(&self) -> Record {
        Record {
            dir: self.dir.to_string(),
            name: self.order.at.name.clone(),
            on_delete: self.order.on_delete,
            bytes: self.order.bytes,
            archive_of: None,
            source: self.source.map(str::to_owned),
        }
    }
}

/// Describes the initial content of a volume, for messages.
fn origin(source: Option<&str>) -> String {
    match (source, source.and_then(snapshot_of)) {
        (None, _) => "an empty volume".to_owned(),
        (_, Some(id)) => format!("a copy of snapshot {id}"),
        (Some(id), None) => format!("a copy of volume {id}"),
    }
}
