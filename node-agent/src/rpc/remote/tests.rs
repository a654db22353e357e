//! The calls of a kubelet on the simulated machine: they fail, hang, and their processes are killed
//! at every call.

mod bench;
mod detach;
mod faults;
mod hung;
mod refusals;
mod verbs;
