//! Tests of the Node service for NFS volumes on the simulated machine, in which calls fail or hang,
//! and helper processes are killed at each system call.

mod bench;
mod detach;
mod faults;
mod hung;
mod refusals;
mod verbs;
