//! Converts objects to the types of the backend. Makes no calls.

use super::follow::Followed;
use super::item::about;
use super::meaning::{LOST, Meaning, meaning};
use super::{DEFAULT_DISK, DISK, Front, KEY};
use crate::backend::cloud::time;
use crate::backend::{Mark, Phase, Snapshot, Usage, Volume};
use crate::kubernetes::{
    LocalSnapshot, LocalVolume, Mode, Object, Parsed, Phase as Reported, Source,
};
use belay_contract::topology::Topology;
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Context, SnapshotId, VolumeId};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

impl Front {
    /// Returns all objects of a kind that have files and that this release knows, converted.
    pub(super) async fn shown<R: Followed, T>(
        &self,
        convert: impl Fn(&Object<R>) -> Result<T, Failure>,
    ) -> Result<Vec<T>, Failure> {
        R::cache(self).ready().await?;
        let mut all = R::cache(self).all();
        all.retain(|seen| {
            let state = meaning(&seen.object);
            !matches!(
                state,
                Meaning::Ordered | Meaning::Refused(_) | Meaning::Removed
            )
        });
        let shown = all.iter().filter_map(|seen| match convert(&seen.object) {
            Ok(shown) => Some(shown),
            Err(failure) => {
                tracing::warn!("not listed: {failure}");
                None
            }
        });
        Ok(shown.collect())
    }
}

/// Returns the phase of the volume or snapshot.
fn phase<R: super::item::Item>(object: &Object<R>) -> Phase {
    match meaning(object) {
        Meaning::Usable => Phase::Ready,
        Meaning::Ordered => Phase::Busy("waiting for its store".to_owned()),
        Meaning::Making => Phase::Busy("creating".to_owned()),
        Meaning::Removing | Meaning::Removed => Phase::Deleting,
        Meaning::Refused(why) => Phase::Failed(why),
        Meaning::Lost => Phase::Failed(Failure::precondition(LOST)),
        Meaning::Odd(why) => Phase::Busy(why),
    }
}

/// Returns the error for an object with a field that this release does not know.
fn unknown<R: super::item::Item>(object: &Object<R>, why: &str) -> Failure {
    Failure::new(Kind::Unreachable, about(object, why))
}

/// Converts the volume.
///
/// # Errors
/// Returns `Unreachable` if another release has written the object.
pub(super) fn volume(object: &Object<LocalVolume>) -> Result<Volume, Failure> {
    let spec = match &object.spec {
        Parsed::Known(spec) => spec,
        Parsed::Unknown(why) => return Err(unknown(object, why)),
    };
    let status = object.known_status();
    let source = spec.source.as_ref().map(|source| match source {
        Source::Snapshot(id) => SnapshotId::new(id).map(ContentSource::Snapshot),
        Source::Volume(id) => VolumeId::new(id).map(ContentSource::Volume),
    });
    let place = Topology::new(KEY, &spec.place);
    let place = place.map_err(|error| unknown(object, &error.to_string()))?;
    let disk = (spec.disk != DEFAULT_DISK).then(|| (DISK.to_owned(), spec.disk.clone()));
    Ok(Volume {
        name: Some(spec.name.clone()),
        bytes: status.and_then(|status| status.bytes).unwrap_or(spec.bytes),
        usage: Some(match spec.usage.mode {
            Mode::Block => Usage::Block,
            Mode::Filesystem => {
                Usage::Filesystem(spec.usage.filesystem.clone().unwrap_or_default())
            }
        }),
        context: Some(Context::new("volume_context", disk)?),
        source: source.transpose()?,
        place: Some(Arc::new(place)),
        parameters: vec![(DISK, spec.disk.clone())],
        ..Volume::new(VolumeId::new(&spec.id)?, phase(object))
    })
}

/// Converts the snapshot.
///
/// # Errors
/// Returns `Unreachable` if another release has written the object.
pub(super) fn snapshot(object: &Object<LocalSnapshot>) -> Result<Snapshot, Failure> {
    let spec = match &object.spec {
        Parsed::Known(spec) => spec,
        Parsed::Unknown(why) => return Err(unknown(object, why)),
    };
    let status = object.known_status();
    let taken = status.and_then(|status| time::seconds(status.time.as_deref()?));
    Ok(Snapshot {
        id: SnapshotId::new(&spec.id)?,
        name: Some(spec.name.clone()),
        phase: phase(object),
        mark: Mark::None,
        source: VolumeId::new(&spec.volume)?,
        bytes: status.and_then(|status| status.bytes).unwrap_or(0),
        created: UNIX_EPOCH + Duration::from_secs(taken.unwrap_or(0)),
        ready: status.is_some_and(|status| status.phase == Reported::Ready),
        damage: None,
    })
}
