//! Converts decoded requests to operations, and results to messages. Makes no system call and
//! judges no path.

mod encode;
mod facts;
mod flushing;
mod health;
mod jobs;
mod late;
mod node;
mod reads;
mod staging;
mod start;
#[cfg(test)]
mod tests;
mod volumes;

pub(crate) use flushing::announce;
pub(crate) use node::{NodeIdentity, NodeService};
