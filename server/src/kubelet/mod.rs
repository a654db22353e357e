//! Registration with the kubelet.

mod registration;
mod watch;

pub use registration::Registration;
pub(crate) use registration::{Registrar, RegistrationView};
