//! The controller half of the driver: makes, attaches, grows and removes volumes through a backend.
//! Mounts nothing and opens no device; `rpc -> operation -> backend`, never the other way.

pub mod backend;
pub mod operation;
