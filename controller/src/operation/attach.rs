//! Attaches a volume to a node, and detaches it.

use super::clouds::{Cloud, Clouds};
use super::engine::{Engine, Patience};
use super::{Operations, Subject, lookup, support};
use crate::backend::{
    AttachOrder, Attachment, AttachmentSpec, Attachments, Backend, DroppedChange, Phase, Progress,
    no_volume,
};
use belay_server::call::{Failure, Rpc};
use belay_server::request::{
    Access, ControllerPublish, ControllerUnpublish, NodeId, Secrets, VolumeId,
};
use belay_server::work::fingerprint;
use std::fmt;
use std::sync::Arc;

impl Operations {
    /// Attaches the volume to the node; succeeds if the volume is already attached to the node with
    /// the same spec.
    ///
    /// # Errors
    /// Returns `Invalid` for an unsupported capability, `NotFound` if the volume or the node does
    /// not exist, and `Incompatible` if the volume is attached to the node with a different spec.
    /// Returns `Precondition` if the volume is attached to a different node, and `Quota` if the
    /// node has reached its limit of attached volumes.
    pub async fn publish(&self, request: ControllerPublish) -> Result<Attachment, Failure> {
        let ControllerPublish {
            id,
            node,
            capability,
            read_only,
            volume_context,
            secrets,
        } = request;
        let cloud = self.cloud(&secrets)?;
        if let Some(why) = support::unattachable(&self.rules.profile, &capability) {
            return Err(Failure::invalid("volume_capability", why));
        }
        let spec = AttachmentSpec {
            read_only: read_only || capability.mode.is_read_only(),
            block: matches!(capability.access, Access::Block),
            mode: capability.mode,
        };
        let order = Arc::new(AttachOrder {
            id,
            node,
            spec,
            context: volume_context,
            secrets,
        });
        let AttachOrder { id, node, spec, .. } = &*order;
        let same = fingerprint(&(node, spec, &order.context, &order.secrets));
        let (backend, engine) = (Arc::clone(&cloud.backend), Arc::clone(&cloud.engine));
        let ordered = Arc::clone(&order);
        let job = async move {
            let patience = engine.patience();
            let _turn = engine.turn(&ordered.node, &patience).await?;
            attach(backend.as_ref(), &engine, patience, ordered).await
        };
        let rpc = Rpc::ControllerPublishVolume;
        let call = (Subject::Volume, id.as_str(), rpc, same);
        let attachment = self.run(cloud, call, job).await?;
        if attachment.spec == *spec {
            return Ok(attachment);
        }
        Err(Failure::incompatible(format!(
            "volume {id}: attached to node {node} {}, but {spec} requested; detach it first",
            attachment.spec
        )))
    }

    /// Detaches the volume from the node, or from all nodes; succeeds if the volume is not
    /// attached.
    ///
    /// # Errors
    /// Returns `Busy` while the node still uses the volume.
    pub async fn unpublish(&self, request: ControllerUnpublish) -> Result<(), Failure> {
        let cloud = self.cloud(&request.secrets)?;
        let same = fingerprint(&(&request.node, &request.secrets));
        let ControllerUnpublish { id, node, secrets } = request;
        let (clouds, here, volume) = (Arc::clone(&self.clouds), cloud.clone(), id.clone());
        let job = async move {
            let nodes = match node {
                Some(node) => vec![node],
                None => nodes_of(&clouds, &here, &volume, &secrets).await?,
            };
            for node in nodes {
                let patience = here.engine.patience();
                let _turn = here.engine.turn(&node, &patience).await?;
                detach((&clouds, &here), patience, &volume, node, &secrets).await?;
            }
            Ok(())
        };
        let rpc = Rpc::ControllerUnpublishVolume;
        let call = (Subject::Volume, id.as_str(), rpc, same);
        self.run(cloud, call, job).await
    }
}

/// Returns the nodes to which the volume is attached. If the volume is attached to no node, marks
/// the volume as used, since a node may have written to it earlier.
async fn nodes_of(
    clouds: &Clouds,
    here: &Cloud,
    id: &VolumeId,
    secrets: &Secrets,
) -> Result<Vec<NodeId>, Failure> {
    let backend = here.backend.as_ref();
    let Some(seen) = backend.get(id.clone(), secrets.clone()).await? else {
        clouds.no_volume_elsewhere(here, id).await?;
        return Ok(Vec::new());
    };
    match &seen.phase {
        // The storage may be attaching the volume to a node.
        Phase::Busy(at) => Err(Failure::busy(format!("volume {id}: {at}; repeat the call"))),
        Phase::Ready | Phase::Failed(_) if seen.nodes.is_empty() => {
            of(backend)?.mark_used(&seen, secrets.clone()).await?;
            Ok(Vec::new())
        }
        Phase::Ready | Phase::Failed(_) | Phase::Deleting => Ok(seen.nodes),
    }
}

async fn attach(
    backend: &dyn Backend,
    engine: &Engine,
    mut patience: Patience,
    order: Arc<AttachOrder>,
) -> Result<Attachment, Failure> {
    let (attachments, id) = (of(backend)?, &order.id);
    loop {
        // From the second iteration on, `attach` reads the result. If the storage has dropped an
        // accepted attachment, or could not begin it yet, `attach` starts it again.
        if let Progress::Done(attachment) = attachments.attach(Arc::clone(&order)).await? {
            return Ok(attachment);
        }
        let volume = engine
            .settled_within(&mut patience, id, &order.secrets)
            .await?;
        let seen = lookup::ready(volume.ok_or_else(|| no_volume(id))?)?;
        if let Some(attachment) = attachments.attached(&order, &seen) {
            return Ok(attachment);
        }
        if patience.is_spent() && !seen.nodes.contains(&order.node) {
            let dropped = DroppedChange::Attach(order.node.clone());
            return Err(engine.dropped(id, dropped, &order.secrets).await);
        }
    }
}

async fn detach(
    (clouds, here): (&Clouds, &Cloud),
    mut patience: Patience,
    id: &VolumeId,
    node: NodeId,
    secrets: &Secrets,
) -> Result<(), Failure> {
    let (attachments, engine) = (of(here.backend.as_ref())?, &here.engine);
    loop {
        let detached = attachments.detach(id.clone(), node.clone(), secrets.clone());
        if let Progress::Done(()) = detached.await? {
            return clouds.check_missing(here, id, secrets).await;
        }
        let volume = engine.settled_within(&mut patience, id, secrets).await?;
        let Some(volume) = volume else {
            return Ok(());
        };
        if !lookup::ready(volume)?.nodes.contains(&node) {
            return Ok(());
        }
        if patience.is_spent() {
            return Err(engine
                .dropped(id, DroppedChange::Detach(node), secrets)
                .await);
        }
    }
}

/// Returns the backend's implementation of attachments.
///
/// # Errors
/// Returns `Unsupported` if the backend does not attach volumes.
fn of(backend: &dyn Backend) -> Result<&dyn Attachments, Failure> {
    let attachments = backend.attachments();
    attachments.ok_or_else(|| Failure::unsupported("this driver does not attach volumes"))
}

impl fmt::Display for AttachmentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let write = if self.read_only {
            "read-only"
        } else {
            "writable"
        };
        let access = if self.block { "block" } else { "mount" };
        write!(f, "{write} ({access}, {})", self.mode.name())
    }
}
