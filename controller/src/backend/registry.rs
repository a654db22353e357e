//! The one list of backends.

use super::Backend;
use super::local::{self, Local};
use belay_server::call::Failure;
use belay_server::readiness::Readiness;
use std::sync::Arc;

/// Which backend to drive, with all that it must be told.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Files on this node.
    Local(local::Config),
}

/// Opens it; from then on it says in `readiness` if it cannot work. Blocks.
///
/// # Errors
/// Those of the backend.
pub fn open(choice: Choice, readiness: Readiness) -> Result<Arc<dyn Backend>, Failure> {
    match choice {
        Choice::Local(config) => Ok(Arc::new(Local::open(config, readiness)?)),
    }
}
