//! Tests of the Node service on the simulated machine, through its calls.

mod answers;
mod calls;
mod codes;
mod disks;
mod flushing;
mod hung;
mod lives;
mod reading;
mod removed;
