//! Decides and executes the steps for an object, one after the other.

use super::decide::{self, Step, View};
use super::entries::Entries;
use super::execute::OnDisk;
use super::kind::{Held, Kept, known};
use super::writes::{Outcome, RETRY, RETRY_MAX, Work};
use super::{Orders, Served};
use crate::kubernetes::Phase;
use belay_server::call::Failure;
use std::sync::Arc;

/// Works on the object until nothing must be done for it.
pub(super) async fn work<K: Kept>(orders: Arc<Orders>, entries: Arc<Entries<K>>, name: String) {
    let (mut last, mut pause) = (String::new(), RETRY);
    while let Some(current) = entries.current(&name) {
        let work = Work {
            orders: &orders,
            entries: &entries,
            current,
        };
        let outcome = step(&work).await;
        let is_failed = outcome.is_err();
        let outcome = outcome.unwrap_or_else(|failure| {
            if last != failure.message {
                tracing::warn!(object = name, "{}: {failure}", K::KIND);
                last = failure.message;
            }
            Outcome::Again(pause)
        });
        pause = match is_failed {
            true => RETRY_MAX.min(pause * 2),
            false => RETRY,
        };
        match outcome {
            Outcome::Next => {}
            Outcome::Again(pause) if entries.sleep(&name, pause).await => {}
            Outcome::Again(_) => pause = RETRY,
            Outcome::Rest if entries.rest(&name) => {
                orders.worked.notify_one();
                return;
            }
            Outcome::Rest => {}
        }
    }
}

/// Executes the next step for an object.
async fn step<K: Kept>(work: &Work<'_, K>) -> Result<Outcome, Failure> {
    let spec = match known::<K>(&work.object().spec) {
        Ok(spec) => spec.clone(),
        Err(why) => return step_unknown(work, &why).await,
    };
    let place = K::place(&spec);
    // The store of another place must not report a volume there as lost.
    let is_here = |disk: &&Served| !work.object().is_accepted() || disk.place == place.place;
    let Some(disk) = work.orders.served(place.disk).filter(is_here) else {
        return without_disk(work).await;
    };
    let local = Arc::clone(&disk.local);
    let on = OnDisk {
        id: place.id.to_owned(),
        spec: &spec,
        local: &local,
        work,
    };
    let held = match on.held().await {
        Ok(held) => held,
        Err(_) if may_release(work) => return work.release().await,
        Err(failure) => return Err(failure),
    };
    if work.current.is_gone {
        if held == Held::Intended
            && let Err(failure) = on.abandon().await
        {
            tracing::error!(object = work.name(), "{}: {failure}", K::KIND);
        }
        disk.notify();
        return Ok(Outcome::Rest);
    }
    on.execute(decide(work, &held), held, disk).await
}

/// Executes the step for an object whose disk is not served. An object can be deleted without its
/// disk, which keeps the file.
async fn without_disk<K: Kept>(work: &Work<'_, K>) -> Result<Outcome, Failure> {
    if may_release(work) {
        return work.release().await;
    }
    // An attempt to remove must not be executed when the disk is served much later.
    if let Some(attempt) = work.current.attempt {
        work.entries.bar(work.name(), attempt);
    }
    Ok(Outcome::Rest)
}

/// Whether the finalizer can be taken off without knowing the content of the disk.
fn may_release<K: Kept>(work: &Work<'_, K>) -> bool {
    let object = work.object();
    let told = object.known_status();
    let is_claimed = told.is_some_and(|told| K::told(told).phase == Phase::Removing);
    work.is_ending() && !work.current.is_gone && !is_claimed && object.is_accepted()
}

/// Executes the step for an object that this release does not understand.
async fn step_unknown<K: Kept>(work: &Work<'_, K>, why: &str) -> Result<Outcome, Failure> {
    match decide(work, &Held::Nothing) {
        Step::Refuse => {
            work.refuse(Failure::precondition(format!(
                "spec: {why}; update the store of the node to the release of the controller"
            )))
            .await
        }
        Step::Release => work.release().await,
        _ => Ok(Outcome::Rest),
    }
}

fn decide<K: Kept>(work: &Work<'_, K>, held: &Held) -> Step {
    let object = work.object();
    let told = object.known_status();
    let view = View {
        is_accepted: object.is_accepted(),
        is_ending: object.metadata.deletion_timestamp.is_some(),
        generation: object.metadata.generation,
        wanted: known::<K>(&object.spec).ok().map(K::wanted),
        told: told.map(K::told),
        barred: work.current.barred,
    };
    decide::next(&view, held)
}
