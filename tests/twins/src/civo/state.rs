//! All objects of the account.

use super::objects::{Instance, Snapshot, Volume};
use crate::time::utc;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

/// The limits or the usage of the account in all regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The total size of volumes in GiB.
    pub gib: u64,
    /// The number of volumes.
    pub volumes: u64,
    /// The number of snapshots.
    pub snapshots: u64,
}

/// All objects of the account, by ID.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The volumes in all regions.
    pub volumes: BTreeMap<String, Volume>,
    /// The snapshots in all regions.
    pub snapshots: BTreeMap<String, Snapshot>,
    /// The instances in the region of the cluster.
    pub instances: BTreeMap<String, Instance>,
    /// The instances of other clusters, by the ID of the cluster.
    pub other_clusters: BTreeMap<String, Vec<String>>,
    made: usize,
}

impl State {
    pub(super) fn new(instances: usize) -> Self {
        let mut state = Self::default();
        for n in 1..=instances {
            let id = format!("00000000-0000-4000-8000-{n:012}");
            let hostname = format!("k3s-twin-node-pool-{n}");
            let instance = Instance {
                id: id.clone(),
                hostname,
                is_in_cluster: true,
            };
            state.instances.insert(id, instance);
        }
        state
    }

    /// Returns the instances of a cluster, as JSON.
    pub(super) fn of(&self, cluster: &str) -> Value {
        let all = self.instances.values();
        let inside = all.filter(|it| match self.other_clusters.get(cluster) {
            Some(ids) => ids.contains(&it.id),
            None => it.is_in_cluster,
        });
        inside.map(Instance::described).collect()
    }

    /// Whether any cluster contains this instance.
    pub(super) fn is_of_cluster(&self, id: &str) -> bool {
        let is_own = self.instances.get(id).is_some_and(|it| it.is_in_cluster);
        is_own || self.other_clusters.values().flatten().any(|it| it == id)
    }

    /// Returns an ID that no object has had. The IDs of objects do not sort in the order in which
    /// the objects were created.
    pub(super) fn id(&mut self) -> String {
        self.made += 1;
        let first = self.made.wrapping_mul(0x9e37_79b9) & 0xffff_ffff;
        format!("{first:08x}-0000-4000-8000-{:012x}", self.made)
    }

    /// Sets the host names of the instances, in the order of their IDs.
    pub fn rename<'a>(&mut self, hostnames: impl IntoIterator<Item = &'a str>) {
        for (instance, hostname) in self.instances.values_mut().zip(hostnames) {
            hostname.clone_into(&mut instance.hostname);
        }
    }

    /// Adds a volume as if another program had created it; returns its ID.
    pub fn add(&mut self, name: &str, gib: u64) -> String {
        let volume = Volume {
            name: name.to_owned(),
            gib,
            ..Volume::default()
        };
        self.insert(volume)
    }

    pub(super) fn insert(&mut self, volume: Volume) -> String {
        let id = self.id();
        let volume = Volume {
            id: id.clone(),
            created: now(),
            ..volume
        };
        self.volumes.insert(id.clone(), volume);
        id
    }

    pub(super) fn usage(&self) -> Quota {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        Quota {
            gib: self.volumes.values().map(|volume| volume.gib).sum(),
            volumes: count(self.volumes.len()),
            snapshots: count(self.snapshots.len()),
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.volumes
            .values()
            .any(|volume| due(volume.next.map(|(at, _)| at)) || due(volume.removed))
    }

    pub(super) fn settle(&mut self, now: Instant) {
        self.volumes
            .retain(|_, volume| volume.removed.is_none_or(|at| at > now));
        for volume in self.volumes.values_mut() {
            volume.settle(now);
        }
    }
}

/// Returns the current time, as the API writes it.
pub(super) fn now() -> String {
    utc(SystemTime::now()) + "Z"
}
