//! Attachments by Nova. Attaches volumes to servers, and detaches them. A volume is attached to a
//! second server only if three conditions hold: its type is multiattach, all attach calls so far
//! have allowed several nodes, and it is a raw block volume. If two servers used a filesystem at
//! the same time, they would damage it.

use super::wire::{self, CinderVolume};
use super::{Cloud, id as ids};
use crate::backend::attachments::attached_elsewhere;
use crate::backend::measured::{Verb, measured};
use crate::backend::{
    Answer, AttachOrder, Attachment, Attachments, Phase, Progress, Volume, no_volume,
};
use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::{Content, Transport};
use belay_server::call::{Failure, Kind};
use belay_server::request::{NodeId, Secrets, VolumeId};
use std::sync::Arc;

/// Adds an explanation to an error if Nova has a record of an attachment that Cinder does not have.
/// Nova creates its record before Cinder's record, and deletes its record after Cinder's. While
/// only Nova's record exists, Nova refuses to attach the volume; soon afterwards, Nova accepts the
/// call. If the compute service hangs while only Nova's record exists, Nova returns 500, and the
/// record remains until the server is deleted, since Nova detaches only volumes that are attached
/// in Cinder.
fn unless_nova_knows(id: &VolumeId, refused: Failure) -> Failure {
    match refused.message.contains(wire::ATTACHED_ALREADY) {
        true => Failure::busy(format!(
            "volume {id}: Nova has a record of an attachment that Cinder does not have, as while \
             it attaches or detaches; if that stays, the record is stale, and ends with that \
             server: {refused}"
        )),
        false => refused,
    }
}

/// Whether the request allows several nodes to use the volume.
fn shares(order: &AttachOrder) -> bool {
    order.spec.mode.is_multi_node() && order.spec.block
}

/// Refuses to attach a volume that is attached to another node, unless both attachments allow
/// several nodes.
fn refuse_another(
    order: &AttachOrder,
    volume: &Volume,
    cinder: &CinderVolume,
) -> Result<(), Failure> {
    let Some(other) = volume.nodes.iter().find(|node| **node != order.node) else {
        return Ok(());
    };
    let why = if !order.spec.mode.is_multi_node() {
        ""
    } else if !order.spec.block {
        " (several nodes at once would damage a filesystem)"
    } else if !volume.shares {
        " (its volume type is not multiattach)"
    } else if !cinder.is_shared() {
        " (by a call for one node, or by another program)"
    } else {
        return Ok(());
    };
    Err(attached_elsewhere(&order.id, other, why))
}

impl Cloud {
    /// Records whether further nodes may attach the volume at the same time.
    async fn mark_sharing(
        &self,
        order: &AttachOrder,
        volume: &Volume,
        cinder: &CinderVolume,
    ) -> Result<(), Failure> {
        let shares = shares(order) && volume.shares;
        match (shares, cinder.is_shared()) {
            (true, false) => self.client.mark(&order.id, wire::SHARED).await,
            (false, true) => self.client.note(&order.id, wire::SHARED, "no").await,
            (true, true) | (false, false) => Ok(()),
        }
    }

    /// Marks a new volume as used before its first detachment, since it may then contain data.
    async fn mark_as_used(&self, seen: &Volume) -> Result<(), Failure> {
        match seen.content {
            Some(Content::New) => self.client.mark(&seen.id, wire::USED).await,
            _ => Ok(()),
        }
    }
}

impl Attachments for Cloud {
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        measured(Verb::Attach, async move {
            let (id, node) = (&order.id, &order.node);
            ids::path_of("node", node.as_str())?;
            let (volume, cinder) = self.read_volume(id).await?.ok_or_else(|| no_volume(id))?;
            match &volume.phase {
                Phase::Busy(what) => {
                    let message = format!("volume {id}: {what}; repeat the call later");
                    return Err(Failure::busy(message));
                }
                Phase::Deleting => return Err(no_volume(id)),
                Phase::Ready | Phase::Failed(_) => {}
            }
            if let Some(attachment) = self.attached(&order, &volume) {
                // This request does not allow several nodes, so no further node may attach the
                // volume.
                if !shares(&order) {
                    self.mark_sharing(&order, &volume, &cinder).await?;
                }
                return Ok(Progress::Done(attachment));
            }
            refuse_another(&order, &volume, &cinder)?;
            self.mark_sharing(&order, &volume, &cinder).await?;
            match self.client.attach(id, node).await {
                Ok(()) => Ok(Progress::Begun),
                Err(refused) if refused.kind == Kind::NotFound => {
                    let message = format!("node {node}: {refused}");
                    Err(Failure::not_found(message))
                }
                Err(refused) => {
                    let done = |volume: &Volume| self.attached(&order, volume);
                    let attached = self.unless(id, refused, done).await;
                    let named = |refused| unless_nova_knows(id, refused);
                    attached.map(Progress::Done).map_err(named)
                }
            }
        })
    }

    fn attached(&self, order: &AttachOrder, seen: &Volume) -> Option<Attachment> {
        let is_alone = seen.nodes == [order.node.clone()];
        let is_meant = is_alone || shares(order) && seen.nodes.contains(&order.node);
        is_meant.then(|| Attachment {
            spec: order.spec.clone(),
            transport: Transport::Disk(DiskIdentity::Serial(order.id.to_string())),
            bytes: seen.bytes,
            // The volume context of a volume from a backup contains this entry throughout the
            // volume's lifecycle.
            content: match order.context.get(wire::RESIZE_REQUIRED) {
                Some("true") => Content::Populated,
                _ => seen.content.unwrap_or(Content::Unknown),
            },
            attached_at: seen.attached_at,
            disk_name: None,
        })
    }

    fn detach(&self, id: VolumeId, node: NodeId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Detach, async move {
            // Node IDs are compared as text, so a volume would wrongly seem detached if a node ID
            // were spelled differently.
            ids::path("node", node.as_str())?;
            let Some((volume, _)) = self.read_volume(&id).await? else {
                return Ok(Progress::Done(()));
            };
            let is_attached = volume.nodes.contains(&node);
            match &volume.phase {
                Phase::Busy(_) if is_attached => return Ok(Progress::Begun),
                // The volume may be in the process of being attached to the node.
                Phase::Busy(what) => {
                    let message = format!("volume {id}: {what}; repeat the call later");
                    return Err(Failure::busy(message));
                }
                Phase::Deleting => return Ok(Progress::Done(())),
                Phase::Ready | Phase::Failed(_) => {}
            }
            // Mark the volume as used even if it is already detached, since Nova itself detaches
            // the volumes of a deleted server.
            self.mark_as_used(&volume).await?;
            if !is_attached {
                return Ok(Progress::Done(()));
            }
            match self.client.detach(&id, &node).await {
                // Nova detaches the volumes of a deleted server shortly after the deletion.
                Ok(_) => Ok(Progress::Begun),
                Err(refused) => {
                    let done = |volume: &Volume| {
                        let is_attached = volume.nodes.contains(&node);
                        (!is_attached).then_some(Progress::Done(()))
                    };
                    self.unless(&id, refused, done).await
                }
            }
        })
    }

    fn mark_used<'a>(&'a self, seen: &'a Volume, _: Secrets) -> Answer<'a, ()> {
        measured(Verb::Detach, self.mark_as_used(seen))
    }
}
