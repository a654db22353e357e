//! Attaches volumes to droplets, and detaches them. The cloud changes only one volume of a droplet
//! at a time, and refuses other changes of the droplet's volumes during that time.

use super::client::Refused;
use super::pending::{Change, ChangeLookup, VolumeState};
use super::wire::{DoVolume, Refusal, USED};
use super::{DigitalOcean, Verb, measured};
use crate::backend::{Answer, AttachOrder, Attachment, Attachments, Progress, attachments};
use belay_contract::disk::DiskIdentity;
use belay_contract::drivers::DIGITALOCEAN;
use belay_contract::publish_context::{Content, Transport};
use belay_server::call::Failure;
use belay_server::request::{NodeId, Secrets, VolumeId};
use std::sync::Arc;

/// Returns the droplet ID; `None` if the node ID is not a number.
fn droplet(node: &NodeId) -> Option<u64> {
    node.as_str().parse().ok()
}

impl Attachments for DigitalOcean {
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        measured(Verb::Attach, async move {
            let (id, node) = (&order.id, &order.node);
            let no_droplet = || Failure::not_found(format!("node {node}: no droplet has that ID"));
            let droplet = droplet(node).ok_or_else(no_droplet)?;
            let change = Change::Attach(droplet);
            let (look, is_settled) = match self.pending.take(id, change)? {
                ChangeLookup::Running => return Ok(Progress::Begun),
                ChangeLookup::Ended(look) => (look, true),
                ChangeLookup::Nothing => (self.read_volume(id).await?, false),
            };
            match look.volume.droplets() {
                [] => {}
                here if here.contains(&droplet) && is_settled => {
                    return self.attached_here(&order, look).await;
                }
                here if here.contains(&droplet) => {
                    return self.found_here(&order, change, look).await;
                }
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
                    self.attached_already(&order, change, droplet, look.tries)
                        .await
                }
                _ => self.retry_later(refused, id, change, look.tries),
            }
        })
    }

    fn detach(&self, id: VolumeId, node: NodeId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Detach, async move {
            let Some(droplet) = droplet(&node) else {
                return Ok(Progress::Done(()));
            };
            let change = Change::Detach(droplet);
            self.pending.forget_first(&id);
            let tries = match self.pending.take(&id, change)? {
                ChangeLookup::Running => return Ok(Progress::Begun),
                ChangeLookup::Ended(look) if change.is_done(&look.volume) => {
                    return Ok(Progress::Done(()));
                }
                ChangeLookup::Ended(look) => look.tries,
                ChangeLookup::Nothing => 0,
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
                _ => self.retry_later(refused, &id, change, tries),
            }
        })
    }
}

impl DigitalOcean {
    /// Returns the attachment of a volume that is attached to the requested droplet although this
    /// process has not recorded an attach. If an action of the volume is running, waits until the
    /// action has ended, since another controller may be detaching the volume.
    async fn found_here(
        &self,
        order: &AttachOrder,
        change: Change,
        look: VolumeState,
    ) -> Result<Progress<Attachment>, Failure> {
        if self.client.history(&order.id).await?.is_running() {
            self.pending.wait(&order.id, change, look.tries);
            return Ok(Progress::Begun);
        }
        self.attached_here(order, look).await
    }

    /// Returns the attachment of a volume that is attached to the requested droplet. Tags the
    /// volume as used.
    async fn attached_here(
        &self,
        order: &AttachOrder,
        look: VolumeState,
    ) -> Result<Progress<Attachment>, Failure> {
        let (id, volume) = (&order.id, &look.volume);
        let (content, began) = self.word(id, &look).await?;
        // Tag the volume before a node may format it, so that the next node treats the volume as
        // used.
        if volume.content() == Content::New {
            let tagged = self.client.tag(id, USED).await;
            tagged.map_err(Failure::may_be_running)?;
        }
        if let Some(tag) = self.tag.as_ref().filter(|tag| !volume.has_tag(tag))
            && let Err(failure) = self.client.tag(id, tag).await
        {
            tracing::warn!(volume = id.as_str(), tag, %failure, "the volume is not tagged");
        }
        Ok(Progress::Done(attachment(order, volume, content, began)))
    }

    /// Returns the content of the volume, and the time of the attachment. The volume is new if this
    /// process has attached it for the first time, and no further attach has followed. A retry
    /// therefore returns the same content as the first call.
    async fn word(
        &self,
        id: &VolumeId,
        look: &VolumeState,
    ) -> Result<(Content, Option<u64>), Failure> {
        let content = look.volume.content();
        if !matches!(content, Content::New | Content::Used) {
            return Ok((content, look.began));
        }
        if look.is_first {
            return Ok((Content::New, look.began));
        }
        let Some(first) = self.pending.first(id) else {
            return Ok((Content::Used, look.began));
        };
        let history = self.client.history(id).await;
        match history
            .map_err(Failure::may_be_running)?
            .is_only_attach(first.action)
        {
            true => Ok((Content::New, first.began)),
            false => Ok((Content::Used, look.began)),
        }
    }

    /// Handles the cloud's refusal to attach a volume that is already attached. The refusal does
    /// not name the droplet.
    async fn attached_already(
        &self,
        order: &AttachOrder,
        change: Change,
        droplet: u64,
        tries: u32,
    ) -> Result<Progress<Attachment>, Failure> {
        let id = &order.id;
        let look = self.read_volume(id).await?;
        match look.volume.droplets() {
            // The volume is being attached to a droplet, or was detached meanwhile.
            [] => {
                self.pending.wait(id, change, tries);
                Ok(Progress::Begun)
            }
            here if here.contains(&droplet) => self.found_here(order, change, look).await,
            elsewhere => Err(attached_elsewhere(id, elsewhere)),
        }
    }

    /// Handles the cloud's refusal to detach a volume that is not attached. A controller that was
    /// killed may have begun to attach the volume to the droplet.
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
        let is_coming = volume.droplets().is_empty() && self.client.history(id).await?.is_running();
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

/// Maximum number of detach attempts that the cloud refuses because the volume is not attached.
/// After the last attempt, the caller receives the cloud's message. The attempts and the pauses
/// between them take a minute.
const TRIES_MAX: u32 = 8;

fn attached_elsewhere(id: &VolumeId, droplets: &[u64]) -> Failure {
    attachments::attached_elsewhere(id, droplets.first().copied().unwrap_or_default(), "")
}

fn attachment(
    order: &AttachOrder,
    volume: &DoVolume,
    content: Content,
    began: Option<u64>,
) -> Attachment {
    let name = volume.name.clone();
    Attachment {
        spec: order.spec.clone(),
        transport: Transport::Disk(DiskIdentity::Names(DIGITALOCEAN.names_of(&name))),
        bytes: volume.bytes(),
        content,
        attached_at: began,
        disk_name: Some(name),
    }
}
