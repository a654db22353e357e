//! Executes the step for an object on the disk that has its file.

use super::super::delete::Removal;
use super::super::{Local, UNSTAGE_PATIENCE, UNSTAGE_POLL};
use super::Served;
use super::decide::Step;
use super::kind::{Held, Kept, Report, State, may_pass};
use super::writes::{Outcome, RETRY, Work};
use crate::backend::measured::Verb;
use crate::kubernetes::{Change, FINALIZER, Phase};
use belay_server::call::Failure;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The interval between two checks of a copy that fills a file.
const COPY_POLL: Duration = Duration::from_millis(250);

/// An object, and its file on a disk that is served.
pub(super) struct OnDisk<'a, K: Kept> {
    pub(super) id: String,
    pub(super) spec: &'a K::Spec,
    pub(super) local: &'a Local,
    pub(super) work: &'a Work<'a, K>,
}

impl<K: Kept> OnDisk<'_, K> {
    pub(super) async fn held(&self) -> Result<Held, Failure> {
        let id = self.id.clone();
        self.local
            .ask(Verb::Get, move |store| K::held(store, &id))
            .await
    }

    pub(super) async fn abandon(&self) -> Result<(), Failure> {
        let id = self.id.clone();
        let abandon = move |store: &_| K::abandon(store, &id);
        self.local.change(Verb::Delete, abandon).await
    }

    pub(super) async fn execute(
        &self,
        step: Step,
        held: Held,
        disk: &Served,
    ) -> Result<Outcome, Failure> {
        let work = self.work;
        match step {
            Step::Rest | Step::Refuse => Ok(Outcome::Rest),
            Step::Miss => {
                work.refuse(Failure::not_found(format!(
                    "{} {}: the disk has no file with this ID",
                    K::WORD,
                    self.id
                )))
                .await
            }
            Step::Accept => self.accept(disk).await,
            Step::Make => self.make().await,
            Step::Await => self.wait(held).await,
            Step::Abandon => match self.abandon().await {
                Ok(()) => work.release().await,
                // The file contains unexpected data. It is kept.
                Err(failure) if !may_pass(&failure) && work.is_ending() => {
                    tracing::error!(object = work.name(), "{}: {failure}", K::KIND);
                    work.release().await
                }
                Err(failure) => Err(failure),
            },
            Step::Forget => {
                self.abandon().await?;
                Ok(Outcome::Next)
            }
            Step::Release => {
                disk.notify();
                work.release().await
            }
            Step::Lose => {
                tracing::error!(
                    object = work.name(),
                    id = self.id,
                    "{}: its file does not exist, and is not created again",
                    K::KIND
                );
                work.report(work.new_answer(Phase::Lost, None)).await
            }
            Step::Report => self.report_whole(held, None).await,
            Step::Grow(bytes) => self.grow(bytes, held).await,
            Step::Claim(attempt) => self.claim(attempt, held).await,
            Step::Bar(attempt) => {
                let failure = Failure::busy(format!(
                    "{} {}: the store was not connected when its removal was requested; repeat \
                     the call",
                    K::WORD,
                    self.id
                ));
                self.refuse_removal(attempt, held, failure).await
            }
            Step::Remove => self.remove_claimed(held).await,
        }
    }

    /// Completes a removal that was claimed.
    async fn remove_claimed(&self, held: Held) -> Result<Outcome, Failure> {
        let work = self.work;
        let removed = match self.reserve().await {
            Ok(Removal::InUse) => return Ok(Outcome::Again(RETRY)),
            Ok(reserved) => self.remove(reserved).await,
            Err(failure) => Err(failure),
        };
        match removed {
            Ok(()) => work.release().await,
            Err(failure) => {
                if work.told_failure().as_ref() != Some(&failure.message) {
                    work.report(Report {
                        failure: Some(failure.clone()),
                        ..work.new_report(Phase::Removing, state_of(&held))
                    })
                    .await?;
                }
                Err(failure)
            }
        }
    }

    /// Refuses an ID that another object has, since its removal would remove the other's file.
    fn refuse_shared(&self) -> Result<(), Failure> {
        let work = self.work;
        let Some(other) = work.entries.other_with(&self.id, work.name()) else {
            return Ok(());
        };
        Err(Failure::precondition(format!(
            "spec.id: {} {other} has the ID {}; delete one of the two objects by hand",
            K::KIND,
            self.id
        )))
    }

    async fn accept(&self, disk: &Served) -> Result<Outcome, Failure> {
        let (work, spec) = (self.work, self.spec.clone());
        let place = K::place(self.spec).place;
        let is_here = match place == disk.place {
            true => Ok(()),
            false => Err(Failure::precondition(format!(
                "spec.place: {place}: the disk is at {}",
                disk.place
            ))),
        };
        if let Err(failure) = is_here.and_then(|()| self.refuse_shared()) {
            return work.refuse(failure).await;
        }
        let intend = move |store: &_| K::intend(store, &spec);
        match self.local.change(Verb::Create, intend).await {
            Ok(()) => {}
            Err(failure) if may_pass(&failure) => return Err(failure),
            Err(failure) => return work.refuse(failure).await,
        }
        let mut all = work.object().metadata.finalizers.clone();
        all.push(FINALIZER.to_owned());
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        work.change(Change::Finalizers(&all)).await
    }

    async fn make(&self) -> Result<Outcome, Failure> {
        let spec = self.spec.clone();
        let make = move |store: &_| K::make(store, &spec);
        let made = match K::copies(self.spec) {
            true => self.local.copy(Verb::Create, make).await,
            false => self.local.change(Verb::Create, make).await,
        };
        match made {
            // The next step reports the file.
            Ok(()) => Ok(Outcome::Next),
            Err(failure) if may_pass(&failure) => {
                self.report_making(None, &failure).await?;
                Err(failure)
            }
            Err(failure) => self.work.refuse(failure).await,
        }
    }

    /// Reports once why the file is not complete yet.
    async fn report_making(&self, state: Option<State>, why: &Failure) -> Result<(), Failure> {
        let work = self.work;
        if work.told_failure().as_ref() == Some(&why.message) {
            return Ok(());
        }
        let report = Report {
            failure: Some(why.clone()),
            ..work.new_report(Phase::Making, state)
        };
        work.report(report).await.map(drop)
    }

    /// Waits for the copy that fills the file of a snapshot.
    async fn wait(&self, held: Held) -> Result<Outcome, Failure> {
        let work = self.work;
        let told = work.object().known_status();
        let is_told = told.map(K::told).is_some_and(|told| told.has_time);
        match held {
            Held::Copying(_) if is_told => {
                let spec = self.spec.clone();
                let resume = move |store: &_| {
                    K::resume(store, &spec);
                    Ok(())
                };
                self.local.ask(Verb::Snapshot, resume).await?;
                Ok(Outcome::Again(COPY_POLL))
            }
            Held::Copying(state) => {
                let report = work.new_report(Phase::Making, Some(state));
                work.report(report).await
            }
            Held::Failed(failure) => {
                let id = self.id.clone();
                let complete = move |store: &_| K::complete(store, &id);
                if self.local.change(Verb::Cut, complete).await? {
                    return Ok(Outcome::Next);
                }
                // A caller may have received the snapshot. Another one with its name would have
                // other data.
                let report = match is_told {
                    true => work.new_answer(Phase::Lost, None),
                    false => work.new_answer(Phase::Refused, None),
                };
                tracing::error!(object = work.name(), "{}: {failure}", K::KIND);
                work.report(Report {
                    failure: Some(failure),
                    ..report
                })
                .await
            }
            _ => Ok(Outcome::Next),
        }
    }

    async fn report_whole(&self, held: Held, why: Option<Failure>) -> Result<Outcome, Failure> {
        let Held::Whole(state) = held else {
            return Ok(Outcome::Next);
        };
        let work = self.work;
        let report = Report {
            failure: why,
            ..work.new_answer(Phase::Ready, Some(state))
        };
        work.report(report).await
    }

    async fn grow(&self, bytes: u64, held: Held) -> Result<Outcome, Failure> {
        let id = self.id.clone();
        let grow = move |store: &_| K::grow(store, &id, bytes);
        match self.local.change(Verb::Resize, grow).await {
            Ok(()) => {
                let held = self.held().await?;
                self.report_whole(held, None).await
            }
            Err(failure) if may_pass(&failure) => Err(failure),
            Err(failure) => self.report_whole(held, Some(failure)).await,
        }
    }

    async fn reserve(&self) -> Result<Removal, Failure> {
        let id = self.id.clone();
        let reserve = move |store: &_| K::reserve(store, &id);
        self.local.change(Verb::Delete, reserve).await
    }

    async fn remove(&self, reserved: Removal) -> Result<(), Failure> {
        let id = self.id.clone();
        let remove = move |store: &_| K::remove(store, &id, reserved);
        self.local.change(Verb::Delete, remove).await
    }

    /// Executes an attempt to remove the file. The file is locked before the attempt is claimed,
    /// so that a claimed attempt succeeds unless the disk fails.
    async fn claim(&self, attempt: u64, held: Held) -> Result<Outcome, Failure> {
        let work = self.work;
        if let Err(failure) = self.refuse_shared() {
            return self.refuse_removal(attempt, held, failure).await;
        }
        let deadline = Instant::now() + UNSTAGE_PATIENCE;
        let reserved = loop {
            match self.reserve().await {
                // The kernel sends no event when another process closes the file, so poll.
                Ok(Removal::InUse) if Instant::now() < deadline => sleep(UNSTAGE_POLL).await,
                Ok(Removal::InUse) => {
                    let id = self.id.clone();
                    let refused = move |store: &_| Ok(K::refuse_used(store, &id));
                    let failure = self.local.change(Verb::Delete, refused).await?;
                    return self.refuse_removal(attempt, held, failure).await;
                }
                Ok(reserved) => break reserved,
                Err(failure) => return self.refuse_removal(attempt, held, failure).await,
            }
        };
        let report = work.new_report(Phase::Removing, state_of(&held));
        let status = K::status(report, None);
        let (outcome, claimed) = work.patch(Change::Status(&status)).await?;
        let Some(object) = claimed else {
            return Ok(outcome);
        };
        work.entries.replace(&work.current.object, object);
        self.remove(reserved).await?;
        // The next step takes the finalizer off.
        Ok(Outcome::Next)
    }

    async fn refuse_removal(
        &self,
        attempt: u64,
        held: Held,
        failure: Failure,
    ) -> Result<Outcome, Failure> {
        let work = self.work;
        work.entries.bar(work.name(), attempt);
        let phase = match held {
            Held::Whole(_) => Phase::Ready,
            Held::Nothing | Held::Failed(_) => Phase::Lost,
            Held::Intended | Held::Copying(_) | Held::Deleting => Phase::Making,
        };
        work.report(Report {
            refused_removal: Some(attempt),
            failure: Some(failure),
            ..work.new_report(phase, state_of(&held))
        })
        .await
    }
}

/// Returns the size and the time of the file, unless it is incomplete.
fn state_of(held: &Held) -> Option<State> {
    match held {
        Held::Whole(state) | Held::Copying(state) => Some(*state),
        _ => None,
    }
}
