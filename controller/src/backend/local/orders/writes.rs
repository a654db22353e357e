//! Writes an object in the API server. Every write is conditional on the version of the object for
//! which its step was decided.

use super::Orders;
use super::entries::{Current, Entries};
use super::kind::{Kept, Report, State};
use crate::kubernetes::{Change, FINALIZER, Object, Phase, Written};
use belay_server::call::Failure;
use std::time::Duration;

/// The pause before a step is repeated, and its maximum. Each pause is twice as long as the
/// previous pause, until the object changes.
pub(super) const RETRY: Duration = Duration::from_secs(1);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(60);

/// The result of a step.
pub(super) enum Outcome {
    /// Nothing must be done until the object changes.
    Rest,
    /// The step is done. The next step can be decided.
    Next,
    /// The step must be repeated after a pause.
    Again(Duration),
}

/// An object, and the disk that it names.
pub(super) struct Work<'a, K: Kept> {
    pub(super) orders: &'a Orders,
    pub(super) entries: &'a Entries<K>,
    pub(super) current: Current<K>,
}

impl<K: Kept> Work<'_, K> {
    pub(super) fn object(&self) -> &Object<K> {
        &self.current.object
    }

    /// Whether the deletion of the object was requested.
    pub(super) fn is_ending(&self) -> bool {
        self.object().metadata.deletion_timestamp.is_some()
    }

    pub(super) fn name(&self) -> &str {
        &self.object().metadata.name
    }

    /// Makes a change, and takes over the server's response. After a conflict, the watch shows the
    /// other change, so nothing must be done until then.
    pub(super) async fn patch(
        &self,
        change: Change<'_, K>,
    ) -> Result<(Outcome, Option<Object<K>>), Failure> {
        let patched = self.orders.client.patch(&self.object().metadata, change);
        Ok(match patched.await? {
            Written::Done(object) => (Outcome::Next, Some(object)),
            Written::Conflict | Written::Missing => (Outcome::Rest, None),
        })
    }

    pub(super) async fn change(&self, change: Change<'_, K>) -> Result<Outcome, Failure> {
        let (outcome, object) = self.patch(change).await?;
        if let Some(object) = object {
            self.entries.replace(&self.current.object, object);
        }
        Ok(outcome)
    }

    pub(super) async fn report(&self, report: Report) -> Result<Outcome, Failure> {
        let status = K::status(report, self.object().known_status());
        self.change(Change::Status(&status)).await
    }

    /// Returns a report that does not answer a change of the spec.
    pub(super) fn new_report(&self, phase: Phase, state: Option<State>) -> Report {
        let object = self.object();
        let told = object.known_status();
        Report {
            phase,
            observed_generation: told.and_then(|told| K::told(told).observed_generation),
            state,
            refused_removal: told.and_then(|told| K::told(told).refused_removal),
            failure: None,
        }
    }

    /// Returns a report that answers the present generation of the spec.
    pub(super) fn new_answer(&self, phase: Phase, state: Option<State>) -> Report {
        Report {
            observed_generation: Some(self.object().metadata.generation),
            ..self.new_report(phase, state)
        }
    }

    /// Returns the message of the failure that was reported last.
    pub(super) fn told_failure(&self) -> Option<String> {
        K::told(self.object().known_status()?).failure
    }

    pub(super) async fn refuse(&self, failure: Failure) -> Result<Outcome, Failure> {
        tracing::warn!(object = self.name(), "{} refused: {failure}", K::KIND);
        self.report(Report {
            failure: Some(failure),
            ..self.new_answer(Phase::Refused, None)
        })
        .await
    }

    /// Takes the finalizer off.
    pub(super) async fn release(&self) -> Result<Outcome, Failure> {
        let all = self.object().metadata.finalizers.iter().map(String::as_str);
        let others: Vec<_> = all.filter(|it| *it != FINALIZER).collect();
        self.change(Change::Finalizers(&others)).await
    }
}
