//! Calls for clusters and instances. Civo does not report the account of a key. But Civo returns a
//! cluster only for the keys of the account that owns the cluster, so the cluster identifies the
//! account.

use super::{Client, Request};
use crate::backend::civo::access::Access;
use crate::backend::civo::wire::{self, Cluster, Clusters, Instance, Object, is_word};
use crate::backend::cloud::account::{Identity, Login};
use crate::backend::cloud::ids;
use crate::http::encoded;
use belay_server::call::{Failure, Kind};
use std::sync::Arc;

/// Maximum number of pages of clusters that are read.
const PAGES_MAX: u64 = 100;
/// The number of clusters per page.
const CLUSTERS_A_PAGE: u64 = 100;

/// The cluster that owns an instance.
pub(in super::super) enum Owner {
    /// The configured cluster owns the instance, although the cluster's list of instances lacks the
    /// instance. Contains the host name of the instance, if the list of clusters contains one.
    Ours(Option<String>),
    /// A different cluster of the account owns the instance. Contains the ID of that cluster.
    Another(String),
}

impl Client {
    /// Returns the configured cluster, in the state in which Civo reported it when a key was first
    /// accepted.
    ///
    /// # Errors
    /// Returns the errors of [`Account::confirm`](super::Account::confirm).
    pub(in super::super) async fn cluster(&self) -> Result<&Cluster, Failure> {
        self.account.confirm(self).await?;
        let none = || Failure::bug("Civo has accepted a key without a cluster");
        self.cluster.get().ok_or_else(none)
    }

    /// Returns the instances of the configured cluster.
    pub(in super::super) async fn instances(&self) -> Result<Vec<Instance>, Failure> {
        let path = instances_of(&self.access().cluster);
        self.read(Request::get("list_instances", path)).await
    }

    /// Returns the cluster that owns an instance, for an instance that the list of the configured
    /// cluster's instances lacks. Returns `None` if no cluster of the account owns the instance.
    /// Civo reports the instances of a cluster in the list of clusters and in the list of the
    /// cluster's instances; this method checks both lists. If a cluster cannot be read, the
    /// remaining clusters are still checked.
    ///
    /// # Errors
    /// Returns the errors of reading a cluster, if no other cluster owns the instance.
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

    /// Whether the cluster owns the instance. If the cluster was deleted since the list was read,
    /// it has no instances. Civo may return `null` as the list of a cluster without instances.
    async fn has_instance(&self, cluster: &str, instance: &str) -> Result<bool, Failure> {
        let request = Request::get("list_instances", instances_of(cluster));
        let all: Option<Option<Vec<Instance>>> = self.find(Object::Cluster, request).await?;
        let mut all = all.flatten().into_iter().flatten();
        Ok(all.any(|it| it.id == instance))
    }

    /// Returns an instance; `None` only if Civo itself reports that the instance does not exist,
    /// since callers rely on this guarantee. Fails if the ID does not have the form of Civo's IDs.
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

impl Login for Client {
    type Key = Arc<Access>;

    async fn identity(&self, access: &Arc<Access>) -> Result<Result<Identity, Failure>, Failure> {
        let path = format!("/v2/kubernetes/clusters/{}", encoded(&access.cluster));
        let answer = self
            .answer_with(access, &Request::get("get_cluster", path))
            .await?;
        if wire::refuses_key(&answer) {
            return Ok(Err(wire::refused(&answer)));
        }
        let Some(cluster) = wire::found(Object::Cluster, &answer)? else {
            let is_it_wrong = "(unless the ID or the region is wrong)";
            let other = format!("an account without {} {is_it_wrong}", described(access));
            return Ok(Ok(Identity::Known(other)));
        };
        self.cluster.get_or_init(|| cluster);
        Ok(Ok(account_of(access)))
    }
}

/// Returns the identity of the account that owns the controller's volumes.
pub(super) fn account_of(access: &Access) -> Identity {
    Identity::Known(format!("the account with {}", described(access)))
}

fn described(access: &Access) -> String {
    let (cluster, region) = (&access.cluster, &access.region);
    format!("CIVO_CLUSTER_ID {cluster:?} in region {region}")
}

fn instances_of(cluster: &str) -> String {
    format!("/v2/kubernetes/clusters/{}/instances", encoded(cluster))
}
