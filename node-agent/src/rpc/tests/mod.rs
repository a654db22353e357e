//! The Node service as seen by its callers, on the simulated machine.

mod answers;
mod calls;
mod codes;
mod disks;
mod flushing;
mod hung;
mod lives;
mod reading;
mod removed;
