//! The interface to storage systems, without CSI: `operation/` checks whether a change was already
//! made, and `rpc/` handles gRPC and capabilities. A method of a backend (a "verb") reads state or
//! starts a change, and returns the state at that time. `operation/engine` waits until the change
//! has ended; only `local` and `nodes` wait themselves. Calls without secrets pass empty secrets.

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
pub mod nodes;
pub mod openstack;
pub mod registry;
mod snapshots;
mod started;

pub use attachments::{AttachOrder, Attachment, AttachmentSpec, Attachments};
pub use claims::{Attempt, Claims, Mark};
pub use optional::{
    Capacity, Clones, DroppedChange, Expansion, Health, Modification, Parameter, Planned,
    Unhealthy, UnhealthyPage,
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

/// The result of each backend method: a future that can be moved between threads.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// A storage system. [`Self::create`] determines the ID of a volume.
pub trait Backend: Send + Sync + 'static {
    /// Returns the fixed properties of the backend.
    fn traits(&self) -> Traits {
        Traits::default()
    }

    /// Returns the keys of `CreateVolume` parameters that the backend knows. The driver's
    /// `ParameterPolicy` determines how unknown keys are handled.
    fn parameters(&self) -> &'static [&'static str];

    /// Returns the sizes that new volumes with these parameters can have.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the key, for an unknown value.
    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure>;

    /// Returns the sizes that new volumes with these parameters and this usage can have, in bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Self::sizes`].
    fn sizes_for(&self, parameters: &Context, _usage: &Usage) -> Result<Sizes, Failure> {
        self.sizes(parameters)
    }

    /// Creates a volume. If the backend has [`Self::claims`], the volume is marked with the ID of
    /// the attempt. A backend without [`Self::claims`] returns an existing volume with the name,
    /// whatever its properties; this check is atomic. If the requisite topology cannot be
    /// satisfied, creates nothing and returns [`belay_server::call::Kind::Quota`]. If a volume may
    /// exist after a failure, the failure has [`belay_server::call::Certainty::MayBeRunning`].
    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume>;

    /// Deletes a volume and its data; succeeds if the volume does not exist.
    fn delete(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Progress<()>>;

    /// Returns the recorded names of creations, for storage that cannot be searched by name
    /// (`nfs`). Returns `None` if [`Self::find`] can search for a name.
    fn started_creations(&self) -> Option<&StartedCreations> {
        None
    }

    /// Returns all volumes with this name, in any phase. `local` returns only ready volumes.
    fn find(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Volume>>;

    /// Returns the volume with this ID, in any phase.
    fn get(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Volume>>;

    /// Whether `id` has the form of the storage's volume IDs. Responses with other IDs are refused.
    fn is_volume_id(&self, _id: &VolumeId) -> bool {
        true
    }

    /// Whether `shown`, a name in a response, is the storage's form of the requested name.
    fn is_name(&self, shown: &str, asked: &Name) -> bool {
        shown == asked.as_str()
    }

    /// Returns at most `limit` volumes. `after` is the `next` of the previous page; `None` starts
    /// the list. Returns [`belay_server::call::Kind::BadToken`] for a token that no page has
    /// returned. The secrets are always empty for `ListVolumes`.
    fn list(&self, after: Option<String>, limit: usize, secrets: Secrets) -> Answer<'_, Page>;

    /// Explains why the storage dropped a change that it had accepted, and what to inspect. Returns
    /// `None` if the storage reports no reason.
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
    /// respond. The controller repeats the call until it succeeds.
    fn inspect(&self) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    /// Adds properties that the storage does not store to a volume that was created from `source`
    /// or found by its name. The properties are the same for each request with that name.
    fn complete(&self, volume: Volume, _source: Option<&ContentSource>) -> Volume {
        volume
    }

    /// Whether the volume satisfies the request although this parameter differs. The storage may
    /// have several names for one value, or may ignore the requested value.
    fn meets(&self, _parameter: Parameter, _secrets: Secrets) -> Answer<'_, bool> {
        Box::pin(async { Ok(false) })
    }

    /// Returns the implementation of claims; `None` if the storage enforces unique volume names.
    fn claims(&self) -> Option<&dyn Claims> {
        None
    }

    /// Returns the implementation of attaching; `None` if nodes use volumes without an attach.
    fn attachments(&self) -> Option<&dyn Attachments> {
        None
    }

    /// Returns the implementation of expansion; `None` if volumes cannot be expanded.
    fn expansion(&self) -> Option<&dyn Expansion> {
        None
    }

    /// Returns the implementation of attribute changes; `None` if attributes cannot be changed.
    fn modification(&self) -> Option<&dyn Modification> {
        None
    }

    /// Returns the implementation of capacity reports; `None` if free capacity is not reported.
    fn capacity(&self) -> Option<&dyn Capacity> {
        None
    }

    /// Returns the implementation of snapshots; `None` if snapshots are not supported.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        None
    }

    /// Returns the implementation of cloning; `None` if volumes cannot be cloned.
    fn clones(&self) -> Option<&dyn Clones> {
        None
    }

    /// Returns the implementation of health reports; `None` if volume health is not reported.
    fn health(&self) -> Option<&dyn Health> {
        None
    }
}

/// The fixed properties of a backend.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// The default size of a new volume, in bytes.
    pub default_bytes: u64,
    /// Whether [`Backend::list`] is supported.
    pub lists: bool,
    /// Whether the storage reports a status of each volume, which determines the volume's
    /// [`Phase`], so that the phase shows whether the volume is healthy. A backend with
    /// [`Backend::health`] inspects volumes instead.
    pub reports_status: bool,
    /// Whether the engine reads a new volume again by its ID and compares the names. Remote storage
    /// may respond with the right name but the ID of a different object.
    pub reads_back: bool,
    /// The minimum time between two reads of a volume that the storage is changing.
    pub poll_interval: Duration,
    /// Maximum number of times that one call starts an attach, detach or expansion that the storage
    /// accepts but does not carry out. A value above 2 is for storage that is at times unable to
    /// carry out a change; other changes of the node wait during the retries.
    pub begins_max: u32,
    /// Whether a node accepts only one attach or detach at a time, so that calls must be queued.
    pub attaches_one_by_one: bool,
    /// Whether the storage records the spec of an attachment. If not, a repeated attach returns the
    /// spec of the repeated request, and cannot detect that it differs from the first spec.
    pub records_spec: bool,
    /// Whether a volume is reachable from all topologies that its CreateVolume request prefers. If
    /// so, [`Volume::place`] is `None`, and CreateVolume returns the preferred topologies.
    pub reaches_preferred: bool,
    /// A hint for errors about a volume outside of the requested topology, if any.
    pub elsewhere: Option<&'static str>,
    /// The log to inspect, for errors about a change that the storage did not complete.
    pub where_to_look: Option<&'static str>,
}

impl Default for Traits {
    fn default() -> Self {
        Self {
            default_bytes: 1 << 30,
            lists: true,
            reports_status: false,
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
    /// A backend for each cloud that the secrets of calls can name, ordered by name.
    Named {
        /// The first backend.
        first: Named,
        /// The other backends.
        others: Vec<Named>,
    },
}

/// One of several clouds, and its backend. The secrets of a call select the cloud.
pub struct Named {
    /// The name of the cloud in the secrets; empty if the secrets name no cloud.
    pub name: String,
    /// The name of the cloud in errors and log lines.
    pub label: String,
    /// The backend of the cloud.
    pub backend: Arc<dyn Backend>,
}

/// Returns the error for a volume that does not exist.
pub(crate) fn no_volume(id: &VolumeId) -> Failure {
    Failure::not_found(format!("volume {id}: not found"))
}

/// The result of a change: completed, or accepted by the storage and still in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<T> {
    /// The change is completed.
    Done(T),
    /// The storage is still carrying out the change. Until the change has ended, the volume is in
    /// [`Phase::Busy`] or [`Phase::Deleting`].
    Begun,
}

/// The sizes that a backend can create, in bytes. All fields are multiples of `step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// All sizes are multiples of this number of bytes.
    pub step: u64,
    /// The minimum size of a volume.
    pub min: u64,
    /// The maximum size of a volume, if there is enough free space.
    pub max: u64,
}

/// The use for which a volume is created. The usage determines the minimum size of the volume. If
/// the backend stores the usage, a later request with the same name must have the same usage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Usage {
    /// The volume is published as a block device.
    Block,
    /// The volume is published as a filesystem of this type; empty if the request names no type.
    Filesystem(String),
}

/// A request to create a volume.
#[derive(Clone, Debug)]
pub struct Order {
    /// The name, which identifies repeated requests.
    pub name: Name,
    /// The creation attempt, whose ID the mark of the new volume contains.
    pub attempt: Attempt,
    /// The size in bytes, which must be one of [`Backend::sizes`] for the parameters.
    pub bytes: u64,
    /// The use of the volume.
    pub usage: Usage,
    /// The flags with which a node will mount the volume.
    pub mount_flags: MountFlags,
    /// The parameters: keys of [`Backend::parameters`], and keys that csi-provisioner adds.
    pub parameters: Context,
    /// Whether several nodes must be able to use the volume at once. Some storage supports this
    /// only for volumes that are created with this property.
    pub shared: bool,
    /// The topology from which the volume must or should be reachable; `None` if the request names
    /// none.
    pub topology: Option<TopologyRequirement>,
    /// The secrets of the request, which the StorageClass refers to.
    pub secrets: Secrets,
}

/// The state of a volume or a snapshot, as the backend reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The object can be attached, expanded, copied and deleted.
    Ready,
    /// The storage is changing the object. Contains the storage's status, such as `creating`.
    Busy(String),
    /// The storage is deleting the object.
    Deleting,
    /// The object can only be deleted, since an operation has failed. Contains the failure.
    Failed(Failure),
}

/// An existing volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The ID, which never changes.
    pub id: VolumeId,
    /// The name that the storage reports, if any, in a form that [`Backend::is_name`] compares.
    pub name: Option<String>,
    /// The state of the volume.
    pub phase: Phase,
    /// The mark that is stored with the volume.
    pub mark: Mark,
    /// The size in bytes; 0 in a list if the record of the volume cannot be read.
    pub bytes: u64,
    /// The use for which the volume was created; `None` if the backend does not store the use.
    pub usage: Option<Usage>,
    /// The volume context that CreateVolume returned; `None` if the backend does not store it.
    pub context: Option<Context>,
    /// The nodes to which the volume is attached.
    pub nodes: Vec<NodeId>,
    /// The source of the volume's data; `None` if the volume was created empty.
    pub source: Option<ContentSource>,
    /// The topology from which the volume is reachable, if the storage reports it.
    pub place: Option<Arc<Topology>>,
    /// The content, as far as the storage knows. The content determines whether a node may format
    /// the volume. `None` if the content becomes known only during an attach.
    pub content: Option<Content>,
    /// The time of the attachment by the storage's clock, in seconds since 1970; see
    /// [`Attachment::attached_at`].
    pub attached_at: Option<u64>,
    /// Whether the storage allows several nodes to use the volume at once.
    pub shares: bool,
    /// The parameters that the storage reports for the volume, by key, except parameters that may
    /// have changed since the creation. If a key occurs several times, a request matches with any
    /// of its values.
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
    /// The token of the next page; `None` on the last page.
    pub next: Option<String>,
}
