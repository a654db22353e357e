//! What a backend must be able to do if the secrets of a call choose the cloud.

use super::{Answer, Page, Volume};
use belay_server::call::Failure;
use belay_server::request::{Secrets, VolumeId};

/// A backend whose calls can be for different clouds: the secrets of a call say which.
pub trait Clouds: Send + Sync {
    /// Refuses the secrets of a call that is for a cloud that this backend does not have. It is
    /// called before anything is read or changed.
    ///
    /// # Errors
    /// `Invalid`, naming the key.
    fn check(&self, secrets: &Secrets) -> Result<(), Failure>;

    /// Like [`super::Backend::get`] in whichever cloud has it, for calls that have no secrets. None
    /// only if all clouds have said so.
    fn get_anywhere(&self, id: VolumeId) -> Answer<'_, Option<Volume>>;

    /// Like [`super::Backend::list`], of all clouds, for calls that have no secrets.
    fn list_all(&self, after: Option<String>, limit: usize) -> Answer<'_, Page>;

    /// Fails if the volume, which is missing in the cloud of the secrets, may be in another one. It
    /// is called before a change is reported as done because the volume is missing.
    fn check_missing(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()>;
}
