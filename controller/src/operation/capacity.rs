//! How much room there is for new volumes.

use super::{Operations, size, support};
use belay_server::failure::Failure;
use belay_server::request::GetCapacity;

/// Room for new volumes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// For all of them together.
    pub available: u64,
    /// The smallest that can be made.
    pub smallest: u64,
    /// The largest that can be made.
    pub largest: u64,
}

impl Operations {
    /// Room for volumes that can be used so and are reachable from there; none for others.
    ///
    /// # Errors
    /// `Unsupported`, if the backend does not know.
    pub async fn room(&self, request: GetCapacity) -> Result<Room, Failure> {
        let capacity = self.backend.capacity();
        let capacity = capacity.ok_or_else(|| Failure::unsupported("capacity is not known"))?;
        let elsewhere = match (self.place(), &request.topology) {
            (Some(here), Some(there)) => !here.is_in(there),
            _ => false,
        };
        let refused = |capability| support::refusal(capability).is_some();
        if elsewhere || request.capabilities.iter().any(refused) {
            return Ok(Room::default());
        }
        let sizes = self.backend.sizes();
        let available = capacity.available_bytes().await?;
        let smallest = size::smallest(&support::usage(&request.capabilities), sizes);
        let largest = available.min(sizes.max);
        Ok(Room {
            available,
            smallest,
            largest: largest - largest % sizes.step,
        })
    }
}
