//! Implements the CSI Node service: runs the operation for each request, and converts its result to
//! a protobuf message. This module makes no system calls and does not check paths.

mod encode;
mod facts;
mod flushing;
mod health;
mod jobs;
mod late;
mod node;
mod reads;
mod remote;
mod removed;
mod staging;
#[cfg(test)]
mod tests;
mod unsynced;
mod volumes;

pub(crate) use node::{NodeIdentity, NodeService};
pub(crate) use remote::RemoteService;

/// Registers the descriptions of this module's metrics. Call it once, before the first CSI call.
pub(crate) fn announce() {
    flushing::announce();
}
