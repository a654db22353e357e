//! The one list of backends.

use super::Backend;
use super::local::{self, Local};
use belay_server::failure::Failure;
use std::sync::Arc;

/// Which backend to drive, with all that it must be told.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Files on this node.
    Local(local::Config),
}

/// Opens it. Blocks.
///
/// # Errors
/// Those of the backend.
pub fn open(choice: Choice) -> Result<Arc<dyn Backend>, Failure> {
    match choice {
        Choice::Local(config) => Ok(Arc::new(Local::open(config)?)),
    }
}
