//! Changes the attributes of a volume (`ControllerModifyVolume`).

use super::{Operations, Subject, lookup, support};
use crate::backend::{Backend, Modification, Progress, no_volume};
use belay_server::call::{Failure, Kind, Rpc};
use belay_server::request::{Context, ControllerModify, Secrets, VolumeId};
use belay_server::work::fingerprint;
use std::sync::Arc;

/// The request field that contains the attributes.
pub(super) const FIELD: &str = "mutable_parameters";

impl Operations {
    /// Whether [`Self::modify`] is supported.
    #[must_use]
    pub fn modifies(&self) -> bool {
        self.backend().modification().is_some()
    }

    /// Changes the attributes of the volume; succeeds if the volume already has these attributes.
    ///
    /// # Errors
    /// Returns `Invalid` for attributes that the volume cannot have, `NotFound` if the volume does
    /// not exist, `Precondition` if the volume cannot be changed now, and the errors of
    /// [`lookup::ready`].
    pub async fn modify(&self, request: ControllerModify) -> Result<(), Failure> {
        let ControllerModify {
            id,
            mutable_parameters: parameters,
            secrets,
        } = request;
        let cloud = self.cloud(&secrets)?;
        self.refuse_immutable(&parameters)?;
        let (backend, engine) = (Arc::clone(&cloud.backend), Arc::clone(&cloud.engine));
        let (same, volume_id) = (fingerprint(&(&parameters, &secrets)), id.clone());
        let job = async move {
            let modification = of(backend.as_ref())?;
            let volume = backend.get(volume_id.clone(), secrets.clone()).await?;
            lookup::ready(volume.ok_or_else(|| no_volume(&volume_id))?)?;
            let begun = modification.modify(volume_id.clone(), parameters.clone(), secrets.clone());
            if let Progress::Done(()) = begun.await? {
                return Ok(());
            }
            let settled = engine.settled_soon(&volume_id, &secrets).await?;
            lookup::ready(settled.ok_or_else(|| no_volume(&volume_id))?)?;
            modification.verify(volume_id, parameters, secrets).await
        };
        let rpc = Rpc::ControllerModifyVolume;
        let call = (Subject::Volume, id.as_str(), rpc, same);
        self.run(cloud, call, job).await
    }

    /// Refuses mutable parameters that the backend does not support.
    pub(super) fn refuse_immutable(&self, parameters: &Context) -> Result<(), Failure> {
        let modification = self.backend().modification();
        let known = modification.map_or(&[][..], Modification::mutable_parameters);
        support::refuse_unknown(FIELD, parameters, known)
    }

    /// Returns the parameters for a new volume. Values of the VolumeAttributesClass take precedence
    /// over values of the StorageClass.
    pub(super) fn merged(parameters: Context, mutable: &Context) -> Result<Context, Failure> {
        if mutable.is_empty() {
            return Ok(parameters);
        }
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let fixed = parameters
            .iter()
            .filter(|(key, _)| mutable.get(key).is_none());
        Context::new("parameters", fixed.chain(mutable.iter()).map(owned))
    }
}

/// Checks that the attributes of a volume, which was just created or found by its name, match the
/// request.
///
/// # Errors
/// Returns `Incompatible` if an attribute differs. All other errors report an unknown state, since
/// the volume exists.
pub(super) async fn verify(
    backend: &dyn Backend,
    id: &VolumeId,
    mutable: &Context,
    secrets: &Secrets,
) -> Result<(), Failure> {
    if mutable.is_empty() {
        return Ok(());
    }
    let verified = of(backend)?.verify(id.clone(), mutable.clone(), secrets.clone());
    verified.await.map_err(|failure| match failure.kind {
        Kind::Invalid => Failure::incompatible(failure.message),
        _ => failure.may_be_running(),
    })
}

/// Returns the backend's implementation of modification.
///
/// # Errors
/// Returns `Unsupported` if the backend does not modify volumes.
fn of(backend: &dyn Backend) -> Result<&dyn Modification, Failure> {
    let modification = backend.modification();
    modification.ok_or_else(|| Failure::unsupported("this driver does not modify volumes"))
}
