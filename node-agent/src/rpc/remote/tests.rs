//! Tests of kubelet calls on the simulated machine: calls fail or hang, and their helper processes
//! are killed at every call.

mod bench;
mod detach;
mod faults;
mod hung;
mod refusals;
mod verbs;
