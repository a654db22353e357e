//! The capacity for new volumes.

use super::{Operations, lookup, size, support};
use crate::backend::{Planned, Sizes};
use belay_server::call::Failure;
use belay_server::request::{GetCapacity, Secrets};

/// The capacity for new volumes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The total size of the volumes that can still be created.
    pub available: u64,
    /// The minimum size of a volume.
    pub smallest: u64,
    /// The maximum size of a volume; `None` if it is unlimited.
    pub largest: Option<u64>,
}

impl Room {
    /// The capacity that is reported if no volume can be created.
    const NONE: Self = Self {
        available: 0,
        smallest: 0,
        largest: Some(0),
    };

    /// Returns the capacity; zero if not even the smallest volume fits.
    fn of(available: u64, smallest: u64, sizes: Sizes) -> Self {
        let largest = available.min(sizes.max);
        let largest = largest - largest % sizes.step;
        if largest < smallest {
            return Self::NONE;
        }
        Self {
            available,
            smallest,
            largest: Some(largest),
        }
    }
}

impl Operations {
    /// Returns the capacity for volumes with these parameters, capabilities and topology; zero if
    /// these are unsupported.
    ///
    /// # Errors
    /// Returns `Unsupported` if the backend does not report capacity, and the errors of
    /// [`Capacity`].
    ///
    /// [`Capacity`]: crate::backend::Capacity
    pub async fn room(&self, request: GetCapacity) -> Result<Room, Failure> {
        let capacity = self.backend().capacity();
        let capacity = capacity.ok_or_else(|| Failure::unsupported("capacity is not reported"))?;
        let refused = |capability| support::refusal(&self.rules.profile, capability).is_some();
        let usage = support::usage(&request.capabilities);
        let sizes = match self.sizes(&request.parameters, &usage) {
            Ok(sizes) if !request.capabilities.iter().any(refused) => sizes,
            _ => return Ok(Room::NONE),
        };
        // A GetCapacity request has no secrets that could name a cloud, so the request is for the
        // cloud without a name.
        let cloud = self.clouds.chosen(&Secrets::default())?;
        let capacity = cloud.backend.capacity().unwrap_or(capacity);
        let asked = capacity.available_bytes(Planned {
            mount_flags: support::mount_flags(&request.capabilities),
            parameters: request.parameters,
            topology: request.topology,
        });
        let available = lookup::in_time("the capacity", asked).await;
        let available = available.map_err(|failure| cloud.failed(failure))?;
        let smallest = size::smallest(self.formatted(&usage), sizes);
        Ok(match capacity.limits_sizes() {
            true => Room::of(available, smallest, sizes),
            false => Room {
                available,
                smallest,
                largest: None,
            },
        })
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
            largest: Some(largest),
        };
        for (available, smallest, expected) in [
            (5000, 30, room(5000, 30, 1000)),
            (99, 30, room(99, 30, 90)),
            (39, 40, Room::NONE),
            (0, 10, Room::NONE),
        ] {
            assert_eq!(
                Room::of(available, smallest, sizes),
                expected,
                "{available}"
            );
        }
    }
}
