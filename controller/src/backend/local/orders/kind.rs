//! The two kinds of objects that a store executes, with the methods of the disk for each.

use super::super::delete::Removal;
use super::super::store::Store;
use crate::backend::local::record::{Record, State as VolumeState};
use crate::backend::local::snapshot_record::SnapshotState;
use crate::kubernetes::{
    LocalSnapshot, LocalVolume, Mode, Parsed, Phase, Resource, SPEC_VERSION, SnapshotSpec,
    SnapshotStatus, Source, VolumeSpec, VolumeStatus, rfc3339,
};
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, SnapshotId, VolumeId};
use std::time::{SystemTime, UNIX_EPOCH};

/// The request in an object, in terms that both kinds have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The requested size in bytes; `None` for a snapshot.
    pub(super) bytes: Option<u64>,
    /// Whether the object is for an existing file, so that none is created.
    pub(super) is_adopted: bool,
    /// The number of the attempt to remove the object; `None` if it must be kept.
    pub(super) remove: Option<u64>,
}

/// The reported state of an object, in terms that both kinds have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) phase: Phase,
    pub(super) observed_generation: Option<i64>,
    pub(super) bytes: Option<u64>,
    pub(super) refused_removal: Option<u64>,
    /// Whether the time of a snapshot is reported.
    pub(super) has_time: bool,
    /// The message of the reported failure.
    pub(super) failure: Option<String>,
}

/// A new status.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) phase: Phase,
    pub(super) observed_generation: Option<i64>,
    /// The size, and for a snapshot the time; `None` if there is no file.
    pub(super) state: Option<State>,
    pub(super) refused_removal: Option<u64>,
    pub(super) failure: Option<Failure>,
}

/// The properties of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) bytes: u64,
    /// The time at which a snapshot was taken; 1970 for a volume.
    pub(super) time: SystemTime,
}

/// The content of the disk for an ID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// There is no record. A file without a record is not used.
    Nothing,
    /// The intent is recorded. A file may exist, but is incomplete.
    Intended,
    /// The snapshot is taken, and a copy fills its file.
    Copying(State),
    /// The copy that fills the file has failed.
    Failed(Failure),
    /// The file is complete.
    Whole(State),
    /// The file is being deleted.
    Deleting,
}

/// A kind of objects for which a store keeps files. The methods with a [`Store`] block.
pub(super) trait Kept: Resource {
    /// The word for the kind in messages.
    const WORD: &'static str;

    /// Returns the version of the spec.
    fn version(spec: &Self::Spec) -> u32;

    /// Returns the ID, the topology value, and the name of the disk.
    fn place(spec: &Self::Spec) -> Place<'_>;

    /// Whether creating the file may copy data for a long time.
    fn copies(spec: &Self::Spec) -> bool;

    /// Returns the request in the spec.
    fn wanted(spec: &Self::Spec) -> Wanted;

    /// Returns the reported state.
    fn told(status: &Self::Status) -> Told;

    /// Returns the status with this content. `told` is the status before.
    fn status(report: Report, told: Option<&Self::Status>) -> Self::Status;

    /// Returns the content of the disk for an ID.
    fn held(store: &Store, id: &str) -> Result<Held, Failure>;

    /// Records the intent to create the file, unless there is a record.
    fn intend(store: &Store, spec: &Self::Spec) -> Result<(), Failure>;

    /// Creates the file of a recorded intent. If this fails, the record remains.
    fn make(store: &Store, spec: &Self::Spec) -> Result<(), Failure>;

    /// Queues the copy that fills the file, unless it is queued or has failed.
    fn resume(store: &Store, spec: &Self::Spec);

    /// Completes the record of a copy that has failed after its file was complete. Returns whether
    /// the file was complete.
    fn complete(store: &Store, id: &str) -> Result<bool, Failure>;

    /// Removes an incomplete file and its record.
    fn abandon(store: &Store, id: &str) -> Result<(), Failure>;

    /// Expands a complete file to at least `bytes`.
    fn grow(store: &Store, id: &str, bytes: u64) -> Result<(), Failure>;

    /// Checks whether the file can be removed now, and reserves it until the result is dropped.
    fn reserve(store: &Store, id: &str) -> Result<Removal, Failure>;

    /// Returns the error for a file that is in use, and asks the node agent to unstage the file.
    fn refuse_used(store: &Store, id: &str) -> Failure;

    /// Removes the file and its record. Succeeds if there is none.
    fn remove(store: &Store, id: &str, reserved: Removal) -> Result<(), Failure>;
}

/// Returns the spec if this release knows its version and all its fields.
///
/// # Errors
/// Returns the reason.
pub(super) fn known<K: Kept>(spec: &Parsed<K::Spec>) -> Result<&K::Spec, String> {
    match spec {
        Parsed::Unknown(why) => Err(why.clone()),
        Parsed::Known(spec) if K::version(spec) > SPEC_VERSION => Err(format!(
            "version {} is newer than {SPEC_VERSION}",
            K::version(spec)
        )),
        Parsed::Known(spec) => Ok(spec),
    }
}

/// The ID of a volume or snapshot, its topology value, and the name of its disk.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) id: &'a str,
    pub(super) place: &'a str,
    pub(super) disk: &'a str,
}

/// Whether the same step may succeed later without a change by a person.
pub(super) fn may_pass(failure: &Failure) -> bool {
    matches!(
        failure.kind,
        Kind::Busy | Kind::Unreachable | Kind::Timeout | Kind::System | Kind::Bug
    )
}

impl Kept for LocalVolume {
    const WORD: &'static str = "volume";

    fn version(spec: &VolumeSpec) -> u32 {
        spec.version
    }

    fn place(spec: &VolumeSpec) -> Place<'_> {
        let VolumeSpec {
            id, place, disk, ..
        } = spec;
        Place { id, place, disk }
    }

    fn copies(spec: &VolumeSpec) -> bool {
        spec.source.is_some()
    }

    fn wanted(spec: &VolumeSpec) -> Wanted {
        Wanted {
            bytes: Some(spec.bytes),
            is_adopted: spec.adopt,
            remove: spec.remove,
        }
    }

    fn told(status: &VolumeStatus) -> Told {
        Told {
            phase: status.phase,
            observed_generation: status.observed_generation,
            bytes: status.bytes,
            refused_removal: status.refused_removal,
            has_time: false,
            failure: message(status.failure.as_ref()),
        }
    }

    fn status(report: Report, told: Option<&VolumeStatus>) -> VolumeStatus {
        let told = told.filter(|_| report.phase == Phase::Ready);
        VolumeStatus {
            phase: report.phase,
            observed_generation: report.observed_generation,
            bytes: report.state.map(|state| state.bytes),
            refused_removal: report.refused_removal,
            failure: report.failure.map(Parsed::Known),
            conditions: told.and_then(|told| told.conditions.clone()),
        }
    }

    fn held(store: &Store, id: &str) -> Result<Held, Failure> {
        let Some(record) = store.ledger.get(id)? else {
            return Ok(Held::Nothing);
        };
        Ok(match record.state {
            VolumeState::Creating => Held::Intended,
            VolumeState::Deleting => Held::Deleting,
            VolumeState::Ready => Held::Whole(State {
                bytes: record.bytes,
                time: UNIX_EPOCH,
            }),
        })
    }

    fn intend(store: &Store, spec: &VolumeSpec) -> Result<(), Failure> {
        let usage = match (spec.usage.mode, &spec.usage.filesystem) {
            (Mode::Block, _) => crate::backend::Usage::Block,
            (Mode::Filesystem, fs_type) => {
                crate::backend::Usage::Filesystem(fs_type.clone().unwrap_or_default())
            }
        };
        let source = spec.source.as_ref().map(content).transpose()?;
        let record = Record::creating(&spec.name, spec.bytes, &usage, source.as_ref());
        store.intend_as(&spec.id, &record)
    }

    fn make(store: &Store, spec: &VolumeSpec) -> Result<(), Failure> {
        let source = spec.source.as_ref().map(content).transpose()?;
        store.make_intended(&spec.id, source.as_ref())
    }

    fn resume(_: &Store, _: &VolumeSpec) {}

    fn complete(_: &Store, _: &str) -> Result<bool, Failure> {
        Ok(false)
    }

    fn abandon(store: &Store, id: &str) -> Result<(), Failure> {
        store.abandon(id)
    }

    fn grow(store: &Store, id: &str, bytes: u64) -> Result<(), Failure> {
        store.resize(id, bytes).map(drop)
    }

    fn reserve(store: &Store, id: &str) -> Result<Removal, Failure> {
        store.reserve(id)
    }

    fn refuse_used(store: &Store, id: &str) -> Failure {
        store.refuse_used(id)
    }

    fn remove(store: &Store, id: &str, reserved: Removal) -> Result<(), Failure> {
        store.remove_reserved(id, reserved)
    }
}

impl Kept for LocalSnapshot {
    const WORD: &'static str = "snapshot";

    fn version(spec: &SnapshotSpec) -> u32 {
        spec.version
    }

    fn place(spec: &SnapshotSpec) -> Place<'_> {
        let SnapshotSpec {
            id, place, disk, ..
        } = spec;
        Place { id, place, disk }
    }

    fn copies(_: &SnapshotSpec) -> bool {
        true
    }

    fn wanted(spec: &SnapshotSpec) -> Wanted {
        Wanted {
            bytes: None,
            is_adopted: spec.adopt,
            remove: spec.remove,
        }
    }

    fn told(status: &SnapshotStatus) -> Told {
        Told {
            phase: status.phase,
            observed_generation: status.observed_generation,
            bytes: status.bytes,
            refused_removal: status.refused_removal,
            has_time: status.time.is_some(),
            failure: message(status.failure.as_ref()),
        }
    }

    fn status(report: Report, _: Option<&SnapshotStatus>) -> SnapshotStatus {
        SnapshotStatus {
            phase: report.phase,
            observed_generation: report.observed_generation,
            bytes: report.state.map(|state| state.bytes),
            time: report.state.map(|state| rfc3339(state.time)),
            refused_removal: report.refused_removal,
            failure: report.failure.map(Parsed::Known),
        }
    }

    fn held(store: &Store, id: &str) -> Result<Held, Failure> {
        let Some(record) = store.ledger.snapshot(id)? else {
            return Ok(Held::Nothing);
        };
        let state = State {
            bytes: record.bytes,
            time: record.time(),
        };
        Ok(match record.state {
            SnapshotState::Cutting => Held::Intended,
            SnapshotState::Copying => match store.copies.failure(id) {
                Some(failure) => Held::Failed(failure),
                None => Held::Copying(state),
            },
            SnapshotState::Ready => Held::Whole(state),
            SnapshotState::Deleting => Held::Deleting,
        })
    }

    fn intend(store: &Store, spec: &SnapshotSpec) -> Result<(), Failure> {
        store.intend_snapshot_as(&spec.id, &spec.name, &spec.volume)
    }

    fn make(store: &Store, spec: &SnapshotSpec) -> Result<(), Failure> {
        store.make_intended_snapshot(&spec.id, &spec.volume)
    }

    fn resume(store: &Store, spec: &SnapshotSpec) {
        store.copies.resume(&spec.id, &spec.volume);
    }

    fn complete(store: &Store, id: &str) -> Result<bool, Failure> {
        let is_complete = store.complete_whole_snapshot(id)?.is_some();
        if is_complete {
            store.copies.end(id);
        }
        Ok(is_complete)
    }

    fn abandon(store: &Store, id: &str) -> Result<(), Failure> {
        store.abandon_snapshot(id)
    }

    fn grow(_: &Store, id: &str, _: u64) -> Result<(), Failure> {
        Err(Failure::bug(format!("snapshot {id}: cannot grow")))
    }

    fn reserve(store: &Store, id: &str) -> Result<Removal, Failure> {
        store.reserve_snapshot(id)
    }

    fn refuse_used(_: &Store, id: &str) -> Failure {
        Failure::bug(format!("snapshot {id}: in use"))
    }

    fn remove(store: &Store, id: &str, _: Removal) -> Result<(), Failure> {
        store.finish_discard(id)
    }
}

fn message(failure: Option<&Parsed<Failure>>) -> Option<String> {
    failure?.known().map(|failure| failure.message.clone())
}

/// Returns the source of a copy.
fn content(source: &Source) -> Result<ContentSource, Failure> {
    Ok(match source {
        Source::Snapshot(id) => ContentSource::Snapshot(SnapshotId::new(id.as_str())?),
        Source::Volume(id) => ContentSource::Volume(VolumeId::new(id.as_str())?),
    })
}
