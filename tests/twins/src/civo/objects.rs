//! The objects of the API, and their JSON.

use super::{CLUSTER, VOLUME_TYPE};
use serde_json::{Value, json};
use std::time::Instant;

/// What Civo is doing with a volume. The words are those that clients know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Not usable yet.
    Creating,
    /// Attached to no instance.
    Available,
    /// On its way to an instance.
    Attaching,
    /// Attached to an instance.
    Attached,
    /// On its way from an instance.
    Detaching,
    /// Growing.
    Resizing,
    /// A word that no client knows.
    Perplexed,
    /// A change has failed.
    Error,
}

impl Status {
    /// The word.
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
    /// A UUID.
    pub id: String,
    /// Without white space.
    pub name: String,
    /// `size_gb`.
    pub gib: u64,
    /// The code of its region.
    pub region: String,
    /// The ID of its cluster, or "".
    pub cluster: String,
    /// The ID of its network.
    pub network: String,
    /// The name of its type.
    pub volume_type: String,
    /// An instance may start from it.
    pub bootable: bool,
    /// What is done with it.
    pub status: Status,
    /// Kept while it is detached.
    pub instance: Option<String>,
    /// The snapshot that it was created from.
    pub from: Option<String>,
    /// As the API writes it.
    pub created: String,
    /// Its creation ends with [`Status::Error`].
    pub fails: bool,
    /// When the change is done, and the size then; the status says the rest.
    pub next: Option<(Instant, u64)>,
    /// When it is removed.
    pub removed: Option<Instant>,
}

impl Volume {
    /// As the API shows it; without a value, a member is null or "".
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

    /// Bytes of its disk: of 10 GiB, 0.945 were seen, in whole sectors.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        disk_bytes(self.gib)
    }

    /// Of the size that it has after its change.
    pub(super) fn later_disk_bytes(&self) -> u64 {
        disk_bytes(self.next.map_or(self.gib, |(_, gib)| gib))
    }

    /// Its change ends now.
    pub(super) fn end(&mut self) {
        if let Some((at, _)) = &mut self.next {
            *at = Instant::now();
        }
    }

    pub(super) fn begin(&mut self, status: Status, at: Instant, gib: u64) {
        self.status = status;
        self.next = Some((at, gib));
    }

    /// Ends a change that is due.
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
    /// A UUID.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its description.
    pub description: String,
    /// The ID of its volume.
    pub volume: String,
    /// The name of its volume.
    pub volume_name: String,
    /// GiB of the volume at the cut.
    pub gib: u64,
    /// The code of its region.
    pub region: String,
    /// As the API writes it.
    pub created: String,
    /// When it is ready.
    pub ready: Instant,
    /// Ready in the other of the two words that were seen.
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
    /// A UUID.
    pub id: String,
    /// The name of its node.
    pub hostname: String,
    /// It belongs to the cluster.
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

/// A volume of the cluster, by default.
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
