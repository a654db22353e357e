//! The CSI node agent: stages, publishes, unpublishes and unstages volumes by system calls.
//!
//! A single thread serves the socket. Calls that may block on a disk run on a small bounded pool of
//! threads. Modules depend on each other in only one direction: `rpc -> operation -> mounts ->
//! device | filesystem -> kernel`. The crate contains no code for a particular cloud.

mod device;
mod filesystem;
mod kernel;
mod mounts;
mod operation;
mod rpc;
mod work;

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

mod agent;
mod arrivals;
mod config;
mod identify;
mod metadata;
mod stale;
mod start;

pub use agent::{StartError, help, run};
pub use config::Config;
