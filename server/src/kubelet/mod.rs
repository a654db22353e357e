//! Registration with the kubelet.

mod registration;
mod watch;

pub(crate) use registration::Registrar;
pub use registration::Registration;
