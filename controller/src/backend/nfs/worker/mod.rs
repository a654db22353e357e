//! The worker process: this program, started again for one call. The process mounts the share for
//! itself. The mount has no path, so it is not visible to other processes, and the kernel removes
//! it when the process exits. Any system call may wait for the server forever; the controller then
//! kills the process. Therefore, if the process is killed during any system call, a repeated call
//! must be able to continue from the state on the server.

mod above;
mod archive;
mod claim;
mod claims;
mod copy;
mod create;
mod delete;
mod deletion;
mod error;
mod fill;
mod layout;
mod list;
mod mount;
mod original;
mod own;
mod remove;
mod snapshot;
mod tar;
#[cfg(test)]
mod tests;
mod trash;
mod tree;

use super::call::{BEGIN, Call, Copied, Done, ExistingVolume, Owned, Said, Work};
use belay_server::call::Failure;
use belay_server::helper::{self, Parent};
use claim::State;
use claims::{Claims, Occupancy};
use copy::report::Report;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tree::Tree;

/// The command-line argument with which this program runs as a worker process. `--help` does not
/// list the argument.
pub(super) const ARGUMENT: &str = "--nfs-worker-process";
/// The file mode creation mask (umask(2)) of csi-driver-nfs.
const MASK: u32 = 0o022;

/// Maximum time for which a deletion removes files before it returns `Busy`.
const REMOVING_MAX: Duration = Duration::from_secs(40);
/// Time that a deletion leaves for its response: a deletion stops this long before the deadline of
/// its call. The deadline includes the time for which the call waits for a slot.
const ANSWERING_MAX: Duration = Duration::from_secs(10);

/// Runs the worker process: reads its call, performs the work, and reports the result. Returns
/// `None` if this process is not a worker process.
#[must_use]
pub fn run() -> Option<ExitCode> {
    helper::serve(ARGUMENT, |controller| {
        let call = controller.receive()?;
        rustix::process::umask(rustix::fs::Mode::from_bits_retain(MASK));
        controller.send(&Said::Answer(answer(&call, controller)), None)
    })
}

fn answer(call: &Call, controller: &Parent) -> Result<Done, Failure> {
    let begun = Instant::now();
    let tree = Tree::mount(&call.mount)?;
    let other = call.work.other_share().map(Tree::mount).transpose()?;
    // After this message, the controller assumes that the call may have an effect.
    let may_begin = controller.send(&Said::Mounted, None);
    let may_begin = may_begin.and_then(|()| controller.receive::<String>());
    if !may_begin.is_ok_and(|line| line == BEGIN) {
        return Err(Failure::busy(
            "the call was not begun: the controller has cancelled it",
        ));
    }
    // Ignore an error: the controller kills a process whose messages it cannot read.
    let progress = |copied: &Copied| {
        let said = Said::Copied(copied.clone());
        controller.send(&said, None).unwrap_or_default();
    };
    let end = begun + REMOVING_MAX.min(call.within.saturating_sub(ANSWERING_MAX));
    let other = other.as_ref().unwrap_or(&tree);
    perform((&tree, other), &call.work, end, &progress)
}

/// Performs the work in the share `tree`. `other` is the share of the source. A deletion stops at
/// `end`.
fn perform(
    (tree, other): (&Tree, &Tree),
    work: &Work,
    end: Instant,
    progress: &dyn Fn(&Copied),
) -> Result<Done, Failure> {
    match work {
        Work::Create(order) => {
            let made = create::create(tree, order, end);
            made.map(|seen| Done::Volume(Some(seen)))
        }
        Work::Copy(order) => {
            let (from, volume) = (&order.from, &order.volume);
            let fill = |into: (&_, &_), report: &mut Report<'_>| {
                original::clone(other, from, into, report)
            };
            let made = fill::create(tree, volume, &from.id, progress, &fill);
            made.map(|seen| Done::Volume(Some(seen)))
        }
        Work::Restore(order) => {
            let (from, volume) = (&order.from, &order.volume);
            let fill = |into: (&_, &_), report: &mut Report<'_>| {
                snapshot::restore(other, from, into, report)
            };
            let made = fill::create(tree, volume, &from.origin(), progress, &fill);
            made.map(|seen| Done::Volume(Some(seen)))
        }
        Work::Delete(order) => delete::delete(tree, order, end).map(Done::Deleted),
        Work::Lookup(at) => lookup(tree, at).map(Done::Volume),
        Work::Cut(order) => {
            let made = snapshot::create(tree, other, order, progress);
            made.map(|seen| Done::Snapshot(Some(seen)))
        }
        Work::Discard(at) => snapshot::delete(tree, at).map(Done::Deleted),
        Work::Measure => Ok(Done::Measured(tree.free(None)?.bytes)),
        Work::Inspect(at) => {
            let found = lookup(tree, at)?.filter(|found| !found.is_deleting);
            let free = found.map(|_| tree.free(Some(&at.dir))).transpose()?;
            Ok(Done::Inspected(free))
        }
        Work::Find(at) => {
            let found = snapshot::Snapshot::find(tree, at)?;
            Ok(Done::Snapshot(found.map(|found| found.seen())))
        }
    }
}

/// Returns the volume, or `None` if the volume does not exist or another volume has its directory.
fn lookup(tree: &Tree, at: &Owned) -> Result<Option<ExistingVolume>, Failure> {
    let held = Claims::find(tree)?.map(|claims| claims.read(&at.dir));
    let (bytes, source) = match held.transpose()? {
        None | Some(Occupancy::Free | Occupancy::Above) if !at.adopts => return Ok(None),
        None | Some(Occupancy::Free | Occupancy::Above) => (0, None),
        Some(Occupancy::By(claim)) if claim.of.name != at.name => return Ok(None),
        Some(Occupancy::By(claim)) => match claim.state {
            State::Ready => (claim.of.bytes, claim.of.source),
            State::Deleting | State::Gone => {
                return Ok(Some(ExistingVolume {
                    bytes: claim.of.bytes,
                    is_deleting: true,
                    source: claim.of.source,
                }));
            }
            // The volume is not yet complete, or was deleted.
            _ => return Ok(None),
        },
    };
    let is_there = tree.is_directory(&at.dir)?;
    Ok(is_there.then_some(ExistingVolume {
        bytes,
        is_deleting: false,
        source,
    }))
}
