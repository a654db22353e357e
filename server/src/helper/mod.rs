//! Helper processes. A system call that waits for a storage server may never return. Therefore a
//! helper process makes the call, since a process can be killed. The helper process runs this
//! program with a subcommand, exchanges lines of JSON with its parent over a socket, and can pass
//! descriptors. This module does not depend on a particular storage or program.
//!
//! [`Helpers`] limits the number of processes and follows each process until it has exited.
//! [`Child`] is the parent's side of a process, and `serve` runs in the process itself.
//! docs/adr/0031 contains the reasons.

mod child;
mod lane;
mod limits;
mod serve;
#[cfg(test)]
mod tests;

pub use child::{Child, program};
pub use lane::{Group, Lane, Spec};
pub use limits::{Helpers, Process, Running, Slot, TOTAL, Unanswered};
pub use serve::{Parent, serve};
