//! Copies a volume: `Creation` claims the directory as *copying*, and then
//!
//! 1. the files are copied to `copy.<nonce of the attempt>` in the trash of the claim, and are on
//!    the server's disk; the source must then be the volume that it was;
//! 2. the copy is renamed to `copy.complete` there, and from there to the directory of the volume;
//! 3. the trash is removed, the claim becomes *ready*, and the caller gets its answer.
//!
//! A call that finds a copy of an earlier one that is not complete removes it and begins again: its
//! files may be of any age, and a server that was restarted may have lost what they contain. It
//! gets another name first. So a request of the earlier call that the server executes late
//! completes the copy or finds nothing; a name is never given to a part of one.

pub(super) mod attributes;
pub(super) mod content;
mod place;
pub(super) mod report;
pub(super) mod source;
pub(super) mod walk;

use super::super::call::{Archived, Copied, NewVolume, Seen, Source};
use super::super::path::Dir;
use super::claim::{Claim, State, nonce};
use super::claims::Claims;
use super::create::{Claimed, Creation};
use super::delete::Deletion;
use super::list;
use super::own::refuse_nested;
use super::remove::{TRASH, Trash};
use super::snapshot;
use super::tree::{self, Tree};
use belay_server::call::{Failure, Kind};
pub(super) use place::COMPLETE;
use report::Report;
use source::Original;
use std::time::{Duration, Instant};

/// How long files are removed between two reports.
const SLICE: Duration = Duration::from_secs(10);
/// How long a copy that was abandoned is removed, for the sake of its space.
const SWEEP_MAX: Duration = Duration::from_secs(20);

/// What is copied, and the share that it is in.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Volume(&'a Tree, &'a Source),
    Snapshot(&'a Tree, &'a Archived),
}

impl Origin<'_> {
    /// As it is recorded.
    fn recorded(&self) -> String {
        match self {
            Self::Volume(_, source) => source.id.clone(),
            Self::Snapshot(_, snapshot) => snapshot.origin(),
        }
    }
}

/// Makes the copy, or finds it.
///
/// # Errors
/// Those of a creation; `NotFound` if the source does not exist, or is deleted meanwhile;
/// `Precondition` if it has what cannot be copied. After all of these nothing is left of the copy.
pub(super) fn copy(
    tree: &Tree,
    volume: &NewVolume,
    from: Origin<'_>,
    progress: &dyn Fn(&Copied),
) -> Result<Seen, Failure> {
    let dir = &volume.at.dir;
    let origin = from.recorded();
    let creation = Creation {
        tree,
        claims: Claims::open(tree)?,
        order: volume,
        dir,
        source: Some(&origin),
        end: Instant::now() + SWEEP_MAX,
    };
    let claim = match creation.claimed()? {
        Claimed::Complete(seen) => return Ok(seen),
        Claimed::Creating(claim) => claim,
    };
    let refresh = || creation.claims.refresh(dir, &claim);
    let mut copy = Copy {
        creation: &creation,
        from,
        claim: &claim,
        report: Report::new(progress, &refresh),
    };
    match copy.complete() {
        Err(failure) if leaves_nothing(failure.kind) => {
            copy.withdraw().map_err(Failure::may_be_running)?;
            Err(failure.rolled_back())
        }
        result => result.map_err(Failure::may_be_running),
    }
}

/// Whether a repeated call would fail in the same way.
pub(super) fn leaves_nothing(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::NotFound | Kind::Incompatible | Kind::Precondition | Kind::Quota
    )
}

struct Copy<'a> {
    creation: &'a Creation<'a>,
    from: Origin<'a>,
    claim: &'a Claim,
    report: Report<'a>,
}

impl Copy<'_> {
    fn complete(&mut self) -> Result<Seen, Failure> {
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
            // That of a copy that was removed.
            trash.forget_notes()?;
            self.remove(&trash)?;
            self.attempt(&trash)?;
        }
        if !trash.has_placed(tree, dir)? {
            trash.place_copy(creation, claim)?;
        }
        // It has links to files of the volume.
        self.remove(&trash)?;
        let ready = claims.advance(dir, claim, State::Ready)?;
        self.report.end();
        // What is left of it has no content, and goes with the volume at the latest.
        trash.empty(Instant::now() + SLICE).unwrap_or_default();
        trash.remove().unwrap_or_default();
        Ok(Seen {
            bytes: ready.of.bytes,
            is_deleting: false,
            source: ready.of.source,
        })
    }

    /// Copies all files, and gives the copy its name in the trash.
    fn attempt(&mut self, trash: &Trash) -> Result<(), Failure> {
        // Before: one that does not exist needs no directories.
        let source = match self.from {
            Origin::Volume(tree, source) => Opened::Volume(Original::open(tree, source)?, source),
            Origin::Snapshot(tree, snapshot) => {
                let found = snapshot::Found::find(tree, snapshot)?;
                Opened::Snapshot(found.ok_or_else(|| missing(snapshot))?)
            }
        };
        let (name, links) = place::attempt(&nonce()?);
        let target = tree::own(&trash.own, &name, &trash.shown)?;
        let links = tree::own(&trash.own, &links, &trash.shown)?;
        match &source {
            Opened::Volume(original, source) => {
                let shown = source.at.dir.to_string();
                let mut walk = walk::Walk::new(&links, &mut self.report);
                if let Err(failure) = walk.directory(&original.directory, &target, &shown) {
                    // What is removed is stale, and its failures say nothing of the server.
                    original.check()?;
                    return Err(failure);
                }
            }
            Opened::Snapshot(found) => {
                snapshot::restore(found, (&target, &links), &mut self.report)?;
            }
        }
        if let Some(mode) = self.creation.order.permissions {
            tree::chmod(&target, mode, &trash.shown)?;
        }
        tree::sync(&target, &trash.shown)?;
        if let Opened::Volume(original, _) = &source {
            original.check()?;
        }
        trash.name_complete(&name)
    }

    /// Removes what was moved to the trash.
    fn remove(&mut self, trash: &Trash) -> Result<(), Failure> {
        loop {
            let end = Instant::now() + SLICE;
            match trash.empty_except(end, place::is_note) {
                Err(failure) if failure.kind == Kind::Busy && Instant::now() >= end => {
                    self.report.beat()?;
                }
                result => return result,
            }
        }
    }

    /// Removes the copy and its claim.
    fn withdraw(&mut self) -> Result<(), Failure> {
        let Creation {
            tree, claims, dir, ..
        } = self.creation;
        // As in `uncopied`, but with reports of progress.
        let claim = claims.advance(dir, self.claim, State::Dropping)?;
        if let Some(trash) = Trash::find(claims, dir, &claim)? {
            trash.disarm()?;
            if !trash.has_placed(tree, dir)? {
                self.remove(&trash)?;
            }
        }
        discard(tree, dir, &claim, Instant::now() + SLICE)
    }

    /// Removes copies of the share that were abandoned: what they have copied takes up space. Those
    /// that cannot be removed are of no concern to this call.
    fn sweep(&mut self) {
        let Creation { tree, claims, .. } = self.creation;
        let end = Instant::now() + SWEEP_MAX;
        for (dir, claim) in abandoned(claims, self.claim).unwrap_or_default() {
            discard(tree, &dir, &claim, end).unwrap_or_default();
        }
    }
}

/// What is copied.
enum Opened<'a> {
    Volume(Original<'a>, &'a Source),
    Snapshot(snapshot::Found),
}

fn missing(snapshot: &Archived) -> Failure {
    Failure::not_found(format!("snapshot {}: does not exist", snapshot.id))
}

/// Copies that were withdrawn, or that no call has continued for an hour; without this one.
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
            && claim.is_copy_in_progress()
            && claims.is_abandoned(&dir, &claim)?
        {
            found.push((dir, claim));
        }
    }
    Ok(found)
}

/// Removes a copy that no caller knows, and its claim.
///
/// # Errors
/// `Busy` if files remain at `end`; those of the server.
pub(super) fn discard(tree: &Tree, dir: &Dir, claim: &Claim, end: Instant) -> Result<(), Failure> {
    let deletion = Deletion {
        tree,
        claims: Claims::open(tree)?,
        dir,
        end,
        removes_archived: false,
    };
    deletion.uncopied(claim)
}
