//! Attributes of volumes that can be changed later: those of a VolumeAttributesClass.

use super::{Answer, Progress};
use belay_server::request::{Context, Secrets, VolumeId};

/// A backend that changes attributes of its volumes. A new volume gets them with the parameters of
/// its order.
pub trait Modification: Send + Sync {
    /// The keys of the mutable parameters that it understands.
    fn mutable_parameters(&self) -> &'static [&'static str];

    /// Changes these attributes of a volume; done if it has them already. Nothing is changed if
    /// the answer is [`belay_server::call::Kind::Invalid`].
    fn modify(
        &self,
        id: VolumeId,
        parameters: Context,
        secrets: Secrets,
    ) -> Answer<'_, Progress<()>>;

    /// Fails unless the volume, which the storage is not changing, has these attributes: some
    /// storage accepts a change, and does not make it.
    fn verify(&self, id: VolumeId, parameters: Context, secrets: Secrets) -> Answer<'_, ()>;
}
