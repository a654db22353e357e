//! Which volumes several servers can have at once: those of a type that is multiattach.

use super::Cloud;
use super::likeness::TYPE;
use super::wire::VolumeType;
use crate::backend::Order;
use belay_server::call::Failure;
use belay_server::request::ContentSource;

impl Cloud {
    /// Refuses an order for a volume of several nodes if its type is not multiattach. Older clouds
    /// do not show that of a type: then the new volume shows it.
    ///
    /// # Errors
    /// `Invalid`; those of reading types.
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
        // Cinder refuses a type that does not exist, and says so.
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

    /// The type that a copy has if its order names none.
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
