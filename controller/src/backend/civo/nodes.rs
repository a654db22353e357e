//! Finds the Civo instance for a node ID. A node agent reports the ID of its instance, or else the
//! name of its node, which must be the host name of an instance in the configured cluster. A host
//! name that is only similar does not match (civo-csi would accept it), since it is the name of a
//! different node. An instance with the same host name in another cluster of the account does not
//! match, either.

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

/// Reads the instances of the configured cluster.
struct Instances(Arc<Client>);

impl Reads for Instances {
    type Of = ();
    type Output = Arc<Vec<Instance>>;

    async fn serve(self: Arc<Self>, callers: Vec<Caller<Self>>) {
        answer_all(callers, &self.0.instances().await.map(Arc::new));
    }
}

/// The relation of an instance to a node, according to Civo's lists.
enum Shown {
    /// The instance is the node.
    Node,
    /// The instance is another node, or belongs to another cluster.
    Other,
    /// The instance no longer exists: Civo does not find its ID, and no cluster contains the
    /// instance.
    Nowhere,
}

/// The nodes of the configured cluster.
pub(super) struct Nodes {
    client: Arc<Client>,
    /// The node IDs that calls have used for instances. The backend reports volumes with these IDs,
    /// so that the reported node IDs match the node IDs in Kubernetes.
    names: Lock<BTreeMap<String, NodeId>>,
    /// The IDs of instances that are known not to belong to another cluster. An instance never
    /// moves to another cluster.
    ours: Lock<BTreeSet<String>>,
    /// Reads of the list of instances, shared by concurrent calls for new nodes.
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

    /// Returns the instance of a node; `None` if the cluster has no instance with this host name.
    ///
    /// # Errors
    /// Returns `NotFound` if the instance belongs to another cluster.
    pub(super) async fn instance(&self, node: &NodeId) -> Result<Option<String>, Failure> {
        if is_uuid(node.as_str()) {
            self.names.lock().remove(node.as_str());
            self.refuse_another_cluster(node).await?;
            return Ok(Some(node.to_string()));
        }
        self.named(node, &self.client.instances().await?)
    }

    /// Refuses the ID of an instance of another cluster: the node agent may belong to another
    /// cluster, and the cluster of an instance is not visible in its ID.
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

    /// Returns the instance whose host name is the node ID.
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

    /// Whether the instance to which a volume is attached is this node, even if the instance has
    /// left the cluster. Returns true for an instance that no longer exists, since no process on a
    /// deleted instance can use the volume. Returns false for an instance of another cluster,
    /// whatever its host name is.
    pub(super) async fn is(&self, node: &NodeId, instance: &str) -> Result<bool, Failure> {
        // The last call for this instance used this node ID, and the volume is still attached.
        if self.names.lock().get(instance) == Some(node) {
            return Ok(true);
        }
        if is_uuid(node.as_str()) {
            self.names.lock().remove(node.as_str());
            return Ok(node.as_str() == instance);
        }
        let shown = match self.shown(node, instance).await? {
            // The instance may be new, and missing from a stale list.
            Shown::Nowhere => {
                sleep(STALE_MAX).await;
                self.shown(node, instance).await?
            }
            shown => shown,
        };
        let is_it = !matches!(shown, Shown::Other);
        if is_it {
            // Later reads of the volume must report this node ID, so that the caller notices the
            // end of the detach.
            self.names.lock().insert(instance.to_owned(), node.clone());
        }
        Ok(is_it)
    }

    /// Determines from Civo's lists whether the instance is this node.
    async fn shown(&self, node: &NodeId, instance: &str) -> Result<Shown, Failure> {
        let all = self.client.instances().await?;
        if self.named(node, &all)?.as_deref() == Some(instance) {
            return Ok(Shown::Node);
        }
        if all.iter().any(|other| other.id == instance) {
            // The instance has another host name.
            return Ok(Shown::Other);
        }
        // The cluster may have another, new instance with this host name. A read by the ID may not
        // find an instance that is still listed with its cluster, so check the clusters before
        // treating the instance as deleted.
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

    /// Whether calls have used a different node ID for the instance.
    fn is_another(&self, instance: &str, node: &NodeId) -> bool {
        let names = self.names.lock();
        names.get(instance).is_some_and(|name| name != node)
    }

    /// Returns the node ID of an instance: the ID that calls use, or else the instance's ID.
    pub(super) fn node(&self, instance: &str) -> Result<NodeId, Failure> {
        let known = self.names.lock().get(instance).cloned();
        known.map_or_else(|| NodeId::new(instance), Ok)
    }
}

/// Whether the host name of an instance matches the name of a node. The comparison ignores case,
/// and the domain of the host name.
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
