//! The node half of the driver: stages, publishes and takes back volumes by system calls.
//!
//! One thread serves the socket; what may wait for a disk runs on a small bounded pool. Modules
//! point one way: `rpc -> operation -> mounts -> device | filesystem -> kernel`. No cloud is named
//! here.

mod device;
mod filesystem;
mod kernel;
mod mounts;
mod operation;
mod rpc;

mod agent;
mod arrivals;
mod config;
mod forgotten;
mod holder;
mod pool;
mod start;

pub use agent::{StartError, run};
pub use config::Config;
