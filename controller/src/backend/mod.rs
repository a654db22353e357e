//! The interface to storage systems, independent of CSI. Has no gRPC, capability rules or
//! idempotency: `operation/` checks whether a change was already made. A verb reads or starts a
//! change, and returns the state that it finds; only `operation/engine` waits, except that verbs of
//! `local` copy and await an unstage. Each verb receives the secrets of its call, or none.

#[macro_use]
mod optional;
pub(crate) mod answered;
mod attachments;
pub mod civo;
mod claims;
mod cloud;
pub mod digitalocean;
pub mod local;
mod measured;
pub mod nfs;
pub mod openstack;
pub mod registry;
mod snapshots;
mod started;

pub use attachments::{AttachOrder, Attachment, AttachmentSpec, Attachments};
pub use claims::{Attempt, Claims, Mark};
pub use optional::{
    Capacity, Clones, DroppedChange, Expansion, Health, Modification, Planned, Unhealthy,
    UnhealthyPage,
};
pub use snapshots::{Snapshot, SnapshotClaims, SnapshotOrder, SnapshotPage, Snapshots};
use started::NameRecorder;
pub use started::{Names, StartedCreations};

use belay_contract::publish_context::Content;
use belay_contract::topology::Topology;
use belay_server::call::Failure;
use belay_server::request::{
    ContentSource, Context, MountFlags, Name, NodeId, Secrets, TopologyRequirement, VolumeId,
};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The result of every verb: a future that may be moved between threads.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// A storage system. If it assigns the volume IDs itself, as clouds do, `create` returns them.
pub trait Backend: Send + Sync + 'static {
    /// Returns the constants of the backend.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// Returns the known keys of the parameters of `CreateVolume`. The driver's `ParameterPolicy`
    /// determines how unknown keys are handled.
    fn parameters(&self) -> &'static [&'static str];

    /// Returns the sizes that new volumes with these parameters can have.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the key, for an unknown value.
    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure>;

    /// Returns the sizes of new volumes with these parameters for this usage, if it matters.
    ///
    /// # Errors
    /// Returns the errors of [`Self::sizes`].
    fn sizes_for(&self, parameters: &Context, _usage: &Usage) -> Result<Sizes, Failure> {
        self.sizes(parameters)
    }

    /// Creates a volume, with the mark of the order's attempt if the backend has [`Self::claims`].
    /// A backend without claims may find that the name exists, in one atomic step. Then it returns
    /// the volume with the name, whatever its properties are. If the requisite topology cannot be
    /// satisfied, creates nothing and returns [`belay_server::call::Kind::Quota`]. A failure after
    /// which the volume may exist has [`belay_server::call::Certainty::MayBeRunning`].
    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume>;

    /// Deletes a volume and its data; succeeds if it does not exist.
    fn delete(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// Returns the names of begun creations, for storage in which only the response to a creation
    /// shows whether an object exists (`nfs`). Returns `None` if [`Self::find`] shows it.
    fn started_creations(&self) -> Option<&StartedCreations> {
        None
    }

    /// Returns all volumes with this name, in any phase; `local` without those of a killed call.
    fn find(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Volume>>;

    /// Returns the volume with this ID, in any phase.
    fn get(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Volume>>;

    /// Whether `id` has the form of the storage's volume IDs. Responses with other IDs are refused.
    fn is_volume_id(&self, _id: &VolumeId) -> bool {
        true
    }

    /// Whether the name that the storage shows for an object stands for the requested name.
    fn is_name(&self, shown: &str, asked: &Name) -> bool {
        shown == asked.as_str()
    }

    /// Returns at most `limit` volumes. `after` is the `next` of the previous page; `None` begins
    /// the list. Returns [`belay_server::call::Kind::BadToken`] for a token that no page has
    /// returned. `ListVolumes` has no secrets.
    fn list(&self, after: Option<String>, limit: usize, secrets: Secrets) -> Answer<'_, Page>;

    /// Explains why the storage dropped a change that it had accepted, and what to inspect. Returns
    /// `None` if the storage reports no more than the volume shows.
    fn why_dropped(
        &self,
        _id: VolumeId,
        _dropped: DroppedChange,
        _secrets: Secrets,
    ) -> Answer<'_, Option<Failure>> {
        Box::pin(async { Ok(None) })
    }

    /// Logs in to the storage, after the controller has begun to serve, and logs problems that an
    /// operator must correct. Fails only if the storage refuses the credentials or does not
    /// respond; the controller then calls it again.
    fn inspect(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Adds properties that the storage does not store to a volume created from `source` or found
    /// by its name. A name belongs to one request, which determines these properties.
    fn complete(&self, volume: Volume, _source: Option<&ContentSource>) -> Volume {
        volume
    }

    /// Whether the volume may satisfy the request although they differ in this parameter. Storage
    /// may have several names for one value, or may not apply the requested value.
    fn meets(&self, _parameter: Parameter, _secrets: Secrets) -> Answer<'_, bool> {
        Box::pin(async { Ok(false) })
    }

    /// Returns the support for storage that allows several volumes with one name; `None` if the
    /// storage enforces unique names.
    fn claims(&self) -> Option<&dyn Claims> {
        None
    }

    /// Returns the support for attachments; `None` if a node reaches volumes without them.
    fn attachments(&self) -> Option<&dyn Attachments> {
        None
    }

    /// Returns the support for expanding volumes, if any.
    fn expansion(&self) -> Option<&dyn Expansion> {
        None
    }

    /// Returns the support for changing attributes of volumes, if any.
    fn modification(&self) -> Option<&dyn Modification> {
        None
    }

    /// Returns the support for reporting free capacity, if any.
    fn capacity(&self) -> Option<&dyn Capacity> {
        None
    }

    /// Returns the support for snapshots, if any.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Returns the support for creating volumes from other volumes, if any.
    fn clones(&self) -> Option<&dyn Clones> {
        None
    }

    /// Returns the support for reporting the health of volumes, if any.
    fn health(&self) -> Option<&dyn Health> {
        None
    }
}

/// The constants of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// The default size of a new volume, in bytes.
    pub default_bytes: u64,
    /// Whether [`Backend::list`] is supported.
    pub lists: bool,
    /// Whether the engine compares the response to a creation with a read by its ID. Storage
    /// outside this machine may return another object's ID with the right name.
    pub reads_back: bool,
    /// The minimum time between two reads of a volume that the storage is changing.
    pub poll_interval: Duration,
    /// Maximum number of times that one call begins an attach, detach or expansion that the storage
    /// accepts but does not make. More than two are only for storage that may be temporarily unable
    /// to begin: meanwhile other changes of the node wait.
    pub begins_max: u32,
    /// Whether a node accepts only one attach or detach at a time, so that calls are queued.
    pub attaches_one_by_one: bool,
    /// Whether the spec of an attachment is recorded. Without a record, a repeated attach returns
    /// the spec of the repetition, and does not refuse a caller that requests another spec.
    pub records_spec: bool,
    /// Whether volumes are reachable from every topology that the caller of a creation prefers.
    /// They have no [`Volume::place`], and the response contains the preferred topologies.
    pub reaches_preferred: bool,
    /// A hint for the error if a volume is outside the requested topology; `None` if impossible.
    pub elsewhere: Option<&'static str>,
    /// Advice for the error if the storage does not complete a change: what to inspect.
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
            records_spec: true,
            reaches_preferred: false,
            elsewhere: None,
            where_to_look: None,
        }
    }
}

/// The backends of a controller.
pub enum Backends {
    /// A single backend for all calls, regardless of their secrets.
    One(Arc<dyn Backend>),
    /// A backend for each cloud that the secrets of a call can name, ordered by name.
    Named {
        /// The first backend.
        first: Named,
        /// The other backends.
        others: Vec<Named>,
    },
}

/// A backend of a cloud that the secrets of calls select.
pub struct Named {
    /// The name in the secrets; empty if secrets name no cloud.
    pub name: String,
    /// The name in errors and log lines.
    pub label: String,
    /// The backend of the cloud.
    pub backend: Arc<dyn Backend>,
}

/// Returns the error for a volume that does not exist.
pub(crate) fn no_volume(id: &VolumeId) -> Failure {
    Failure::not_found(format!("volume {id}: not found"))
}

/// The result of a verb: completed, or accepted and still in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// The verb is completed.
    Done(T),
    /// The storage is making the change. Until it has finished, the volume is [`Phase::Busy`] or
    /// [`Phase::Deleting`].
    Begun,
}

/// The sizes that a backend can create, in bytes; all three are multiples of `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The granularity of sizes.
    pub step: u64,
    /// The minimum size of a volume.
    pub min: u64,
    /// The maximum size of a volume, if there is free space.
    pub max: u64,
}

/// The use for which a volume is created. It determines the minimum size, and is compared when a
/// request repeats the name, if the backend stores it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// The volume is published as a block device.
    Block,
    /// The volume is published as a filesystem of this type; empty if the request has none.
    Filesystem(String),
}

/// A request to create a volume.
#[derive(Clone, Debug)]
pub struct Order {
    /// The name, by which a repeated request is recognised.
    pub name: Name,
    /// The attempt, for the mark of the new volume.
    pub attempt: Attempt,
    /// The size in bytes, which [`Backend::sizes`] allows for the parameters.
    pub bytes: u64,
    /// The use of the volume.
    pub usage: Usage,
    /// The flags with which a node will mount the volume.
    pub mount_flags: MountFlags,
    /// The parameters: keys of [`Backend::parameters`], and those that the provisioner adds.
    pub parameters: Context,
    /// Whether several nodes must be able to use the volume at once, which this storage supports
    /// only for some volumes.
    pub shared: bool,
    /// The topology from which the volume must or should be reachable; `None` if it may be
    /// anywhere.
    pub topology: Option<TopologyRequirement>,
    /// The credentials of the class.
    pub secrets: Secrets,
}

/// A parameter whose value differs between a request and a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The key, one of [`Backend::parameters`].
    pub key: &'static str,
    /// The value that the volume shows.
    pub is: String,
    /// The value in the request.
    pub asked: String,
}

/// The current state of a volume or a snapshot, as its backend reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The object can be attached, expanded, copied and deleted.
    Ready,
    /// The storage is changing the object; the storage's word for that, e.g. `creating`.
    Busy(String),
    /// The storage is deleting the object.
    Deleting,
    /// The object can only be deleted. Contains the failure of the operation that ended in this
    /// state.
    Failed(Failure),
}

/// An existing volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The ID, which never changes.
    pub id: VolumeId,
    /// The name that the storage shows, if it shows one; [`Backend::is_name`] compares it.
    pub name: Option<String>,
    /// The state of the volume.
    pub phase: Phase,
    /// The mark of the volume.
    pub mark: Mark,
    /// The size in bytes; 0 in a list if the backend has lost it.
    pub bytes: u64,
    /// The use for which the volume was created; `None` if the backend does not store that.
    pub usage: Option<Usage>,
    /// The volume context returned by the creation; `None` if the backend does not store that.
    pub context: Option<Context>,
    /// The nodes to which the volume is attached.
    pub nodes: Vec<NodeId>,
    /// The source of the volume's data; `None` if it was created empty.
    pub source: Option<ContentSource>,
    /// The topology from which the volume is reachable; `None` if it is not reported.
    pub place: Option<Arc<Topology>>,
    /// The content of the volume, as far as the storage knows; `None` if only an attach determines
    /// it.
    pub content: Option<Content>,
    /// The time of the attachment, as in [`Attachment::attached_at`].
    pub attached_at: Option<u64>,
    /// Whether several nodes can use the volume at once, as the storage reports it.
    pub shares: bool,
    /// The parameters that the storage shows for the volume, by key, except parameters that may
    /// have changed since its creation. If a key has several values, a request may have any of
    /// them.
    pub parameters: Vec<(&'static str, String)>,
}

impl Volume {
    /// Creates a volume of which only the ID and the phase are known.
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
    /// The volumes, in the order of the listing.
    pub volumes: Vec<Volume>,
    /// The token of the next page, if there is one.
    pub next: Option<String>,
}
