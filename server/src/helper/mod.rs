//! Helper processes. A system call that waits for a storage server may never return, so a process
//! makes it that can be killed: this program again, with a subcommand. It exchanges lines of JSON
//! with its parent over a socket, and can pass descriptors. Knows no storage and no program.
//!
//! [`Helpers`] limits the processes and follows each until it has exited, [`Child`] is a process as
//! its parent sees it, and `serve` runs in the process itself. docs/adr/0031 has the reasons.

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
