//! Which instance of Civo a node is. A node agent reports the ID of its instance, or the name of
//! its node where it has found no ID; then the instance of the cluster with that host name is
//! meant. A name that is only similar is another node's: civo-csi takes that too.

use super::client::Client;
use super::id::is_uuid;
use super::wire::Instance;
use belay_server::call::Failure;
use belay_server::request::NodeId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The nodes of a cluster.
pub(super) struct Nodes {
    client: Arc<Client>,
    /// The names by which calls have named instances, so that volumes are reported with the ID that
    /// Kubernetes has for their node.
    names: Mutex<BTreeMap<String, NodeId>>,
}

impl Nodes {
    pub(super) fn new(client: Arc<Client>) -> Self {
        let names = Mutex::default();
        Self { client, names }
    }

    fn names(&self) -> MutexGuard<'_, BTreeMap<String, NodeId>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The instance of a node; none if the cluster has none of that name.
    pub(super) async fn instance(&self, node: &NodeId) -> Result<Option<String>, Failure> {
        if is_uuid(node.as_str()) {
            self.names().remove(node.as_str());
            return Ok(Some(node.to_string()));
        }
        self.named(node, &self.client.instances().await?)
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
        self.names().insert(instance.id.clone(), node.clone());
        Ok(Some(instance.id.clone()))
    }

    /// Whether an instance that has a volume is that node, also after it has left the cluster. One
    /// of which Civo says that it does not exist is: a volume cannot be in use there.
    pub(super) async fn is(&self, node: &NodeId, instance: &str) -> Result<bool, Failure> {
        // It was, when a call named it last, and the volume is still there.
        if self.names().get(instance) == Some(node) {
            return Ok(true);
        }
        if is_uuid(node.as_str()) {
            self.names().remove(node.as_str());
            return Ok(node.as_str() == instance);
        }
        let all = self.client.instances().await?;
        if self.named(node, &all)?.as_deref() == Some(instance) {
            return Ok(true);
        }
        if all.iter().any(|other| other.id == instance) {
            // It has another name.
            return Ok(false);
        }
        // The cluster may have a new instance of that name.
        let left = self.client.instance(instance).await?;
        let is_it = left.is_none_or(|left| left.hostname.is_some_and(|it| is_called(&it, node)));
        if is_it {
            // The end of its detach is found by that name.
            self.names().insert(instance.to_owned(), node.clone());
        }
        Ok(is_it)
    }

    /// The node, as calls name it.
    pub(super) fn node(&self, instance: &str) -> Result<NodeId, Failure> {
        let known = self.names().get(instance).cloned();
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
