//! Determines the phase of a volume from the changes that this process has requested.

use super::DigitalOcean;
use super::pending::{Change, ChangeStatus};
use super::wire::{Action, DoVolume, Status};
use crate::backend::{Phase, Volume};
use belay_contract::publish_context::Content;
use belay_server::call::Failure;
use belay_server::request::VolumeId;

impl DigitalOcean {
    pub(super) fn shown(&self, volume: &DoVolume) -> Result<Volume, Failure> {
        volume.volume(Phase::Ready, self.topology_key)
    }

    pub(super) fn busy(&self, volume: &DoVolume, change: Change) -> Result<Volume, Failure> {
        volume.volume(Phase::Busy(change.word()), self.topology_key)
    }

    /// Returns the volume in the phase that follows from the change that this process has
    /// requested.
    ///
    /// # Errors
    /// Returns the errors of reading the volume's actions, and the failure of an action that should
    /// have completed the volume.
    pub(super) async fn judged(&self, volume: DoVolume) -> Result<Option<Volume>, Failure> {
        let id = volume.id()?;
        match self.pending.seen(&id, &volume) {
            ChangeStatus::Idle => self.shown(&volume).map(Some),
            ChangeStatus::Busy(change) => self.busy(&volume, change).map(Some),
            ChangeStatus::Ended => self.ended(&id, volume).map(Some),
            ChangeStatus::Broken(why) => Err(Failure::precondition(why).may_be_running()),
            ChangeStatus::Unsure(change) => match self.client.history(&id).await?.is_running() {
                true => self.busy(&volume, change).map(Some),
                false => self.ended(&id, volume).map(Some),
            },
            ChangeStatus::Unknown(change, action) => self.asked(&id, volume, change, action).await,
        }
    }

    /// Returns the volume for a list, like [`Self::judged`]. A list must not fail because of one
    /// volume: if the change of the volume cannot be read, the volume is listed as busy. If the
    /// creation of the volume has failed, returns `None`, so that the list omits the volume until
    /// the volume is created again or deleted.
    pub(super) async fn listed(&self, volume: DoVolume) -> Result<Option<Volume>, Failure> {
        let (id, shown) = (volume.id()?, self.shown(&volume)?);
        match self.judged(volume).await {
            Ok(seen) => Ok(seen),
            Err(_) if self.pending.is_broken(&id) => Ok(None),
            Err(failure) => {
                tracing::debug!(volume = id.as_str(), %failure, "its change cannot be read");
                let phase = Phase::Busy("being changed".to_owned());
                Ok(Some(Volume { phase, ..shown }))
            }
        }
    }

    /// Returns the volume in the phase that follows from the status of its action.
    async fn asked(
        &self,
        id: &VolumeId,
        volume: DoVolume,
        change: Change,
        action: u64,
    ) -> Result<Option<Volume>, Failure> {
        let status = self.status(id, &volume, change, action).await?;
        match status.map_or(Status::Completed, |action| action.status()) {
            Status::Running => self.busy(&volume, change).map(Some),
            Status::Completed if change.is_done(&volume) => self.ended(id, volume).map(Some),
            Status::Completed => {
                self.pending.completed(id);
                self.busy(&volume, change).map(Some)
            }
            Status::Errored => self.errored(id, change, action).await,
        }
    }

    /// Returns the action; `None` if the cloud does not have it. For an attach of a volume that may
    /// be new, reads the list of all actions, which also shows whether another program has attached
    /// the volume before.
    async fn status(
        &self,
        id: &VolumeId,
        volume: &DoVolume,
        change: Change,
        action: u64,
    ) -> Result<Option<Action>, Failure> {
        if matches!(change, Change::Attach(_)) && volume.content() == Content::New {
            let history = self.client.history(id).await?;
            if history.is_only_attach(action) {
                self.pending.record_first_attach(id, action);
            }
            if let Some(found) = history.action(action) {
                return Ok(Some(found.clone()));
            }
        }
        self.client.action(id, action).await
    }

    fn ended(&self, id: &VolumeId, volume: DoVolume) -> Result<Volume, Failure> {
        let shown = self.shown(&volume)?;
        self.pending.ended(id, volume);
        Ok(shown)
    }

    /// Returns the volume after a failed action, which may have changed the volume anyway.
    async fn errored(
        &self,
        id: &VolumeId,
        change: Change,
        action: u64,
    ) -> Result<Option<Volume>, Failure> {
        let Some(volume) = self.client.volume(id).await? else {
            self.pending.forget(id);
            return Ok(None);
        };
        if change.is_done(&volume) {
            return self.ended(id, volume).map(Some);
        }
        let why = format!(
            "volume {id}: {}: action {action} of DigitalOcean ended with the status errored; \
             repeat the call",
            change.word()
        );
        if volume.is_incomplete() {
            // No method reads the result of this action.
            self.pending.broke(id, why.clone());
            return Err(Failure::precondition(why).may_be_running());
        }
        self.pending.failed(id, why);
        self.shown(&volume).map(Some)
    }
}
