//! Expands volumes, which Civo supports only while a volume is detached. The node expands the
//! filesystem during the next NodeStageVolume call for the volume.

use super::Civo;
use super::changes::Change;
use super::size::{GIB, Promise};
use super::wire::Status;
use super::{about, failed};
use crate::backend::measured::{Verb, measured};
use crate::backend::no_volume;
use crate::backend::{Answer, Expansion, Progress, Sizes, Volume};

use belay_server::call::Failure;
use belay_server::request::{Secrets, VolumeId};

impl Expansion for Civo {
    /// Returns the capacities to which the volume can be expanded. If the current capacity is in
    /// whole GiB, the capacity is the size of the Civo volume ([`Promise::Volume`]). Otherwise, the
    /// capacity is the size of the disk.
    fn grown_sizes(&self, volume: &Volume) -> Sizes {
        match volume.bytes % GIB {
            0 => Promise::Volume.sizes(),
            _ => Promise::Disk.sizes(),
        }
    }

    fn resize(&self, id: VolumeId, bytes: u64, _: Secrets) -> Answer<'_, Progress<u64>> {
        measured(Verb::Resize, async move {
            let volume = self.read_volume(&id).await?.ok_or_else(|| no_volume(&id))?;
            let promise = volume.promise();
            let has = promise.bytes(volume.gib());
            if has >= bytes {
                return Ok(Progress::Done(has));
            }
            if self.changes.hidden(&volume).is_some() {
                return Ok(Progress::Begun);
            }
            if let Some(instance) = volume.instance() {
                let node = self.nodes.node(instance)?;
                return Err(Failure::precondition(format!(
                    "volume {id}: attached to node {node}, and Civo expands only detached volumes; \
                     stop the pods that use it; the expansion is then repeated automatically"
                )));
            }
            match volume.status() {
                Status::Available => {}
                Status::Failed(word) => return Err(about(&id, failed(&word))),
                _ => return Ok(Progress::Begun),
            }
            let gib = promise.gib(bytes);
            let refused = match self.client.resize(&id, gib).await {
                Ok(()) => {
                    self.changes.accepted(&id, Change::Resize(gib));
                    return Ok(Progress::Begun);
                }
                Err(refused) => refused,
            };
            // Another controller may have expanded the volume, or the response may have been lost.
            if let Ok(Some(now)) = self.read_volume(&id).await {
                let has = promise.bytes(now.gib());
                if has >= bytes {
                    return Ok(Progress::Done(has));
                }
                if now.instance().is_none() && now.status() != Status::Available {
                    return Ok(Progress::Begun);
                }
            }
            self.changes.failed(&id, Change::Resize(gib), &refused);
            Err(about(&id, refused))
        })
    }
}
