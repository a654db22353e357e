//! User-mode Linux guests as a test bed: a separate kernel for each test, with disks that can be
//! plugged, grown, made to fail, and cut from power. This crate does not depend on the code under
//! test.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a bed fails the test that uses it"
)]

mod channel;
mod disk;
mod kernel;
mod machine;

pub use channel::{Gone, Output};
pub use disk::{Disk, Failing, Medium, Survival};
pub use kernel::Kernel;
pub use machine::{Guest, Hardware, Machine, Power, Slot};
