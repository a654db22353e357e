//! The Node service as its callers meet it, over the simulated machine.

mod calls;
mod disks;
mod hung;
mod lives;
