//! Why Cinder keeps a volume that it was asked to delete. Its refusal lists all reasons that there
//! can be.

use super::Cloud;
use crate::backend::Volume;
use belay_server::call::{Failure, Kind};

impl Cloud {
    /// The refusal of a deletion, with the reason if the volume, as just seen, or its snapshots
    /// show one.
    pub(super) async fn in_use(&self, volume: &Volume, refused: Failure) -> Failure {
        if refused.kind != Kind::Precondition {
            return refused;
        }
        let id = &volume.id;
        let reason = match &*volume.nodes {
            [] => {
                let snapshots = self.client.snapshots(Some(id), None, 1).await;
                let first = snapshots.ok().and_then(|(page, _)| page.into_iter().next());
                first.map(|first| {
                    let snapshot = first.id;
                    format!("has snapshots, such as {snapshot}; delete them first")
                })
            }
            nodes => {
                let nodes: Vec<_> = nodes.iter().map(ToString::to_string).collect();
                let nodes = nodes.join(", ");
                Some(format!("attached to node {nodes}; detach it there first"))
            }
        };
        match reason {
            Some(reason) => Failure {
                message: format!("volume {id}: {reason}: {}", refused.message),
                ..refused
            },
            None => refused,
        }
    }
}
