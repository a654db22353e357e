//! How much room there is for new volumes.

use super::{Operations, question, size, support};
use crate::backend::Sizes;
use belay_server::call::Failure;
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

impl Room {
    /// None at all, where not even the smallest fits.
    fn of(available: u64, smallest: u64, sizes: Sizes) -> Self {
        let largest = available.min(sizes.max);
        let largest = largest - largest % sizes.step;
        if largest < smallest {
            return Self::default();
        }
        Self {
            available,
            smallest,
            largest,
        }
    }
}

impl Operations {
    /// Room for volumes that can be made and used so and are reachable from there; none for others.
    ///
    /// # Errors
    /// `Unsupported`, if the backend does not know.
    pub async fn room(&self, request: GetCapacity) -> Result<Room, Failure> {
        let capacity = self.backend.capacity();
        let capacity = capacity.ok_or_else(|| Failure::unsupported("capacity is not known"))?;
        let refused = |capability| support::refusal(capability).is_some();
        let sizes = match self.sizes(&request.parameters) {
            Ok(sizes) if !request.capabilities.iter().any(refused) => sizes,
            _ => return Ok(Room::default()),
        };
        let asked = capacity.available_bytes(request.topology);
        let available = question::answer("the capacity", asked).await?;
        let smallest = size::smallest(&support::usage(&request.capabilities), sizes);
        Ok(Room::of(available, smallest, sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_room_where_the_smallest_does_not_fit() {
        let sizes = Sizes {
            step: 10,
            min: 10,
            max: 1000,
        };
        let room = |available, smallest, largest| Room {
            available,
            smallest,
            largest,
        };
        for (available, smallest, expected) in [
            (5000, 30, room(5000, 30, 1000)),
            (99, 30, room(99, 30, 90)),
            (39, 40, Room::default()),
            (0, 10, Room::default()),
        ] {
            assert_eq!(
                Room::of(available, smallest, sizes),
                expected,
                "{available}"
            );
        }
    }
}
