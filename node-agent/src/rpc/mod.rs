//! From a decoded request to an operation and back to a message. No system call is made here and no
//! path is judged.

mod encode;
mod facts;
mod health;
mod late;
mod node;
mod reads;
mod staging;
mod start;
#[cfg(test)]
mod tests;
mod volumes;

pub(crate) use node::{NodeIdentity, NodeService};
