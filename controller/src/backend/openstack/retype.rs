//! Another volume type for a volume (retype). Cinder accepts it, and makes it later, or never: then
//! the volume keeps its type, and no status says so. Data are never moved to other storage.

use super::Cloud;
use super::likeness::TYPE;
use super::wire::{self, CinderVolume, VolumeType};
use crate::backend::measured::{Verb, measured};
use crate::backend::{Answer, Modification, Progress};
use belay_server::call::{Failure, Kind};
use belay_server::request::{Context, Secrets, VolumeId};

const FIELD: &str = "mutable_parameters[type]";

impl Cloud {
    /// The volume type that the parameters name.
    async fn asked_type(&self, parameters: &Context) -> Result<Option<VolumeType>, Failure> {
        let Some(name) = parameters.get(TYPE) else {
            return Ok(None);
        };
        let found = self.client.volume_type(Some(name)).await?;
        let found = found.ok_or_else(|| {
            let why = format_args!("the cloud has no volume type {name:?} for this project");
            Failure::invalid(FIELD, why)
        });
        found.map(Some)
    }

    async fn cinder_volume(&self, id: &VolumeId) -> Result<CinderVolume, Failure> {
        let volume = self.client.volume(id).await?;
        volume.ok_or_else(|| Failure::not_found(format!("volume {id}: not found")))
    }
}

impl Modification for Cloud {
    fn mutable_parameters(&self) -> &'static [&'static str] {
        &[TYPE]
    }

    fn modify(&self, id: VolumeId, parameters: Context, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Modify, async move {
            let Some(asked) = self.asked_type(&parameters).await? else {
                return Ok(Progress::Done(()));
            };
            let volume = self.cinder_volume(&id).await?;
            if volume.volume_type.as_deref() == Some(&*asked.name) {
                return Ok(Progress::Done(()));
            }
            // Before the change: a repeated CreateVolume may come at any time.
            if !volume.is_retyped() {
                self.client.mark(&id, wire::RETYPED).await?;
            }
            match self.client.retype(&id, &asked.name).await {
                Ok(()) => Ok(Progress::Begun),
                Err(refused) => self.unless(&id, refused, |_| None).await,
            }
        })
    }

    fn verify(&self, id: VolumeId, parameters: Context, _: Secrets) -> Answer<'_, ()> {
        measured(Verb::Modify, async move {
            let Some(asked) = self.asked_type(&parameters).await? else {
                return Ok(());
            };
            let is = self.cinder_volume(&id).await?.volume_type;
            if is.as_deref() == Some(&*asked.name) {
                return Ok(());
            }
            let (is, asked) = (is.unwrap_or_default(), asked.name);
            Err(Failure::new(
                Kind::Invalid,
                format!(
                    "volume {id}: {FIELD}: Cinder has not changed the volume type {is:?} to \
                     {asked:?}: the storage that has the volume does not offer that type, or not \
                     without moving the data, which Belay does not request"
                ),
            ))
        })
    }
}
