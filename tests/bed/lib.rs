//! Code shared by the black-box tests, the controller's tests, the benches and the demo. They run
//! the programs from outside, by their sockets, pages and flags; nothing of the programs is linked
//! here.
//!
//! The demo is a shipped program: the bed has no dependency that the demo lacks, and what the demo
//! calls returns errors. `chance`, `patience`, `tools`, `programs` and `sanity` are for tests, and
//! panic.

pub mod chance;
pub mod devices;
pub mod floor;
pub mod mounts;
pub mod patience;
pub mod programs;
pub mod requests;
pub mod sanity;
pub mod scrape;
pub mod tools;
