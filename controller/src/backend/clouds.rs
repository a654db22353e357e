//! What a backend must be able to do if the secrets of a call choose the cloud.

use super::{Answer, Page, Volume};
use belay_server::call::Failure;
use belay_server::request::{Secrets, VolumeId};

/// A backend whose calls can be for different clouds: the secrets of a call say which.
pub trait Clouds: Send + Sync {
    /// The name of the cloud that a call with these secrets is for, for its log line; none if there
    /// is only one. It is called before anything is read or changed.
    ///
    /// # Errors
    /// `Invalid`, naming the key, if this backend does not have the cloud.
    fn check(&self, secrets: &Secrets) -> Result<Option<String>, Failure>;

    /// Like [`super::Backend::get`] in whichever cloud has it, for calls that have no secrets. None
    /// only if all clouds have said so.
    fn get_anywhere(&self, id: VolumeId) -> Answer<'_, Option<Volume>>;

    /// Like [`super::Backend::list`], of all clouds, for calls that have no secrets.
    fn list_all(&self, after: Option<String>, limit: usize) -> Answer<'_, Page>;

    /// Fails if the volume, which is missing in the cloud of the secrets, may be in another one. It
    /// is called before a change is reported as done because the volume is missing.
    fn check_missing(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, ()>;
}
