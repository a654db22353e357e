//! What a storage system must be able to do to be driven by Belay, in the words of storage. Knows
//! no gRPC, no capability rules and no idempotency: "is it done already?" is asked in `operation/`.
//! A verb looks or starts, and answers at once with what it sees; `operation/engine` alone waits.
//! Each verb gets the secrets of the call that it serves; empty where the class names none.

pub(crate) mod answered;
mod attachments;
mod begun;
pub mod civo;
mod claims;
mod cloud;
pub mod digitalocean;
pub mod local;
mod measured;
pub mod nfs;
pub mod openstack;
mod optional;
pub mod registry;
mod snapshots;

pub use attachments::{AttachOrder, Attachment, Attachments, Terms};
use begun::Noting;
pub use begun::{Begun, Names};
pub use claims::{Attempt, Claims, Mark};
pub use optional::{
    Capacity, Clones, DroppedChange, Expansion, Health, Modification, Planned, Unhealthy,
    UnhealthyPage,
};
pub use snapshots::{Snapshot, SnapshotClaims, SnapshotOrder, SnapshotPage, Snapshots};

use belay_contract::publish_context::Content;
use belay_contract::topology::Topology;
use belay_server::call::Failure;
use belay_server::request::{
    ContentSource, Context, MountFlags, Name, NodeId, Secrets, TopologyRequirement, VolumeId,
};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// What every verb gives back: a future that may be moved between threads.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// A storage system. If it assigns the volume ids itself (clouds do), `create` returns them.
pub trait Backend: Send + Sync + 'static {
    /// Its constants.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// The keys of the `CreateVolume` parameters that it understands. Unknown keys are handled by
    /// the driver's `ParameterPolicy`.
    fn parameters(&self) -> &'static [&'static str];

    /// The sizes that new volumes with these parameters can have.
    ///
    /// # Errors
    /// `Invalid`, naming the key, for a value that it does not understand.
    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure>;

    /// The sizes that new volumes with these parameters can have for that usage, where it matters.
    ///
    /// # Errors
    /// Those of [`Self::sizes`].
    fn sizes_for(&self, parameters: &Context, _usage: &Usage) -> Result<Sizes, Failure> {
        self.sizes(parameters)
    }

    /// Creates a volume, with the mark of the order's attempt if it has [`Self::claims`]. Without
    /// claims it may find that the name is taken, decided in one step: then the volume of that name
    /// is the answer, whatever it looks like. If the requisite topology cannot be satisfied,
    /// creates nothing and returns [`belay_server::call::Kind::Quota`]. A failure that leaves open
    /// whether a volume is created has [`belay_server::call::Certainty::MayBeRunning`].
    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume>;

    /// Removes a volume and its data. One that does not exist is removed already.
    fn delete(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// For storage where only the answer to a creation says what exists: the names of those. None =
    /// [`Self::find`] says it.
    fn begun(&self) -> Option<&Begun> {
        None
    }

    /// All volumes with this name, in any phase.
    fn find(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Volume>>;

    /// The volume with that ID, in any phase.
    fn get(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Volume>>;

    /// Whether `id` has the form of the storage's volume IDs. Answers with other IDs are refused.
    fn is_volume_id(&self, _id: &VolumeId) -> bool {
        true
    }

    /// Whether an object that the storage shows with that name is the one of the requested name.
    fn is_name(&self, shown: &str, asked: &Name) -> bool {
        shown == asked.as_str()
    }

    /// At most `limit` volumes, beginning after the one that `after` (the `next` of the page
    /// before) names. A token that was never given out is
    /// [`belay_server::call::Kind::BadToken`]. `ListVolumes` has no secrets.
    fn list(&self, after: Option<String>, limit: usize, secrets: Secrets) -> Answer<'_, Page>;

    /// Explains why the storage dropped a change that it had accepted, and what to inspect. `None`
    /// if the storage says no more than the volume shows.
    fn why_dropped(
        &self,
        _id: VolumeId,
        _dropped: DroppedChange,
        _secrets: Secrets,
    ) -> Answer<'_, Option<Failure>> {
        Box::pin(async { Ok(None) })
    }

    /// Inspects the storage once, when the controller serves, and logs what an operator must
    /// correct.
    fn inspect(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// The volume that answers an order for a volume from that source, new or found by its name,
    /// with what the storage does not remember of it: a name is that of one order, so the order
    /// determines it.
    fn complete(&self, volume: Volume, _source: Option<&ContentSource>) -> Volume {
        volume
    }

    /// Whether the volume may be that of the order although they differ in that parameter:
    /// storage may have several names for one thing, or may not do as it is asked.
    fn meets(&self, _parameter: Parameter, _secrets: Secrets) -> Answer<'_, bool> {
        Box::pin(async { Ok(false) })
    }

    /// Support for storage that allows several volumes with one name. `None` if the storage
    /// enforces unique names.
    fn claims(&self) -> Option<&dyn Claims> {
        None
    }

    /// Whether it attaches volumes to nodes; where it does not, a node reaches them by itself.
    fn attachments(&self) -> Option<&dyn Attachments> {
        None
    }

    /// Whether its volumes can grow.
    fn expansion(&self) -> Option<&dyn Expansion> {
        None
    }

    /// Whether attributes of its volumes can be changed.
    fn modification(&self) -> Option<&dyn Modification> {
        None
    }

    /// Whether it knows how much room is left.
    fn capacity(&self) -> Option<&dyn Capacity> {
        None
    }

    /// Whether it can keep what a volume held at one instant.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Whether it can make a volume from another one.
    fn clones(&self) -> Option<&dyn Clones> {
        None
    }

    /// Its volume health, if it reports that.
    fn health(&self) -> Option<&dyn Health> {
        None
    }
}

/// The constants of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// The size of a new volume if the request has none, in bytes.
    pub default_bytes: u64,
    /// Whether [`Backend::list`] is supported.
    pub lists: bool,
    /// Whether the answer to a creation is compared with a read by the ID in it. Storage outside
    /// this machine may answer with another object's ID under the right name.
    pub reads_back: bool,
    /// The shortest time between two reads of a volume that the storage is changing.
    pub poll_interval: Duration,
    /// How often one call begins an attach, detach or expansion that the storage has accepted and
    /// not made. More than two only for storage that may be unable to begin it yet: meanwhile the
    /// node's other changes wait.
    pub begins_max: u32,
    /// Whether a node takes one attach or detach at a time: the calls for a node then queue up.
    pub attaches_one_by_one: bool,
    /// Whether the terms of an attachment are recorded. If not, a repeated attach answers with its
    /// own, so a caller that asks for other terms would not be refused.
    pub records_terms: bool,
    /// Whether volumes are reachable from wherever the caller of a creation prefers: they have no
    /// [`Volume::place`], and the answer has the preferred topologies.
    pub reaches_preferred: bool,
    /// A hint for the error if a volume is outside the requested topology. `None` if that cannot
    /// happen.
    pub elsewhere: Option<&'static str>,
    /// What an operator can inspect if the storage does not end a change, for the error.
    pub where_to_look: Option<&'static str>,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            default_bytes: 1 << 30,
            lists: true,
            reads_back: false,
            poll_interval: Duration::from_millis(250),
            begins_max: 2,
            attaches_one_by_one: false,
            records_terms: true,
            reaches_preferred: false,
            elsewhere: None,
            where_to_look: None,
        }
    }
}

/// The backends of a controller.
pub enum Backends {
    /// One for all calls, whatever their secrets are.
    One(Arc<dyn Backend>),
    /// One for each cloud that the secrets of a call can name, in the order of their names.
    Named {
        /// The first.
        first: Named,
        /// All others.
        others: Vec<Named>,
    },
}

/// A backend of a cloud that the secrets of calls name.
pub struct Named {
    /// As the secrets name it; empty for those that name no cloud.
    pub name: String,
    /// As errors and log lines name it.
    pub label: String,
    /// Its verbs.
    pub backend: Arc<dyn Backend>,
}

/// The failure for a volume that does not exist.
pub(crate) fn no_volume(id: &VolumeId) -> Failure {
    Failure::not_found(format!("volume {id}: not found"))
}

/// Result of a verb: completed, or accepted and still in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// It is done.
    Done(T),
    /// The storage is working on it. Until it has finished, the volume is [`Phase::Busy`] or
    /// [`Phase::Deleting`].
    Begun,
}

/// The sizes that a backend can make, in bytes; all three are multiples of `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Sizes are multiples of this.
    pub step: u64,
    /// The smallest volume.
    pub min: u64,
    /// The largest volume, if there is room.
    pub max: u64,
}

/// What a volume is made for. Decides its smallest size, and is compared when its name comes again,
/// if the backend remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// Handed out as a block device.
    Block,
    /// Handed out as a mounted filesystem of this type; empty where none was asked for.
    Filesystem(String),
}

/// A volume to be made.
#[derive(Clone, Debug)]
pub struct Order {
    /// The name that makes a repeated order the same order.
    pub name: Name,
    /// Which attempt this is, for the mark of the new volume.
    pub attempt: Attempt,
    /// A size that [`Backend::sizes`] allows for the parameters.
    pub bytes: u64,
    /// What it is for.
    pub usage: Usage,
    /// How a node will mount it.
    pub mount_flags: MountFlags,
    /// Those of [`Backend::parameters`], and those that the provisioner adds.
    pub parameters: Context,
    /// Several nodes must be able to have it at once, which only some volumes of this storage can.
    pub shared: bool,
    /// Where it must or should be reachable from; none = anywhere.
    pub topology: Option<TopologyRequirement>,
    /// Credentials of the class.
    pub secrets: Secrets,
}

/// A parameter of an order and what a volume shows of it, which differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// One of [`Backend::parameters`].
    pub key: &'static str,
    /// What the volume shows.
    pub is: String,
    /// What the order has.
    pub asked: String,
}

/// What state a volume or a snapshot is in, as its backend sees it now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It can be attached, grown, copied and deleted.
    Ready,
    /// The storage is changing it; the word for that, e.g. `creating`.
    Busy(String),
    /// The storage is deleting it.
    Deleting,
    /// It can be deleted and nothing else. The failure is that of the operation that ended so.
    Failed(Failure),
}

/// A volume that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its id, which never changes.
    pub id: VolumeId,
    /// The name that the storage shows; `None` if it shows none. See [`Backend::is_name`].
    pub name: Option<String>,
    /// What state it is in.
    pub phase: Phase,
    /// What its marks say.
    pub mark: Mark,
    /// Its size in bytes; 0 in a list if the backend has lost it.
    pub bytes: u64,
    /// What it was made for; none = the backend does not remember that.
    pub usage: Option<Usage>,
    /// The volume context that its creation answered; none = the backend does not remember that.
    pub context: Option<Context>,
    /// The nodes it is attached to.
    pub nodes: Vec<NodeId>,
    /// What it was made from; none = it began empty.
    pub source: Option<ContentSource>,
    /// Where it can be reached from; none = that is not reported.
    pub place: Option<Arc<Topology>>,
    /// What the storage knows of its content; none = only an attach answers that.
    pub content: Option<Content>,
    /// When it was attached; see [`Attachment::attached_at`].
    pub attached_at: Option<u64>,
    /// The storage says that several nodes can have it at once.
    pub shares: bool,
    /// The parameters that the storage shows of it, by key; those that may have changed since its
    /// creation are left out. With several values for a key, an order may have either.
    pub parameters: Vec<(&'static str, String)>,
}

impl Volume {
    /// A volume of which nothing is known but its ID and its phase.
    pub(crate) fn new(id: VolumeId, phase: Phase) -> Self {
        Self {
            id,
            name: None,
            phase,
            mark: Mark::None,
            bytes: 0,
            usage: None,
            context: None,
            nodes: Vec::new(),
            source: None,
            place: None,
            content: None,
            attached_at: None,
            shares: false,
            parameters: Vec::new(),
        }
    }
}

/// A page of volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of the listing.
    pub volumes: Vec<Volume>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}
