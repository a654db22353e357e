//! What the kubelet is told without being asked: that a driver is there.

mod registration;
mod watch;

pub(crate) use registration::Registrar;
pub use registration::Registration;
