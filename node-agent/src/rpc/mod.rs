//! Converts decoded requests to operations, and their results to messages. Makes no system call,
//! and does not check paths.

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

/// Describes the metrics of this module. Call it once, before the first call.
pub(crate) fn announce() {
    flushing::announce();
}
