//! What a backend must be able to do if the secrets of a call choose the cloud.

use belay_server::call::Failure;
use belay_server::request::Secrets;

/// A backend whose calls can be for different clouds: the secrets of a call say which.
pub trait Clouds: Send + Sync {
    /// Refuses the secrets of a call that is for another cloud than those of this backend. It is
    /// called before anything is read or changed.
    ///
    /// # Errors
    /// `Invalid`, naming the key.
    fn check(&self, secrets: &Secrets) -> Result<(), Failure>;
}
