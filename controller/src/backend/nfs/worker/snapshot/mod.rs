//! Snapshots: archives of volumes, `NAME/VOLUME.tar.gz` in the share, as csi-driver-nfs creates
//! them. An archive is written to `.belay/snapshots` and synced to the server's disk, and then its
//! final name is created as a hard link, which fails if the name exists. Therefore an archive with
//! its final name is complete, and is never replaced.
//!
//! The server may execute the last request of a killed worker late. The late request either creates
//! the final name of a complete archive, or fails: the next call first removes the temporary files
//! of earlier calls, and a deletion removes these files before the archive.

mod found;
mod mark;
mod output;
mod restore;
mod temporary;
mod writer;

use super::super::call::{Archived, Copied, NewSnapshot, SnapshotSeen};
use super::copy::report::Report;
use super::error::{at, is_final};
use super::list;
use super::original::Original;
use super::own::refuse_nested;
use super::tree::{self, Tree, alive};
use belay_server::call::{Failure, Kind};
use found::SUFFIXES;
pub(super) use found::Snapshot;
use mark::Mark;
use output::Output;
use rustix::fs::{AtFlags, FileType};
use rustix::io::{Errno, retry_on_intr};
use std::os::fd::OwnedFd;
use temporary::{Temporaries, Temporary};
use writer::Writer;

/// Creates the snapshot, or returns the existing snapshot. `from` is the share of the volume.
///
/// # Errors
/// Returns `Incompatible` if another snapshot or a volume has the name; `NotFound` if the volume
/// does not exist or is deleted meanwhile; `Precondition` if the volume has files that cannot be
/// archived, or another program has left an incomplete archive; `Quota` if the server has no space.
/// After these errors, no file of the snapshot is left behind.
pub(super) fn create(
    tree: &Tree,
    from: &Tree,
    order: &NewSnapshot,
    progress: &dyn Fn(&Copied),
) -> Result<SnapshotSeen, Failure> {
    let at = &order.at;
    refuse_other(tree, at)?;
    if let Some(found) = Snapshot::find(tree, at)? {
        return complete(&found, order, &mut Report::new(progress, &|| Ok(())));
    }
    let original = match Original::open(from, &order.from) {
        Err(failure) if is_final(failure.kind) => {
            forget_attempts(tree, at).map_err(Failure::may_be_running)?;
            return unless_made(tree, order, failure, progress);
        }
        original => original?,
    };
    let temporaries = Temporaries::make(tree, at)?;
    let made = temporaries.begin();
    let made = made.map_err(Failure::may_be_running)?;
    let refresh = || made.refresh();
    let mut report = Report::new(progress, &refresh);
    let written = write(&made, &original, order, &mut report);
    let placed = written.and_then(|()| place(tree, &made, order, &mut report));
    // Only the temporary name is removed: an archive that was linked keeps its final name.
    let removed = made.remove();
    match placed {
        Err(failure) if is_final(failure.kind) => {
            removed.map_err(|error| Failure::from(error).may_be_running())?;
            unless_made(tree, order, failure, progress)
        }
        result => result.map_err(Failure::may_be_running),
    }
}

/// Returns the failure as rolled back, or the archive that a late request of an earlier call has
/// created meanwhile. The caller must have removed the temporary files of earlier calls, so that no
/// archive appears later.
fn unless_made(
    tree: &Tree,
    order: &NewSnapshot,
    failure: Failure,
    progress: &dyn Fn(&Copied),
) -> Result<SnapshotSeen, Failure> {
    remove_empty(tree, &order.at).map_err(Failure::may_be_running)?;
    let now = tree.share().afresh()?;
    let found = Snapshot::find(&now, &order.at).map_err(Failure::may_be_running)?;
    match found {
        Some(found) => complete(&found, order, &mut Report::new(progress, &|| Ok(()))),
        None => Err(failure.rolled_back()),
    }
}

/// Removes the temporary files of earlier calls, so that a late request of an earlier call cannot
/// create the archive.
fn forget_attempts(tree: &Tree, at: &Archived) -> Result<(), Failure> {
    match Temporaries::find(tree, at)? {
        Some(temporaries) => temporaries.forget(),
        None => Ok(()),
    }
}

/// Removes the directory of a snapshot that was not created, if it is empty.
fn remove_empty(tree: &Tree, at: &Archived) -> Result<(), Failure> {
    if found::directory(tree, at)?.is_some() {
        let above = tree.open_above(&at.dir)?;
        tree::rmdir_if_empty(&above, at.dir.name(), &at.dir.to_string())?;
    }
    Ok(())
}

/// Deletes the archive of the snapshot. Returns an explanation if the directory of the snapshot
/// contains other files.
pub(super) fn delete(tree: &Tree, at: &Archived) -> Result<Option<String>, Failure> {
    if let Some(what) = found::of_volume(tree, &at.dir)? {
        return Ok(Some(format!("directory {} {what}", at.dir)));
    }
    let done = deleted(tree, at);
    done.map_err(Failure::may_be_running)
}

fn deleted(tree: &Tree, at: &Archived) -> Result<Option<String>, Failure> {
    forget_attempts(tree, at)?;
    let Some(directory) = found::directory(tree, at)? else {
        return match tree.find(&at.dir)? {
            // The link may lead to a directory to which an administrator has moved the archives.
            Some(found) if found.file_type != FileType::Directory => {
                Err(Failure::precondition(format!(
                    "snapshot {}: {} in the share is no directory, so its archive is not deleted; \
                     delete it by hand, remove {}, and repeat the call",
                    at.id, at.dir, at.dir
                )))
            }
            _ => Ok(None),
        };
    };
    for suffix in SUFFIXES {
        let name = format!("{}{suffix}", at.source);
        tree::unlink(&directory, &*name, &format!("{}/{name}", at.dir))?;
    }
    let dir = &at.dir;
    let above = tree.open_above(dir)?;
    Ok(
        match tree::rmdir_if_empty(&above, dir.name(), &dir.to_string())? {
            true => None,
            false => Some(format!(
                "directory {dir} has other files, which are no part of the snapshot"
            )),
        },
    )
}

/// Returns an existing snapshot, after a check: an archive with a mark must be of the requested
/// volume, and an archive without a mark must be complete.
fn complete(
    found: &Snapshot,
    order: &NewSnapshot,
    report: &mut Report<'_>,
) -> Result<SnapshotSeen, Failure> {
    match &found.mark {
        Some(mark) if mark.is_of(&order.from.id) => {}
        Some(mark) => {
            return Err(Failure::incompatible(format!(
                "name {:?}: is that of a snapshot of {mark}; choose another name",
                order.at.dir.name(),
            )));
        }
        None => found.verify(|| report.beat())?,
    }
    Ok(found.seen())
}

/// Refuses a directory that belongs to another snapshot, or to a volume.
fn refuse_other(tree: &Tree, at: &Archived) -> Result<(), Failure> {
    let dir = &at.dir;
    let refused = |why: &str| {
        let name = dir.name();
        Err(Failure::incompatible(format!(
            "name {name:?}: {why}; choose another name"
        )))
    };
    if let Some(what) = found::of_volume(tree, dir)? {
        return refused(&format!("directory {dir} {what}"));
    }
    refuse_nested(tree, dir, [dir.clone()])?;
    match tree.find(dir)?.map(|found| found.file_type) {
        None => return Ok(()),
        Some(FileType::Directory) => {}
        Some(_) => return refused(&format!("{dir} exists in the share, and is no directory")),
    }
    // The directory of the snapshot may have been removed since.
    let Some(directory) = tree.open_directory(dir)? else {
        return Ok(());
    };
    let own = SUFFIXES.map(|suffix| format!("{}{suffix}", at.source));
    let mut others = list::names(&directory, &dir.to_string())?.into_iter();
    match others.find(|name| !own.contains(name)) {
        None => Ok(()),
        Some(other) => refused(&format!(
            "directory {dir} has the file {other:?}, so it is that of another snapshot or volume"
        )),
    }
}

/// Writes the whole archive, and syncs it to the server's disk.
fn write(
    made: &Temporary<'_>,
    original: &Original<'_>,
    order: &NewSnapshot,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let mark = Mark::now(&order.from.id);
    let shown = order.at.dir.to_string();
    let mut writer = Writer::new(Output::new(made.open()?, &mark, &shown));
    original.read(&mut writer, report)?;
    writer.end()?;
    original.check()
}

/// Restores the snapshot to a directory. In `links`, a hard link to each file with several names is
/// created.
///
/// # Errors
/// Returns `NotFound` if the snapshot does not exist; the errors of [`restore::restore`].
pub(super) fn restore(
    tree: &Tree,
    at: &Archived,
    into: (&OwnedFd, &OwnedFd),
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let missing = || Failure::not_found(format!("snapshot {}: does not exist", at.id));
    let found = Snapshot::find(tree, at)?.ok_or_else(missing)?;
    restore::restore(&found, into, report)
}

/// Creates the final name of the archive, unless another call has already created it.
fn place(
    tree: &Tree,
    made: &Temporary<'_>,
    order: &NewSnapshot,
    report: &mut Report<'_>,
) -> Result<SnapshotSeen, Failure> {
    let Archived { dir, source, .. } = &order.at;
    let shown = dir.to_string();
    let above = tree.open_above(dir)?;
    match tree::make_volume(&above, dir) {
        Err(error) if error.errno == Errno::EXIST => {}
        result => result?,
    }
    // The directory may belong to a different snapshot by now.
    refuse_other(tree, &order.at)?;
    let directory = tree::open(&above, dir.name(), &shown)?;
    let name = format!("{source}{}", SUFFIXES[0]);
    let link = || {
        alive()?;
        made.link(&directory, &name, AtFlags::empty())
    };
    let linked = retry_on_intr(link);
    match linked {
        // A complete archive has the name: the archive of this call, whose response was lost, or
        // the archive of another call.
        Ok(()) | Err(Errno::EXIST | Errno::NOENT | Errno::STALE) => {}
        // For a file of this process, EPERM means that the filesystem has no hard links (link(2)).
        Err(errno @ (Errno::PERM | Errno::OPNOTSUPP)) => {
            let failure = Failure::from(at("linkat", &shown)(errno));
            return Err(Failure::precondition(format!(
                "snapshot {}: the server's filesystem has no hard links, by which an archive gets \
                 its name: {}",
                order.at.id, failure.message
            )));
        }
        Err(errno) => return Err(at("linkat", &shown)(errno).into()),
    }
    let found = Snapshot::find(tree, &order.at)?;
    let found = found.ok_or_else(|| {
        Failure::new(
            Kind::Busy,
            format!(
                "snapshot {}: another call deletes it; repeat the call",
                order.at.id
            ),
        )
    })?;
    let seen = complete(&found, order, report)?;
    report.end();
    Ok(seen)
}
