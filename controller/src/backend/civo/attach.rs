//! Attaches volumes to instances, and detaches them. Attach and detach calls of this module read
//! the volume first. A detach call of Civo does not name the instance, so a delayed call could
//! detach the volume from another instance that uses the volume by then.

use super::changes::Change;
use super::wire::{CivoVolume, Status};
use super::{BEGAN, COPY, Civo, EMPTY};
use super::{about, failed};
use crate::backend::attachments::attached_elsewhere;
use crate::backend::measured::{Verb, measured};
use crate::backend::no_volume;
use crate::backend::{Answer, AttachOrder, Attachment, Attachments, Progress};
use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::{Content, Transport};
use belay_server::call::{Failure, Kind};
use belay_server::request::{NodeId, Secrets, VolumeId};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time between a read of a volume's instance and the detach call that relies on the result
/// of the read. Another controller, or Kubernetes, needs more time to detach the volume and attach
/// it to another instance.
const SEEN_AGE_MAX: Duration = Duration::from_secs(2);
/// Maximum number of times that a detach is read and requested again because Civo limits the rate
/// of calls.
const TURNS_MAX: usize = 5;
/// The age of a read after which the volume is read again before a detach.
const SEEN_AGE_FRESH: Duration = Duration::from_secs(1);

impl Civo {
    /// Returns the result of an earlier attach to this instance; `None` if the attach must be
    /// requested.
    fn found(
        &self,
        order: &AttachOrder,
        volume: &CivoVolume,
        instance: &str,
    ) -> Result<Option<Progress<Attachment>>, Failure> {
        let id = &order.id;
        if self.changes.hidden(volume).is_some() {
            return Ok(Some(Progress::Begun));
        }
        let elsewhere = |other: &str| {
            let node = self.nodes.node(other)?;
            Err(attached_elsewhere(id, node, ""))
        };
        match (volume.status(), volume.instance()) {
            (Status::Attached, Some(here)) if here == instance => {
                let seen = self.seen(volume)?;
                Ok(Some(Progress::Done(attachment(order, seen.bytes, volume))))
            }
            (Status::Attached | Status::Attaching, Some(other)) if other != instance => {
                elsewhere(other)
            }
            (Status::Available, _) => Ok(None),
            (Status::Deleting, _) => Err(no_volume(id)),
            (Status::Failed(word), _) => Err(about(id, failed(&word))),
            (Status::Attached | Status::Attaching | Status::Detaching | Status::Other(_), _) => {
                Ok(Some(Progress::Begun))
            }
        }
    }

    async fn attach_to(
        &self,
        order: &AttachOrder,
        instance: &str,
    ) -> Result<Progress<Attachment>, Failure> {
        let id = &order.id;
        let volume = self.read_volume(id).await?.ok_or_else(|| no_volume(id))?;
        if let Some(found) = self.found(order, &volume, instance)? {
            return Ok(found);
        }
        let change = Change::Attach(instance.to_owned());
        let refused = match self.client.attach(id, instance).await {
            Ok(()) => {
                self.changes.accepted(id, change);
                return Ok(Progress::Begun);
            }
            Err(refused) => refused,
        };
        // Another controller may have attached the volume, or the response may have been lost.
        if let Ok(Some(volume)) = self.read_volume(id).await
            && let Some(found) = self.found(order, &volume, instance)?
        {
            return Ok(found);
        }
        self.changes.failed(id, change, &refused);
        let Failure {
            kind,
            message,
            certainty,
        } = refused;
        let message = match kind {
            Kind::NotFound => format!("node {}: {message}", order.node),
            _ => format!("volume {id}: {message}"),
        };
        Err(Failure {
            kind,
            message,
            certainty,
        })
    }

    async fn detach_from(&self, id: &VolumeId, node: &NodeId) -> Result<Progress<()>, Failure> {
        for _ in 0..TURNS_MAX {
            if let Some(progress) = self.detach_now(id, node).await? {
                return Ok(progress);
            }
        }
        Err(Failure::busy(format!(
            "volume {id}: not detached, since Civo limits the rate of calls; repeat the call"
        )))
    }

    /// Detaches the volume; returns `None` if the volume must be read again because the detach call
    /// was not sent in time.
    async fn detach_now(
        &self,
        id: &VolumeId,
        node: &NodeId,
    ) -> Result<Option<Progress<()>>, Failure> {
        let Some(volume) = self.read_volume(id).await? else {
            return Ok(Some(Progress::Done(())));
        };
        if self.changes.hidden(&volume).is_some() {
            return Ok(Some(Progress::Begun));
        }
        let Some(instance) = volume.instance() else {
            return Ok(Some(match volume.status() {
                // The volume may be in the process of being attached to this node.
                Status::Attaching => Progress::Begun,
                Status::Other(word) if word == "attached" => Progress::Begun,
                _ => Progress::Done(()),
            }));
        };
        let mut seen = Instant::now();
        if !self.nodes.is(node, instance).await? {
            return Ok(Some(Progress::Done(())));
        }
        let mut status = volume.status();
        if seen.elapsed() >= SEEN_AGE_FRESH {
            let again = self.read_volume(id).await?;
            let is_same = |now: &CivoVolume| now.instance() == Some(instance);
            let Some(now) = again.filter(is_same) else {
                return Ok(Some(Progress::Done(())));
            };
            (seen, status) = (Instant::now(), now.status());
        }
        match status {
            Status::Detaching | Status::Attaching | Status::Other(_) => {
                return Ok(Some(Progress::Begun));
            }
            Status::Deleting => return Ok(Some(Progress::Done(()))),
            // Request the detach despite these statuses, since only Civo knows whether the volume
            // can be detached.
            Status::Attached | Status::Available | Status::Failed(_) => {}
        }
        let change = Change::Detach(instance.to_owned());
        match self.client.detach(id, seen + SEEN_AGE_MAX).await {
            Ok(true) => {
                self.changes.accepted(id, change);
                Ok(Some(Progress::Begun))
            }
            Ok(false) => Ok(None),
            Err(refused) => {
                self.changes.failed(id, change, &refused);
                self.left(id, instance, refused).await.map(Some)
            }
        }
    }

    /// Returns the result of a detach whose call has failed, from the current state of the volume.
    async fn left(
        &self,
        id: &VolumeId,
        instance: &str,
        refused: Failure,
    ) -> Result<Progress<()>, Failure> {
        match self.read_volume(id).await {
            Ok(None) => Ok(Progress::Done(())),
            Ok(Some(now)) => match (now.instance(), now.status()) {
                (Some(same), Status::Detaching) if same == instance => Ok(Progress::Begun),
                (Some(same), _) if same == instance => Err(about(id, refused)),
                _ => Ok(Progress::Done(())),
            },
            Err(_) => Err(about(id, refused)),
        }
    }
}

/// Returns the attachment. The serial number of the disk is the volume's ID. Only a volume context
/// of this driver records whether the volume was created empty, and no record shows whether the
/// volume was attached before. A node therefore reads the whole disk of a new volume before it
/// formats the disk.
fn attachment(order: &AttachOrder, bytes: u64, volume: &CivoVolume) -> Attachment {
    let content = match order.context.get(BEGAN) {
        Some(EMPTY) => Content::Used,
        Some(COPY) => Content::Populated,
        _ => Content::Unknown,
    };
    let least = volume.promise().least_of_disk(volume.gib());
    Attachment {
        spec: order.spec.clone(),
        transport: Transport::Disk(DiskIdentity::Serial(order.id.to_string())),
        disk_name: None,
        bytes: least.min(bytes),
        content,
        attached_at: None,
    }
}

impl Attachments for Civo {
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        measured(Verb::Attach, async move {
            let node = &order.node;
            let instance = self.nodes.instance(node).await?;
            let instance = instance.ok_or_else(|| {
                Failure::not_found(format!(
                    "node {node}: the cluster has no instance of that name; if the node's name \
                     differs from its host name, set its --node-id"
                ))
            })?;
            self.attach_to(&order, &instance).await
        })
    }

    fn detach(&self, id: VolumeId, node: NodeId, _: Secrets) -> Answer<'_, Progress<()>> {
        measured(
            Verb::Detach,
            async move { self.detach_from(&id, &node).await },
        )
    }
}
