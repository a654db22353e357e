//! Volumes and snapshots whose place belongs to another Node than before. A place belongs to the
//! Node of its LocalDisks; a person gives it to another Node with `belayctl local rehome`.

use super::Front;
use super::follow::Followed;
use super::item::{id, wanted};
use super::permit::RETRY;
use crate::kubernetes::{Change, LocalSnapshot, LocalVolume, Written};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::{Instant, timeout_at};

/// The Node of each disk, by place and name; `None` if several Nodes have it.
type Holders = HashMap<(String, String), Option<String>>;

impl Front {
    /// Writes the Node of its place into each volume and snapshot, until the task is aborted.
    pub(super) async fn rehome(self: Arc<Self>) {
        let mut changes = self.disks.changes();
        let (mut last, mut due) = (Holders::new(), Instant::now());
        loop {
            // A timeout is seen in the next line.
            drop(timeout_at(due, changes.changed()).await);
            changes.borrow_and_update();
            let holders = self.holders();
            if holders == last && Instant::now() < due {
                continue;
            }
            let volumes = self.rehome_kind::<LocalVolume>(&holders).await;
            let snapshots = self.rehome_kind::<LocalSnapshot>(&holders).await;
            last = holders;
            due = Instant::now()
                + match volumes && snapshots {
                    true => self.limits.check,
                    false => RETRY,
                };
        }
    }

    fn holders(&self) -> Holders {
        let mut holders = Holders::new();
        if self.disks.current().is_err() {
            return holders;
        }
        for seen in self.disks.all() {
            let held = seen.object.spec.known();
            if let Some(spec) = held.filter(|_| seen.object.was_served()) {
                let at = (spec.place.clone(), spec.disk.clone());
                holders
                    .entry(at)
                    .and_modify(|node| *node = None)
                    .or_insert_with(|| Some(spec.node.clone()));
            }
        }
        holders
    }

    /// Returns whether all objects have the Node of their place.
    async fn rehome_kind<R: Followed>(&self, holders: &Holders) -> bool {
        let mut is_done = R::cache(self).current().is_ok();
        for seen in R::cache(self).all() {
            let object = &seen.object;
            let Some(wanted) = wanted(object) else {
                continue;
            };
            let home = holders.get(&(wanted.place.to_owned(), wanted.disk.to_owned()));
            let Some(node) = home.and_then(Option::as_ref) else {
                continue;
            };
            if node == wanted.node {
                continue;
            }
            let (what, id) = (R::WHAT, id(object));
            // The other store has not refused an attempt to remove, and would execute an old one.
            let change = Change::Spec(json!({"node": node, "remove": null}));
            match self.client.patch::<R>(&object.metadata, change).await {
                Ok(Written::Done(_)) => {
                    tracing::info!("{what} {id}: its place {} is now on {node}", wanted.place);
                }
                // The next round sees the changed object.
                Ok(Written::Conflict | Written::Missing) => is_done = false,
                Err(failure) => {
                    is_done = false;
                    tracing::warn!("{what} {id}: its Node cannot be changed to {node}: {failure}");
                }
            }
        }
        is_done
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::super::examples::{changed, disk, nodes, shows, volume};
    use super::*;
    use crate::kubernetes::{Event, FINALIZER};

    #[tokio::test]
    async fn an_object_gets_the_node_of_its_place_unless_several_have_it() {
        let ready = || volume(&[FINALIZER], r#"{"phase": "Ready", "bytes": 2}"#);
        let moved = changed(&ready(), "spec", r#"{"node": "node2"}"#);
        let on = |node: &str, name: &str| {
            let name = format!(r#"{{"name": "{name}", "uid": "{name}"}}"#);
            let disk = changed(&disk(r#"{"uuid": "u"}"#), "metadata", &name);
            changed(&disk, "spec", &format!(r#"{{"node": "{node}"}}"#))
        };
        for (disks, calls) in [
            (vec![on("node1", "a")], 0),
            (vec![on("node2", "a")], 1),
            (vec![on("node1", "a"), on("node2", "b")], 0),
            (vec![], 0),
        ] {
            let acts = vec![shows(&moved)];
            let (nodes, server, _dir) = nodes(Limits::default(), ready(), acts).await;
            let front = &nodes.front;
            front.disks.apply(Ok(Event::Listed(disks)));
            front.rehome_kind::<LocalVolume>(&front.holders()).await;
            assert_eq!(server.calls(), calls);
        }
    }
}
