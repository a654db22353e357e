//! The objects of the API, and their JSON.

use super::{CLUSTER, VOLUME_TYPE};
use serde_json::{Value, json};
use std::time::Instant;

/// The state of a volume. Clients know the API's words for all states except [`Self::Perplexed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The volume is not usable yet.
    Creating,
    /// The volume is not attached.
    Available,
    /// The volume is being attached to an instance.
    Attaching,
    /// The volume is attached to an instance.
    Attached,
    /// The volume is being detached from an instance.
    Detaching,
    /// The volume is being expanded.
    Resizing,
    /// A state whose word no client knows.
    Perplexed,
    /// A change has failed.
    Error,
}

impl Status {
    /// Returns the API's word for the state.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Available => "available",
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Detaching => "detaching",
            Self::Resizing => "resizing",
            Self::Perplexed => "perplexed",
            Self::Error => "error",
        }
    }
}

/// A volume.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The ID, a UUID.
    pub id: String,
    /// The name, without white space.
    pub name: String,
    /// The size in GiB, `size_gb`.
    pub gib: u64,
    /// The code of the object's region.
    pub region: String,
    /// The ID of the volume's cluster; empty if the volume belongs to no cluster.
    pub cluster: String,
    /// The ID of the volume's network.
    pub network: String,
    /// The name of the volume type.
    pub volume_type: String,
    /// Whether an instance may boot from the volume.
    pub bootable: bool,
    /// The state of the volume.
    pub status: Status,
    /// The ID of the instance to which the volume is attached. The volume keeps this ID while it is
    /// being detached.
    pub instance: Option<String>,
    /// The snapshot from which the volume was created.
    pub from: Option<String>,
    /// The time of the creation, as the API writes it.
    pub created: String,
    /// Whether the creation ends with [`Status::Error`].
    pub fails: bool,
    /// The time at which the current change ends, and the size of the volume in GiB after the
    /// change. The status of the volume determines the other effects of the change.
    pub next: Option<(Instant, u64)>,
    /// The time at which the volume is removed.
    pub removed: Option<Instant>,
}

impl Volume {
    /// Returns the volume as the API shows it; a member without a value is null or "".
    pub(super) fn described(&self, has_nulls: bool) -> Value {
        let none = match has_nulls {
            true => Value::Null,
            false => json!(""),
        };
        let instance = self.instance.as_deref().map_or(none.clone(), Into::into);
        json!({
            "id": self.id, "name": self.name, "instance_id": instance,
            "cluster_id": self.cluster, "network_id": self.network, "mountpoint": none,
            "status": self.status.word(), "volume_type": self.volume_type, "size_gb": self.gib,
            "bootable": self.bootable, "created_at": self.created,
        })
    }

    /// Returns the size of the disk in bytes: 0.945 of the volume's size, as observed with a volume
    /// of 10 GiB, rounded up to whole sectors.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        disk_bytes(self.gib)
    }

    /// Returns the size of the disk in bytes after the current change.
    pub(super) fn later_disk_bytes(&self) -> u64 {
        disk_bytes(self.next.map_or(self.gib, |(_, gib)| gib))
    }

    /// Ends the current change now.
    pub(super) fn end(&mut self) {
        if let Some((at, _)) = &mut self.next {
            *at = Instant::now();
        }
    }

    pub(super) fn begin(&mut self, status: Status, at: Instant, gib: u64) {
        self.status = status;
        self.next = Some((at, gib));
    }

    /// Ends the current change if its time has come.
    pub(super) fn settle(&mut self, now: Instant) {
        let Some((_, gib)) = self.next.take_if(|(at, _)| *at <= now) else {
            return;
        };
        self.gib = gib;
        self.status = match self.status {
            Status::Creating if self.fails => Status::Error,
            Status::Attaching => Status::Attached,
            Status::Detaching => {
                self.instance = None;
                Status::Available
            }
            _ => Status::Available,
        };
    }
}

fn disk_bytes(gib: u64) -> u64 {
    ((gib << 30) * 945).div_ceil(1000).next_multiple_of(512)
}

/// A snapshot of a volume.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The ID, a UUID.
    pub id: String,
    /// The name.
    pub name: String,
    /// The description.
    pub description: String,
    /// The ID of the volume.
    pub volume: String,
    /// The name of the volume.
    pub volume_name: String,
    /// The size of the volume when the snapshot was created, in GiB.
    pub gib: u64,
    /// The code of the object's region.
    pub region: String,
    /// The time of the creation, as the API writes it.
    pub created: String,
    /// The time at which the snapshot is ready.
    pub ready: Instant,
    /// Whether the state of the ready snapshot is `available` instead of `Ready`. Both words have
    /// been observed.
    pub is_available: bool,
}

impl Snapshot {
    pub(super) fn described(&self, now: Instant) -> Value {
        let state = match (self.ready <= now, self.is_available) {
            (false, _) => "creating",
            (true, false) => "Ready",
            (true, true) => "available",
        };
        json!({
            "snapshot_id": self.id, "name": self.name, "snapshot_description": self.description,
            "volume_id": self.volume, "source_volume_name": self.volume_name,
            "restore_size": self.gib, "state": state, "creation_time": self.created,
        })
    }
}

/// An instance.
#[derive(Clone, Debug)]
pub struct Instance {
    /// The ID, a UUID.
    pub id: String,
    /// The name of the node.
    pub hostname: String,
    /// Whether the instance belongs to the cluster.
    pub is_in_cluster: bool,
}

impl Instance {
    pub(super) fn described(&self) -> Value {
        json!({
            "id": self.id, "hostname": self.hostname, "status": "ACTIVE",
            "region": super::REGION, "network_id": "n-1",
        })
    }
}

/// By default, a new volume belongs to the twin's cluster.
impl Default for Volume {
    fn default() -> Self {
        Self {
            id: String::new(),
            name: String::new(),
            gib: 1,
            region: super::REGION.to_owned(),
            cluster: CLUSTER.to_owned(),
            network: "n-1".to_owned(),
            volume_type: VOLUME_TYPE.to_owned(),
            bootable: false,
            status: Status::Available,
            instance: None,
            from: None,
            created: String::new(),
            fails: false,
            next: None,
            removed: None,
        }
    }
}
