//! Creates the directory of a volume. The order of the steps is such that a directory with files
//! never becomes that of another volume:
//!
//! 1. a directory that exists and is not claimed is refused, unless it has the name of the volume;
//! 2. the directory is claimed, as *creating*, and then those above it;
//! 3. it is made; if it exists by now, it must be empty: no caller knows the volume yet;
//! 4. the claim becomes *ready*, and the caller gets its response.

use super::super::call::{NewVolume, Seen, snapshot_of};
use super::super::path::Dir;
use super::claim::{Claim, Record, State};
use super::claims::{Claims, Occupancy, changing};
use super::deletion::discard;
use super::own::{is_missing, refuse_nested};
use super::snapshot::snapshot_in;
use super::tree::{self, Tree};
use super::{error, list};
use belay_server::call::{Failure, Kind};
use rustix::io::Errno;
use std::fmt;
use std::os::fd::OwnedFd;
use std::time::Instant;

/// Maximum number of attempts to make the directories above while another call removes them, and to
/// read the claim while another call changes it.
const ATTEMPTS: usize = 8;

/// Creates the volume, or finds it.
///
/// # Errors
/// Returns `Incompatible` if the directory belongs to another volume, or to none; `Busy` if its
/// deletion has begun; the errors of the server.
pub(super) fn create(tree: &Tree, order: &NewVolume, end: Instant) -> Result<Seen, Failure> {
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
    // Later failures leave the claim behind, unless they were rolled back.
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

/// Prints the directory after the name of the parameter that it comes from, if any.
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
    Complete(Seen),
    /// The volume must be completed.
    Creating(Claim),
}

/// The reason why the directory was not made.
enum Refusal {
    /// The directory exists, and is not this volume's.
    Foreign,
    /// Another reason, and whether the server has refused a call.
    Error(Failure, bool),
}

impl From<error::Error> for Refusal {
    fn from(error: error::Error) -> Self {
        let is_answered = error.is_answered();
        Self::Error(error.into(), is_answered)
    }
}

impl Creation<'_> {
    /// Returns the claim of the volume, and makes it if there is none.
    pub(super) fn claimed(&self) -> Result<CreationState, Failure> {
        // An abandoned creation may have left its directory, which is empty.
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
                    if !self.is_own(&claim) && self.claims.is_abandoned(self.dir, &claim)? =>
                {
                    was_abandoned = match claim.is_copy_in_progress() {
                        true => {
                            discard(self.tree, self.dir, &claim, self.end)?;
                            // `discard` has removed the directory, too.
                            false
                        }
                        false => self.claims.remove(self.dir, &claim)?,
                    };
                    continue;
                }
                Occupancy::By(claim) => return self.owned(claim),
                Occupancy::Free | Occupancy::Above => {}
            }
            if !was_abandoned && let Err(failure) = self.refuse_foreign() {
                match self.claims.read(self.dir)? {
                    // Another call has made the volume meanwhile.
                    Occupancy::By(_) => continue,
                    Occupancy::Free | Occupancy::Above => return Err(failure),
                }
            }
            let first = match self.source {
                None => State::Creating,
                Some(_) => State::Copying,
            };
            let claim = Claim::new(self.record(), first)?;
            let made = self.claims.publish(self.dir, &claim);
            if made.map_err(Failure::may_be_running)? {
                return Ok(CreationState::Creating(claim));
            }
            was_abandoned = false;
        }
        Err(changing(self.dir))
    }

    /// Returns the volume, if its claim has this name.
    fn owned(&self, claim: Claim) -> Result<CreationState, Failure> {
        let (dir, name) = (self.dir, &self.order.at.name);
        if matches!(
            claim.state,
            State::Retained | State::Placing | State::Archived | State::Replaced
        ) {
            return Err(Failure::incompatible(format!(
                "{self}: {}; move the directory away, and repeat the call, or create a \
                 PersistentVolume for it by hand",
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
        if claim.state.is_unknown() && !self.is_own(&claim) {
            return Err(Failure::incompatible(format!(
                "name {name:?}: was begun as {}, and not as {}; choose another name",
                origin(claim.of.source.as_deref()),
                origin(self.source)
            )));
        }
        match claim.state {
            state if state.is_unknown() => Ok(CreationState::Creating(claim)),
            State::Ready if self.tree.is_directory(dir)? => Ok(CreationState::Complete(Seen {
                bytes: claim.of.bytes,
                is_deleting: false,
                source: claim.of.source,
            })),
            State::Ready => Err(Failure::precondition(format!(
                "name {name:?}: its directory {dir} is missing in the share; restore it, or delete \
                 the volume"
            ))),
            _ => Err(Failure::busy(format!(
                "name {name:?}: the volume of that name is being deleted"
            ))),
        }
    }

    /// Whether an equal call has made the claim, so that this call can continue it.
    fn is_own(&self, claim: &Claim) -> bool {
        claim.state != State::Dropping
            && claim.of.name == self.order.at.name
            && claim.of.source.as_deref() == self.source
    }

    /// Refuses a directory of another program, and a directory inside of such a directory.
    fn refuse_foreign(&self) -> Result<(), Failure> {
        let exists = self.tree.exists(self.dir)?;
        if exists && (!self.order.is_named_so || self.source.is_some()) {
            return Err(self.foreign());
        }
        if exists && let Some(archive) = snapshot_in(self.tree, self.dir)? {
            return Err(Failure::incompatible(format!(
                "{self}: has the archive {archive} of a snapshot; choose another name"
            )));
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

    fn complete(&self, claim: &Claim) -> Result<Seen, Failure> {
        match self.claims.hold_above(self.tree, self.dir, claim) {
            Err(failure) if failure.kind == Kind::Incompatible => {
                self.claims.remove(self.dir, claim)?;
                return Err(failure.rolled_back());
            }
            result => result?,
        }
        match self.make(claim) {
            Ok(()) => {}
            Err(Refusal::Foreign) => return self.refuse(claim),
            Err(Refusal::Error(failure, true)) if self.withdrawn(claim) => {
                return Err(failure.rolled_back());
            }
            Err(Refusal::Error(failure, _)) => return Err(failure),
        }
        let ready = self.claims.advance(self.dir, claim, State::Ready)?;
        Ok(Seen {
            bytes: ready.of.bytes,
            is_deleting: false,
            source: None,
        })
    }

    fn make(&self, claim: &Claim) -> Result<(), Refusal> {
        let shown = self.dir.to_string();
        let above = self.made()?;
        let directory = match tree::open(&above, self.dir.name(), &shown) {
            // A file or a link has the name.
            Err(error) if [Errno::NOTDIR, Errno::LOOP].contains(&error.errno) => {
                return Err(Refusal::Foreign);
            }
            result => result?,
        };
        let has_files = || list::entries(&directory, &shown).map(|found| !found.is_empty());
        if !self.order.is_named_so && has_files()? {
            return Err(Refusal::Foreign);
        }
        if let Some(mode) = self.order.permissions {
            let unfinished = |failure| Refusal::Error(failure, false);
            self.claims.check(self.dir, claim).map_err(unfinished)?;
            let set = tree::chmod(&directory, mode, &shown);
            set.map_err(|error| unfinished(error.into()))?;
        }
        Ok(())
    }

    /// Makes the directory, unless a file of any type has its name. Returns the directory above.
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

    /// Withdraws the claim after the server has refused the directory, so that a repeated call
    /// begins again. Returns whether that was possible.
    fn withdrawn(&self, claim: &Claim) -> bool {
        let is_there = match self.tree.exists(self.dir) {
            // A file or a link in the path also means that the directory does not exist.
            Err(error) => !is_missing(error.errno),
            Ok(is_there) => is_there,
        };
        !is_there && matches!(self.claims.remove(self.dir, claim), Ok(true))
    }

    /// Withdraws the claim on a directory that has files, or is no directory, unless another call
    /// has completed the volume.
    fn refuse(&self, claim: &Claim) -> Result<Seen, Failure> {
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
             it by hand"
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
