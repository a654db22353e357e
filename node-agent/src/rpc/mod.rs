//! From a decoded request to an operation and back to a message. No system call is made here and no
//! path is judged.

mod encode;
mod health;
mod node;
mod reads;
#[cfg(test)]
mod tests;

pub(crate) use node::{NodeIdentity, NodeService};
