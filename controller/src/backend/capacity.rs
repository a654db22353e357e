//! A backend that knows how much room is left.

use super::Answer;
use belay_server::request::{Context, MountFlags, Segments};

/// A backend that knows how much room is left.
pub trait Capacity: Send + Sync {
    /// Bytes that can still be promised to such volumes. `GetCapacity` has no secrets.
    ///
    /// # Errors
    /// `Invalid`, naming the key, for parameters with which no volume can be created.
    fn available_bytes(&self, planned: Planned) -> Answer<'_, u64>;

    /// Whether no volume can be larger than what is available.
    fn limits_sizes(&self) -> bool {
        true
    }
}

/// The volumes that room is wanted for.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    /// Those of [`super::Backend::parameters`], and those that the provisioner adds.
    pub parameters: Context,
    /// How a node would mount them.
    pub mount_flags: MountFlags,
    /// They must be reachable from there; none = from anywhere.
    pub topology: Option<Segments>,
}
