//! Which volume a name means where the storage takes a name twice. An answered volume is never
//! deleted: only the one that this call has made, before it is answered.

use super::wait::{settled, still_busy};
use crate::backend::{Backend, Phase, Progress, Volume};
use belay_server::call::Failure;
use belay_server::request::{Name, VolumeId};

/// The volume of that name, once the storage is done with it. Of several it is the one with the
/// lowest id, since clocks differ, that has not failed.
///
/// # Errors
/// Those of the backend.
pub(in crate::operation) async fn by_name(
    backend: &dyn Backend,
    name: &Name,
) -> Result<Option<Volume>, Failure> {
    match first(backend, name).await? {
        None => Ok(None),
        Some(volume) => at_rest(backend, volume).await.map(Some),
    }
}

/// What this call has made, once it is ready. If another controller has made a volume of that name
/// meanwhile, both choose the same one.
///
/// # Errors
/// Why it failed, rolled back: it is deleted then.
pub(in crate::operation) async fn made(
    backend: &dyn Backend,
    name: &Name,
    made: Volume,
) -> Result<Volume, Failure> {
    let own = at_rest(backend, made).await?;
    if backend.names_are_unique() {
        return Ok(own);
    }
    let other = first(backend, name)
        .await
        .map_err(Failure::may_be_running)?;
    let comes_first = |other: &Volume| other.id < own.id || other.id != own.id && is_lost(&own);
    if let Some(other) = other.filter(comes_first) {
        let other = at_rest(backend, other).await?;
        if !is_lost(&other) {
            withdraw(backend, &own.id).await?;
            return Ok(other);
        }
    }
    match own.phase {
        Phase::Failed(why) => {
            withdraw(backend, &own.id).await?;
            Err(why.rolled_back())
        }
        _ => Ok(own),
    }
}

async fn first(backend: &dyn Backend, name: &Name) -> Result<Option<Volume>, Failure> {
    let found = backend.find(name.clone()).await?;
    if found.len() > 1 {
        let ids: Vec<_> = found.iter().map(|volume| volume.id.as_str()).collect();
        tracing::warn!(
            name = name.as_str(),
            ?ids,
            "several volumes have one name; the first is used, the others are left alone"
        );
    }
    let found = found.into_iter();
    Ok(found.min_by(|a, b| (is_lost(a), &a.id).cmp(&(is_lost(b), &b.id))))
}

fn is_lost(volume: &Volume) -> bool {
    matches!(volume.phase, Phase::Failed(_) | Phase::Deleting)
}

/// The volume, once the storage is done with it; with the context that its creation answered, which
/// a look may not show.
async fn at_rest(backend: &dyn Backend, volume: Volume) -> Result<Volume, Failure> {
    if !matches!(volume.phase, Phase::Busy(_) | Phase::Deleting) {
        return Ok(volume);
    }
    let settled = settled(backend, &volume.id).await?;
    let mut settled = settled
        .ok_or_else(|| Failure::busy(format!("volume {}: is gone; repeat the call", volume.id)))?;
    settled.context = settled.context.or(volume.context);
    Ok(settled)
}

/// Deletes what this call has made.
async fn withdraw(backend: &dyn Backend, id: &VolumeId) -> Result<(), Failure> {
    let deleted = backend.delete(id.clone()).await;
    match deleted.map_err(Failure::may_be_running)? {
        Progress::Done(()) => Ok(()),
        Progress::Begun => match settled(backend, id).await? {
            None => Ok(()),
            Some(_) => Err(still_busy(id)),
        },
    }
}
