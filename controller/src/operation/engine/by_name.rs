//! Finds the volume of a name, or creates it.

use super::Engine;
use super::contest::Contest;
use super::poller::is_at_work;
use crate::backend::{Order, Volume};
use belay_server::call::Failure;
use belay_server::request::Secrets;

impl Engine {
    /// The volume of the order's name, ready or failed; `make` creates it if there is none.
    ///
    /// # Errors
    /// Those of the backend and of `make`; the reason why creating it failed, rolled back.
    pub(in crate::operation) async fn volume_of(
        &self,
        order: &Order,
        make: impl Future<Output = Result<Volume, Failure>>,
    ) -> Result<Volume, Failure> {
        if let Some(claims) = self.backend.claims() {
            return Contest::new(self, claims, order).run(make).await;
        }
        let secrets = &order.secrets;
        let found = self.backend.find(order.name.clone(), secrets.clone());
        let volume = match found.await?.into_iter().next() {
            Some(volume) => volume,
            None => make.await?,
        };
        self.at_rest(volume, secrets).await
    }

    /// The volume, once it is ready or failed; with the context that its creation returned, which
    /// reading the volume may omit.
    ///
    /// # Errors
    /// Those of reading the volume; `Busy` if the volume was deleted meanwhile.
    pub(super) async fn at_rest(
        &self,
        volume: Volume,
        secrets: &Secrets,
    ) -> Result<Volume, Failure> {
        if !is_at_work(&volume) {
            return Ok(volume);
        }
        let settled = self.poller.settled(&volume.id, secrets).await?;
        let mut settled = settled.ok_or_else(|| {
            Failure::busy(format!(
                "volume {}: deleted meanwhile; repeat the call",
                volume.id
            ))
        })?;
        settled.context = settled.context.or(volume.context);
        Ok(settled)
    }
}
