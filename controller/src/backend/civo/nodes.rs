//! Which instance of Civo a node is. A node agent reports the ID of its instance, or the name of
//! its node where it has found no ID; then the instance of the cluster with that host name is
//! meant. A name that is only similar is another node's: civo-csi takes that too. So is the same
//! name in another cluster of the account.

use super::changes::STALE_MAX;
use super::client::{Client, Owner};
use super::wire::Instance;
use crate::backend::cloud::ids::is_uuid;
use crate::backend::cloud::rounds::{Caller, Reads, Rounds, answer_all};
use belay_server::call::Failure;
use belay_server::lock::Lock;
use belay_server::request::NodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::sleep;

/// Reads the instances of the cluster.
struct Instances(Arc<Client>);

impl Reads for Instances {
    type Of = ();
    type Found = Arc<Vec<Instance>>;

    async fn serve(self: Arc<Self>, callers: Vec<Caller<Self>>) {
        answer_all(callers, &self.0.instances().await.map(Arc::new));
    }
}

/// What an instance is, by what Civo shows of it.
enum Shown {
    /// The node.
    Node,
    /// Another one, or of another cluster.
    Other,
    /// Neither the account nor a cluster has it.
    Nowhere,
}

/// The nodes of a cluster.
pub(super) struct Nodes {
    client: Arc<Client>,
    /// The names by which calls have named instances, so that volumes are reported with the ID that
    /// Kubernetes has for their node.
    names: Lock<BTreeMap<String, NodeId>>,
    /// The instances that are in no other cluster; none moves to another one.
    ours: Lock<BTreeSet<String>>,
    /// What calls for new nodes at the same time share.
    lists: Rounds<Instances>,
}

impl Nodes {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self {
            lists: Rounds::new(Instances(Arc::clone(&client))),
            client,
            names: Lock::default(),
            ours: Lock::default(),
        }
    }

    /// The instance of a node; none if the cluster has none of that name.
    ///
    /// # Errors
    /// `NotFound` if it belongs to another cluster.
    pub(super) async fn instance(&self, node: &NodeId) -> Result<Option<String>, Failure> {
        if is_uuid(node.as_str()) {
            self.names.lock().remove(node.as_str());
            self.refuse_another_cluster(node).await?;
            return Ok(Some(node.to_string()));
        }
        self.named(node, &self.client.instances().await?)
    }

    /// An ID does not say of which cluster it is: a node agent may be configured for another one.
    async fn refuse_another_cluster(&self, node: &NodeId) -> Result<(), Failure> {
        let ours = || self.ours.lock();
        let id = node.as_str();
        if ours().contains(id) {
            return Ok(());
        }
        let all = self.lists.next(()).await?;
        ours().extend(all.iter().map(|instance| instance.id.clone()));
        if ours().contains(id) {
            return Ok(());
        }
        match self.client.owner(id).await? {
            Some(Owner::Another(other)) => Err(Failure::not_found(format!(
                "node {node}: is an instance of cluster {other}, and this controller is for \
                 cluster {}; check CIVO_CLUSTER_ID and the --node-id of the node",
                self.client.access().cluster
            ))),
            Some(Owner::Ours(_)) | None => {
                ours().insert(id.to_owned());
                Ok(())
            }
        }
    }

    /// The one that is called like the node.
    fn named(&self, node: &NodeId, all: &[Instance]) -> Result<Option<String>, Failure> {
        let mut found = all.iter().filter(|instance| {
            let host = instance.hostname.as_deref();
            host.is_some_and(|host| is_called(host, node))
        });
        let Some(instance) = found.next() else {
            return Ok(None);
        };
        if let Some(other) = found.next() {
            return Err(Failure::precondition(format!(
                "node {node}: instances {} and {} both have that host name; set the node's \
                 --node-id to the ID of its instance",
                instance.id, other.id
            )));
        }
        self.names.lock().insert(instance.id.clone(), node.clone());
        Ok(Some(instance.id.clone()))
    }

    /// Whether an instance that has a volume is that node, also after it has left the cluster. An
    /// instance that neither Civo's instances nor its clusters have is: it is deleted, and no
    /// volume can be in use there. One of another cluster is not, whatever its name is.
    pub(super) async fn is(&self, node: &NodeId, instance: &str) -> Result<bool, Failure> {
        // It was, when a call named it last, and the volume is still there.
        if self.names.lock().get(instance) == Some(node) {
            return Ok(true);
        }
        if is_uuid(node.as_str()) {
            self.names.lock().remove(node.as_str());
            return Ok(node.as_str() == instance);
        }
        let shown = match self.shown(node, instance).await? {
            // A stale list may lack a new node.
            Shown::Nowhere => {
                sleep(STALE_MAX).await;
                self.shown(node, instance).await?
            }
            shown => shown,
        };
        let is_it = !matches!(shown, Shown::Other);
        if is_it {
            // The end of its detach is found by that name.
            self.names.lock().insert(instance.to_owned(), node.clone());
        }
        Ok(is_it)
    }

    /// What Civo shows of an instance that may be that node.
    async fn shown(&self, node: &NodeId, instance: &str) -> Result<Shown, Failure> {
        let all = self.client.instances().await?;
        if self.named(node, &all)?.as_deref() == Some(instance) {
            return Ok(Shown::Node);
        }
        if all.iter().any(|other| other.id == instance) {
            // It has another name.
            return Ok(Shown::Other);
        }
        // The cluster may have a new instance of that name. Civo may list those of clusters only
        // with their cluster, so the clusters decide which instances are deleted.
        let shown = match self.client.instance(instance).await? {
            Some(left) => match left.hostname.is_some_and(|it| is_called(&it, node)) {
                true => Shown::Node,
                false => return Ok(Shown::Other),
            },
            None if self.is_another(instance, node) => return Ok(Shown::Other),
            None => Shown::Nowhere,
        };
        match (self.client.owner(instance).await?, shown) {
            (Some(Owner::Another(_)), _) => Ok(Shown::Other),
            (Some(Owner::Ours(host)), Shown::Nowhere) => match host {
                Some(host) if is_called(&host, node) => Ok(Shown::Node),
                Some(_) => Ok(Shown::Other),
                None => Err(Failure::busy(format!(
                    "node {node}: Civo shows the cluster with instance {instance}, without its \
                     host name, so whether it is that node is not known yet; repeat the call"
                ))),
            },
            (Some(Owner::Ours(_)) | None, shown) => Ok(shown),
        }
    }

    /// Whether calls have named it as another node.
    fn is_another(&self, instance: &str, node: &NodeId) -> bool {
        let names = self.names.lock();
        names.get(instance).is_some_and(|name| name != node)
    }

    /// The node, as calls name it.
    pub(super) fn node(&self, instance: &str) -> Result<NodeId, Failure> {
        let known = self.names.lock().get(instance).cloned();
        known.map_or_else(|| NodeId::new(instance), Ok)
    }
}

/// A host name may have a domain, and no case.
fn is_called(host: &str, node: &NodeId) -> bool {
    let node = node.as_str();
    let first = host.split('.').next().unwrap_or_default();
    host.eq_ignore_ascii_case(node) || first.eq_ignore_ascii_case(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_called_by_its_whole_name_and_by_no_part_of_it() {
        let node = NodeId::new("node-1").unwrap();
        for (host, is_it) in [
            ("node-1", true),
            ("Node-1", true),
            ("node-1.example.com", true),
            ("node-10", false),
            ("k3s-node-1", false),
            ("", false),
        ] {
            assert_eq!(is_called(host, &node), is_it, "{host}");
        }
    }
}
