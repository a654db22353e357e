//! Calls about clusters and instances.

use super::{Client, Request};
use crate::backend::civo::wire::is_word;
use crate::backend::civo::wire::{Clusters, Instance, Object};
use crate::backend::cloud::ids;
use crate::http::encoded;
use belay_server::call::{Failure, Kind};

/// Most pages of clusters, and clusters of a page.
const PAGES_MAX: u64 = 100;
const CLUSTERS_A_PAGE: u64 = 100;

/// Whose an instance is.
pub(in super::super) enum Owner {
    /// The cluster's, although the list of its instances lacks it: with its host name, if it has
    /// one there.
    Ours(Option<String>),
    /// That of another cluster.
    Another(String),
}

impl Client {
    /// The instances of the cluster.
    pub(in super::super) async fn instances(&self) -> Result<Vec<Instance>, Failure> {
        let path = instances_of(&self.access().cluster);
        self.read(Request::get("list_instances", path)).await
    }

    /// Whose an instance is that the list of the cluster's instances lacks; none if no cluster of
    /// the account has it. A cluster that cannot be read hides no instance of the others. Civo
    /// shows the instances of a cluster in the list of clusters and in that of its instances:
    /// either counts.
    ///
    /// # Errors
    /// Those of a cluster that cannot be read, if none is seen to have the instance.
    pub(in super::super) async fn owner(&self, instance: &str) -> Result<Option<Owner>, Failure> {
        let own = self.access().cluster.clone();
        let mut unread = None;
        for page in 1..=PAGES_MAX {
            let request = Request {
                query: format!("&page={page}&per_page={CLUSTERS_A_PAGE}").into(),
                ..Request::get("list_clusters", "/v2/kubernetes/clusters")
            };
            let clusters: Option<Clusters> = self.read(request).await?;
            let Clusters { pages, items } = clusters.unwrap_or_default();
            for cluster in items.unwrap_or_default() {
                ids::form("cluster", &cluster.id, is_word)?;
                let member = cluster.member(instance);
                if cluster.id == own {
                    match member {
                        Some(it) => return Ok(Some(Owner::Ours(it.hostname().map(str::to_owned)))),
                        None => continue,
                    }
                }
                if member.is_some() {
                    return Ok(Some(Owner::Another(cluster.id)));
                }
                match self.has_instance(&cluster.id, instance).await {
                    Ok(true) => return Ok(Some(Owner::Another(cluster.id))),
                    Ok(false) => {}
                    Err(failure) => drop(unread.get_or_insert(failure)),
                }
            }
            if pages.unwrap_or(1) <= page {
                return unread.map_or(Ok(None), Err);
            }
        }
        Err(Failure::new(
            Kind::Unreachable,
            format!("instance {instance}: Civo lists more than {PAGES_MAX} pages of clusters"),
        ))
    }

    /// A cluster that is deleted meanwhile has none, and one without any may be `null`.
    async fn has_instance(&self, cluster: &str, instance: &str) -> Result<bool, Failure> {
        let request = Request::get("list_instances", instances_of(cluster));
        let all: Option<Option<Vec<Instance>>> = self.find(Object::Cluster, request).await?;
        let mut all = all.flatten().into_iter().flatten();
        Ok(all.any(|it| it.id == instance))
    }

    /// None only if Civo says that it has no such instance: the caller acts on that. An ID that
    /// Civo cannot have is an error.
    pub(in super::super) async fn instance(&self, id: &str) -> Result<Option<Instance>, Failure> {
        if !is_word(id) {
            let message = format!("instance {id:?}: not the ID of an instance of Civo");
            return Err(Failure::new(Kind::Unreachable, message));
        }
        let request = Request::get("get_instance", format!("/v2/instances/{id}"));
        let found: Option<Instance> = self.find(Object::Instance, request).await?;
        if let Some(instance) = &found {
            ids::same("instance", id, &instance.id)?;
        }
        Ok(found)
    }
}

fn instances_of(cluster: &str) -> String {
    format!("/v2/kubernetes/clusters/{}/instances", encoded(cluster))
}
