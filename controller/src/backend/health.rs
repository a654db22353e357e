//! The health of volumes, of backends that report it.

use super::Answer;
use belay_server::health::Conditions;
use belay_server::request::{Secrets, VolumeId};

/// A backend that reports the health of its volumes.
pub trait Health: Send + Sync {
    /// What is wrong with the volume with that id, once it is complete.
    fn health(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Conditions>>;

    /// What is wrong with each of these volumes, which exist, given by id and size in bytes; in
    /// their order. Part of calls that have no secrets.
    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>>;

    /// Like [`Backend::list`], of those volumes that something is wrong with.
    fn list_unhealthy(
        &self,
        after: Option<String>,
        limit: usize,
        secrets: Secrets,
    ) -> Answer<'_, UnhealthyPage>;
}

/// A volume that something is wrong with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unhealthy {
    /// Which.
    pub id: VolumeId,
    /// What; never empty.
    pub conditions: Conditions,
}

/// A page of volumes that something is wrong with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnhealthyPage {
    /// In the order of the listing.
    pub volumes: Vec<Unhealthy>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}
