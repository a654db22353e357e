//! The operations against a kernel: the simulated one, which can fail and die at any call, and
//! with root the real one, so that the first is held to what the second does.

mod bench;
mod matrix;
mod model;
mod real;
mod simulated;
mod suite;
