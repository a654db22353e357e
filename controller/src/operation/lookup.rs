//! Gets and lists volumes. A read-only call fails at its deadline if the storage
//! does not respond. Calls that change volumes run as jobs instead, which continue after the
//! deadline.

use super::Operations;
use super::engine::Item;
use crate::backend::{Answer, Page, Phase, Volume, no_volume};
use belay_server::call::Failure;
use belay_server::request::{GetVolume, ListVolumes, Secrets, VolumeId};
use std::time::Duration;

/// Maximum number of entries in a page. An entry takes up to about 800 bytes (ID, topology, node ID
/// of 256 bytes), and gRPC clients refuse messages of more than 4 MiB by default.
pub(super) const PAGE_ENTRIES_MAX: usize = 4096;

impl Operations {
    /// Returns the volume with this ID, in any phase.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist.
    pub async fn get(&self, request: GetVolume) -> Result<Volume, Failure> {
        let id = request.id;
        found(&id, self.clouds.get_anywhere(id.clone())).await
    }

    /// Returns the volume with this ID, in any phase.
    ///
    /// # Errors
    /// Returns `NotFound` if the volume does not exist.
    pub(super) async fn volume(&self, id: VolumeId, secrets: Secrets) -> Result<Volume, Failure> {
        let cloud = self.cloud(&secrets)?;
        let volume = found(&id, cloud.backend.get(id.clone(), secrets)).await;
        volume.map_err(|failure| cloud.failed(failure))
    }

    /// Returns a page of volumes.
    ///
    /// # Errors
    /// Returns `BadToken` for an unknown token.
    pub async fn list(&self, request: ListVolumes) -> Result<Page, Failure> {
        let limit = request
            .max_entries
            .unwrap_or(PAGE_ENTRIES_MAX)
            .min(PAGE_ENTRIES_MAX);
        let asked = self.clouds.list_all(request.starting_token, limit);
        in_time("the list of volumes", asked).await
    }
}

async fn found(id: &VolumeId, asked: Answer<'_, Option<Volume>>) -> Result<Volume, Failure> {
    let volume = in_time(&format!("volume {id}"), asked).await?;
    volume.ok_or_else(|| no_volume(id))
}

/// Maximum duration of a read-only call, the same as in the node agent. The sidecars wait 15 s or
/// more for a response.
const DEADLINE: Duration = Duration::from_secs(10);

/// Returns the backend's response to a query about `what`.
///
/// # Errors
/// Returns `Timeout` at the deadline, and the errors of the backend.
pub(super) async fn in_time<T>(
    what: &str,
    asked: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let answer = tokio::time::timeout(DEADLINE, asked).await;
    answer.unwrap_or_else(|_| {
        Err(Failure::timeout(format!(
            "{what}: the storage has not answered for {} s; check it (a disk of this node: the \
             kernel log; a cloud: its endpoint and the network), and repeat the call later",
            DEADLINE.as_secs()
        )))
    })
}

/// Returns the volume or snapshot if it is ready.
///
/// # Errors
/// Returns `Busy` while the storage changes or deletes the item, so that the caller retries.
/// Returns `Precondition`, which is a final error, if the item has failed.
pub(super) fn ready<I: Item>(item: I) -> Result<I, Failure> {
    let (what, id) = (I::WHAT, item.id());
    Err(match item.phase() {
        Phase::Ready => return Ok(item),
        Phase::Busy(at) => Failure::busy(format!("{what} {id}: {at}; repeat the call")),
        Phase::Deleting => Failure::busy(format!("{what} {id}: being deleted")),
        Phase::Failed(why) => Failure::precondition(format!("{what} {id}: cannot be used: {why}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Kind;

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_the_deadline_is_a_timeout_that_names_what_was_asked() {
        let silent = std::future::pending::<Result<(), Failure>>();
        let failure = in_time("volume vol-1", silent).await.unwrap_err();
        assert_eq!(failure.kind, Kind::Timeout);
        assert!(failure.message.starts_with("volume vol-1: "), "{failure}");
        let slow = async {
            tokio::time::sleep(DEADLINE - Duration::from_millis(1)).await;
            Ok(7)
        };
        assert_eq!(in_time("volume vol-1", slow).await, Ok(7));
        let refused = async { Err::<(), _>(Failure::not_found("volume vol-1: not found")) };
        let failure = in_time("volume vol-1", refused).await.unwrap_err();
        assert_eq!(failure.kind, Kind::NotFound);
    }
}
