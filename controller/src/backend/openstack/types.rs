//! Volume types: changes of a volume's type (retype), and multiattach types, whose volumes several
//! servers can use at once. Cinder accepts a retype before it changes the type. If the retype
//! fails, the volume keeps its type, and the failure is not visible in the volume's status. Belay
//! never requests a migration of data to other storage.

use super::Cloud;
use super::client::Service;
use super::wire::{self, AVAILABILITY, CinderVolume, TYPE, VolumeType};
use crate::backend::measured::{Verb, measured};
use crate::backend::{Answer, Modification, Order, Parameter, Progress, no_volume};
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Context, Secrets, VolumeId};

const FIELD: &str = "mutable_parameters[type]";

impl Cloud {
    /// Returns the volume type that the parameters request. Returns `None` if the parameters do not
    /// contain a type.
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
        volume.ok_or_else(|| no_volume(id))
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
            // Before the type is changed, record in the volume's metadata that it may differ from
            // the StorageClass, since CreateVolume may be repeated at any time.
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

impl Cloud {
    /// Refuses a volume for several nodes if the requested type is not multiattach. Older clouds do
    /// not report this property of a type; in these clouds, the property is visible only in a
    /// created volume.
    ///
    /// # Errors
    /// Returns `Invalid`, and the errors of reading types.
    pub(super) async fn check_shareable(
        &self,
        order: &Order,
        source: Option<&ContentSource>,
    ) -> Result<(), Failure> {
        let named = order.parameters.get(TYPE).map(str::to_owned);
        let name = match (named, source) {
            (Some(name), _) => Some(name),
            (None, Some(source)) => match self.type_of(source).await? {
                Some(name) => Some(name),
                None => return Ok(()),
            },
            (None, None) => None,
        };
        let found = self.client.volume_type(name.as_deref()).await?;
        // Cinder refuses a type that does not exist, with the reason.
        let Some(found) = found.filter(|found| found.is_multiattach() == Some(false)) else {
            return Ok(());
        };
        let VolumeType { name, .. } = found;
        Err(Failure::invalid(
            "parameters[type]",
            format_args!(
                "several nodes cannot have volumes of the volume type {name:?}; use one with the \
                 extra spec multiattach=\"<is> True\""
            ),
        ))
    }

    /// Returns the type of a copy whose request contains no type: the type of the source volume.
    async fn type_of(&self, source: &ContentSource) -> Result<Option<String>, Failure> {
        let id = match source {
            ContentSource::Volume(id) => id.clone(),
            ContentSource::Snapshot(id) => match self.client.snapshot(id).await? {
                Some(snapshot) => snapshot.snapshot()?.source,
                None => return Ok(None),
            },
        };
        let volume = self.client.volume(&id).await?;
        Ok(volume.and_then(|volume| volume.volume_type))
    }
}

impl Cloud {
    /// Whether an existing volume may satisfy a request with its name although Cinder reports
    /// another value of a parameter.
    ///
    /// The value that Cinder reports is compared with the request, with two exceptions. The type is
    /// not compared if the volume's metadata records that a VolumeAttributesClass has changed the
    /// type, which may then differ from the StorageClass's type. If the metadata contains the zone
    /// of the StorageClass at the creation, that zone is compared instead of the volume's zone.
    /// Cinder may have selected a different zone (`allow_availability_zone_fallback`) even if the
    /// requested zone exists: the zone may not be allowed for the volume type
    /// (`RESKEY:availability_zones`), or not be in Cinder's cache.
    pub(super) async fn may_be(&self, parameter: Parameter) -> Result<bool, Failure> {
        let Parameter { key, is, asked } = parameter;
        match key {
            TYPE => Ok(match self.client.volume_type(Some(&asked)).await? {
                // A storage class may contain the type's ID instead of its name.
                Some(found) => found.name == is,
                // Cinder ignores case and trailing blanks, since its database, MariaDB, does.
                None => is.eq_ignore_ascii_case(asked.trim_end()),
            }),
            // If the metadata does not contain the requested zone, Cinder may have fallen back to
            // another zone because the requested zone does not exist.
            AVAILABILITY => Ok(!self.client.zones(Service::Volumes).await?.contains(&asked)),
            _ => Ok(false),
        }
    }
}
