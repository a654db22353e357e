//! Twins of clouds: servers on loopback that respond as a cloud's API does, with its delays and
//! limits, and with faults on request. Independent of Belay.

pub mod civo;
pub mod digitalocean;
pub mod http;
mod hypervisor;
mod lag;
mod server;
pub mod time;

pub use hypervisor::{Hypervisor, Model};
pub use lag::Lag;
pub use server::{Call, Fault, Server, Service};

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks the state of a twin, even if an earlier test has failed while holding the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
