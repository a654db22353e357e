//! Attach to a droplet, and detach. The cloud changes one volume of a droplet at a time, and
//! refuses others meanwhile.

use super::client::Refused;
use super::pending::{Change, Found, Look, Outcome};
use super::wire::{DoVolume, Refusal, USED};
use super::{DigitalOcean, Verb, measured};
use crate::backend::{Answer, AttachOrder, Attachment, Attachments, Progress};
use belay_contract::disk::DiskIdentity;
use belay_contract::drivers::DIGITALOCEAN;
use belay_contract::publish_context::{Content, Transport};
use belay_server::call::{Failure, Kind};
use belay_server::request::{NodeId, Secrets, VolumeId};
use std::sync::Arc;

/// The ID of a droplet; none for a node that is none.
fn droplet(node: &NodeId) -> Option<u64> {
    node.as_str().parse().ok()
}

impl Attachments for DigitalOcean {
    fn one_per_node(&self) -> bool {
        true
    }

    fn records_terms(&self) -> bool {
        false
    }

    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        measured(Verb::Attach, async move {
            let (id, node) = (&order.id, &order.node);
            let no_droplet = || Failure::not_found(format!("node {node}: no droplet has that ID"));
            let droplet = droplet(node).ok_or_else(no_droplet)?;
            let change = Change::Attach(droplet);
            let look = match self.pending.take(id, change) {
                Found::Running => return Ok(Progress::Begun),
                Found::Ended(Outcome::Failed(why)) => {
                    return Err(Failure::new(Kind::Unreachable, why));
                }
                Found::Ended(Outcome::Seen(look)) => look,
                Found::Nothing => self.look(id).await?,
            };
            match look.volume.droplets() {
                [] => {}
                here if here.contains(&droplet) => return self.attached_here(&order, look).await,
                elsewhere => return Err(attached_elsewhere(id, elsewhere)),
            }
            let refused = match self.client.attach(id, droplet).await {
                Ok(action) => {
                    let began = action.began();
                    self.pending.begin(id, change, action.id, began);
                    return Ok(Progress::Begun);
                }
                Err(refused) => refused,
            };
            match refused.why {
                Refusal::NotFound => Err(no_droplet()),
                Refusal::AttachedAlready => {
                    self.attached_already(&order, droplet, look.tries).await
                }
                _ => self.waits_after(refused, id, change, look.tries),
            }
        })
    }

    fn detach(&self, id: VolumeId, node: NodeId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Detach, async move {
            let Some(droplet) = droplet(&node) else {
                return Ok(Progress::Done(()));
            };
            let change = Change::Detach(droplet);
            let tries = match self.pending.take(&id, change) {
                Found::Running => return Ok(Progress::Begun),
                Found::Ended(Outcome::Failed(why)) => {
                    return Err(Failure::new(Kind::Unreachable, why));
                }
                Found::Ended(Outcome::Seen(look)) if change.is_done(&look.volume) => {
                    return Ok(Progress::Done(()));
                }
                Found::Ended(Outcome::Seen(look)) => look.tries,
                Found::Nothing => 0,
            };
            let refused = match self.client.detach(&id, droplet).await {
                Ok(action) => {
                    self.pending.begin(&id, change, action.id, None);
                    return Ok(Progress::Begun);
                }
                Err(refused) => refused,
            };
            match refused.why {
                Refusal::NotAttached | Refusal::NotFound => {
                    self.unless_coming(&id, change, tries, refused).await
                }
                _ => self.waits_after(refused, &id, change, tries),
            }
        })
    }
}

impl DigitalOcean {
    /// The attachment of a volume that is attached where it shall be.
    async fn attached_here(
        &self,
        order: &AttachOrder,
        look: Look,
    ) -> Result<Progress<Attachment>, Failure> {
        let (id, volume) = (&order.id, &look.volume);
        let content = volume.content();
        // Before a node may format the volume: for the next one it is a used one.
        if content == Content::New {
            let tagged = self.client.tag(id, USED).await;
            tagged.map_err(Failure::may_be_running)?;
        }
        if let Some(tag) = self.tag.as_ref().filter(|tag| !volume.has_tag(tag))
            && let Err(failure) = self.client.tag(id, tag).await
        {
            tracing::warn!(volume = id.as_str(), tag, %failure, "the volume is not tagged");
        }
        Ok(Progress::Done(attachment(order, volume, look.began)))
    }

    /// The cloud says that the volume is attached, and not where.
    async fn attached_already(
        &self,
        order: &AttachOrder,
        droplet: u64,
        tries: u32,
    ) -> Result<Progress<Attachment>, Failure> {
        let id = &order.id;
        let look = self.look(id).await?;
        match look.volume.droplets() {
            // It is on its way to a droplet, or was detached meanwhile.
            [] => {
                self.pending.wait(id, Change::Attach(droplet), tries);
                Ok(Progress::Begun)
            }
            here if here.contains(&droplet) => self.attached_here(order, look).await,
            elsewhere => Err(attached_elsewhere(id, elsewhere)),
        }
    }

    /// The cloud says that there is nothing to detach; but it may be on its way to the droplet, by
    /// a controller that was killed.
    async fn unless_coming(
        &self,
        id: &VolumeId,
        change: Change,
        tries: u32,
        refused: Refused,
    ) -> Result<Progress<()>, Failure> {
        let Some(volume) = self.client.volume(id).await? else {
            return Ok(Progress::Done(()));
        };
        let is_coming = volume.droplets().is_empty() && self.client.is_changing(id).await?;
        if change.is_done(&volume) && !is_coming {
            return Ok(Progress::Done(()));
        }
        if tries > TRIES_MAX {
            return Err(refused.failure);
        }
        self.pending.wait(id, change, tries);
        Ok(Progress::Begun)
    }
}

/// After so many refusals the caller gets the cloud's own words; with the pauses, a minute.
const TRIES_MAX: u32 = 8;

fn attached_elsewhere(id: &VolumeId, droplets: &[u64]) -> Failure {
    let other = droplets.first().copied().unwrap_or_default();
    Failure::precondition(format!(
        "volume {id}: attached to node {other}; detach it there first"
    ))
}

fn attachment(order: &AttachOrder, volume: &DoVolume, began: Option<u64>) -> Attachment {
    let name = volume.name.clone();
    Attachment {
        terms: order.terms.clone(),
        transport: Transport::Disk(DiskIdentity::Names(DIGITALOCEAN.names_of(&name))),
        bytes: volume.bytes(),
        content: volume.content(),
        attached_at: began,
        disk_name: Some(name),
    }
}
