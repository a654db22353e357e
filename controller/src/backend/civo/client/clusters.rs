//! Calls about clusters and instances.

use super::{Client, Request, encoded};
use crate::backend::civo::id::is_word;
use crate::backend::civo::wire::{Clusters, Instance, Object};
use belay_server::call::{Failure, Kind};

/// Most pages of clusters, and clusters of a page.
const PAGES_MAX: u64 = 100;
const CLUSTERS_A_PAGE: u64 = 100;

impl Client {
    /// The instances of the cluster.
    pub(in super::super) async fn instances(&self) -> Result<Vec<Instance>, Failure> {
        let path = instances_of(&self.access().cluster);
        self.read(Request::get("list_instances", path)).await
    }

    /// Which other cluster of the account an instance belongs to; none if it belongs to no other.
    pub(in super::super) async fn other_cluster(
        &self,
        instance: &str,
    ) -> Result<Option<String>, Failure> {
        let own = self.access().cluster.clone();
        for page in 1..=PAGES_MAX {
            let request = Request {
                query: format!("&page={page}&per_page={CLUSTERS_A_PAGE}").into(),
                ..Request::get("list_clusters", "/v2/kubernetes/clusters")
            };
            let clusters: Clusters = self.read(request).await?;
            for cluster in clusters.items.unwrap_or_default() {
                if cluster.id == own {
                    continue;
                }
                let request = Request::get("list_instances", instances_of(&cluster.id));
                // It may be deleted meanwhile.
                let all: Option<Vec<Instance>> = self.find(Object::Cluster, request).await?;
                if all.is_some_and(|all| all.iter().any(|it| it.id == instance)) {
                    return Ok(Some(cluster.id));
                }
            }
            if clusters.pages.unwrap_or(1) <= page {
                return Ok(None);
            }
        }
        Err(Failure::new(
            Kind::Unreachable,
            format!("instance {instance}: Civo lists more than {PAGES_MAX} pages of clusters"),
        ))
    }

    /// None only if Civo says that it has no such instance: the caller acts on that. An ID that
    /// Civo cannot have is an error.
    pub(in super::super) async fn instance(&self, id: &str) -> Result<Option<Instance>, Failure> {
        if !is_word(id) {
            let message = format!("instance {id:?}: not the ID of an instance of Civo");
            return Err(Failure::new(Kind::Unreachable, message));
        }
        let path = format!("/v2/instances/{id}");
        self.find(Object::Instance, Request::get("get_instance", path))
            .await
    }
}

fn instances_of(cluster: &str) -> String {
    format!("/v2/kubernetes/clusters/{}/instances", encoded(cluster))
}
