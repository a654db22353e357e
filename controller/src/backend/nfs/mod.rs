//! The backend `nfs`: volumes are directories of NFS servers, with the IDs and parameters of
//! csi-driver-nfs. See the README of this directory.

mod call;
mod capacity;
mod class;
mod clones;
mod health;
mod id;
mod options;
mod path;
mod processes;
mod snapshots;
pub mod worker;

pub use class::Mode;
pub use id::OnDelete;
pub use options::MountOptions;

use super::measured::{self, Verb, measured};
use super::{
    Answer, Backend, Capacity, Clones, Expansion, Health, Mark, Order, Page, Phase, Progress,
    Sizes, Snapshots, StartedCreations, Traits, Volume,
};
use belay_contract::drivers::NFS_ID_BYTES_MAX;
use belay_server::call::Failure;
use belay_server::request::{ContentSource, Context, Name, Secrets, SnapshotId, VolumeId};
use call::{Done, ExistingVolume, Mount, NewVolume, OldVolume, Owned, Work};
use capacity::SIZES;
use class::Class;
use id::Place;
use processes::Processes;
use std::sync::Arc;
use std::time::Duration;

/// The key of the secret that contains mount options, for calls without a volume capability.
const OPTIONS: &str = "mountOptions";

/// Deadlines of a worker process. They are shorter than the time after which an RPC returns while
/// its job continues, and longer than the time after which a soft mount reports that a server does
/// not respond.
const CREATE_MAX: Duration = Duration::from_secs(60);
const DELETE_MAX: Duration = Duration::from_secs(80);
const LOOK_MAX: Duration = Duration::from_secs(30);

/// The settings of the backend.
#[derive(Clone, Debug)]
pub struct Config {
    /// The mode of new directories if the storage class contains no mode.
    pub permissions: Mode,
    /// The deletion policy if neither the storage class nor the volume specifies one.
    pub on_delete: OnDelete,
    /// Whether a directory that Belay has not recorded as a volume is treated as a volume of
    /// csi-driver-nfs if a volume ID refers to the directory (`--nfs-adopt`).
    pub adopts: bool,
    /// Mount options for calls without mount options in a storage class or secret, such as
    /// deletions.
    pub mount_options: MountOptions,
}

impl Config {
    /// Returns the mount options in the secrets, or the mount options in the configuration if the
    /// secrets contain no options. The case of the secret's key is ignored.
    fn options(&self, secrets: &Secrets) -> Result<Vec<options::Parameter>, Failure> {
        let given = secrets.get_ignoring_case(OPTIONS);
        let given = options::parameters("secrets: mountOptions", given)?;
        Ok(self.mount_options.unless(given))
    }
}

/// The backend for directories of NFS servers.
pub struct Nfs {
    config: Config,
    /// The worker processes, shared with the copies in progress.
    processes: Arc<Processes>,
    begun: StartedCreations,
}

impl Nfs {
    /// Creates the backend without contacting a server.
    #[must_use]
    pub fn new(config: Config) -> Self {
        measured::describe();
        Self {
            config,
            processes: Arc::new(Processes::new()),
            begun: StartedCreations::default(),
        }
    }

    /// Returns the instructions for a worker process to create the requested volume.
    fn prepared(&self, order: &Order) -> Result<Prepared, Failure> {
        let class = Class::of(&order.parameters)?;
        let (place, id) = class.place(&order.name, &order.parameters, self.config.on_delete)?;
        let context = class::context(&order.parameters, &place.dir)?;
        let flags = order.mount_flags.as_slice();
        let options = match flags.is_empty() {
            true => self.config.options(&order.secrets)?,
            false => {
                let flags = flags.iter().map(String::as_str);
                options::parameters("volume_capabilities: mount_flags", flags)?
            }
        };
        let permissions = class.permissions.unwrap_or(self.config.permissions);
        let volume = NewVolume {
            at: place.owned(self.config.adopts),
            is_named_so: place.name.is_none(),
            on_delete: place.on_delete.unwrap_or(self.config.on_delete),
            bytes: order.bytes,
            permissions: permissions.bits(),
        };
        Ok(Prepared {
            mount: place.mount(options),
            place,
            id,
            context,
            volume,
        })
    }

    async fn made(&self, order: &Order) -> Result<Volume, Failure> {
        let prepared = self.prepared(order)?;
        let work = Work::Create(prepared.volume.clone());
        let asked = self.processes.ask(prepared.mount.clone(), work, CREATE_MAX);
        prepared.answered(asked.await)
    }

    async fn lookup(&self, id: VolumeId, secrets: &Secrets) -> Result<Option<Volume>, Failure> {
        let Some(place) = Place::of(&id)? else {
            return Ok(None);
        };
        let mount = place.mount(self.config.options(secrets)?);
        let work = Work::Lookup(place.owned(self.config.adopts));
        let asked = self.processes.ask(mount, work, LOOK_MAX);
        match asked.await.map_err(|failure| about(&id, failure))? {
            Done::Volume(seen) => Ok(seen.map(|seen| volume(id, seen))),
            _ => Err(mixed_up()),
        }
    }

    async fn deleted(&self, id: VolumeId, secrets: &Secrets) -> Result<(), Failure> {
        let Some(place) = Place::of(&id)? else {
            tracing::warn!(%id, "the volume counts as deleted: no driver creates such an ID");
            return Ok(());
        };
        let mount = place.mount(self.config.options(secrets)?);
        let work = Work::Delete(OldVolume {
            at: place.owned(self.config.adopts),
            on_delete: place.on_delete,
            default: self.config.on_delete,
        });
        let asked = self.processes.ask(mount, work, DELETE_MAX);
        match asked.await.map_err(|failure| about(&id, failure))? {
            Done::Deleted(why) => {
                if let Some(why) = why {
                    tracing::warn!(%id, "the volume is deleted, but nothing was removed: {why}");
                }
                Ok(())
            }
            _ => Err(mixed_up()),
        }
    }
}

/// A request to create a volume, converted for a worker process.
struct Prepared {
    place: Place,
    id: VolumeId,
    context: Context,
    mount: Mount,
    volume: NewVolume,
}

impl Prepared {
    /// Converts the result of the worker process into the created volume.
    fn answered(self, answer: Result<Done, Failure>) -> Result<Volume, Failure> {
        match answer.map_err(|failure| within(&self.mount, failure))? {
            Done::Volume(Some(seen)) => Ok(Volume {
                context: Some(self.context),
                ..volume(self.id, seen)
            }),
            _ => Err(mixed_up()),
        }
    }
}

impl Place {
    fn owned(&self, adopts: bool) -> Owned {
        Owned {
            dir: self.dir.clone(),
            name: self.name(),
            adopts,
        }
    }

    fn mount(&self, options: Vec<options::Parameter>) -> Mount {
        Mount {
            server: self.server.clone(),
            share: self.share.clone(),
            options,
        }
    }
}

fn volume(id: VolumeId, seen: ExistingVolume) -> Volume {
    Volume {
        id,
        name: None,
        phase: match seen.is_deleting {
            true => Phase::Deleting,
            false => Phase::Ready,
        },
        mark: Mark::None,
        bytes: seen.bytes,
        usage: None,
        context: None,
        nodes: Vec::new(),
        source: seen.source.and_then(source),
        place: None,
        content: None,
        attached_at: None,
        shares: false,
        parameters: Vec::new(),
    }
}

/// Returns the source in a volume's record: a volume or a snapshot. A record contains only valid
/// IDs.
fn source(origin: String) -> Option<ContentSource> {
    if let Some(id) = call::snapshot_of(&origin) {
        let id = SnapshotId::at_most(NFS_ID_BYTES_MAX, id.to_owned()).ok()?;
        return Some(ContentSource::Snapshot(id));
    }
    let id = VolumeId::at_most(NFS_ID_BYTES_MAX, origin).ok()?;
    Some(ContentSource::Volume(id))
}

fn about(id: &VolumeId, failure: Failure) -> Failure {
    Failure {
        message: format!("volume {id}: {}", failure.message),
        ..failure
    }
}

/// Adds the server and the share to the error message of a call without a volume ID.
fn within(mount: &Mount, failure: Failure) -> Failure {
    let share = path::source(&mount.server, &mount.share);
    if failure.message.starts_with(&share) {
        return failure;
    }
    Failure {
        message: format!("{share}: {}", failure.message),
        ..failure
    }
}

/// Returns the error for a worker process that has sent the result of another call.
fn mixed_up() -> Failure {
    Failure::bug("a worker process has answered another call")
}

impl Backend for Nfs {
    fn parameters(&self) -> &'static [&'static str] {
        &class::KEYS
    }

    fn sizes(&self, _: &Context) -> Result<Sizes, Failure> {
        Ok(SIZES)
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        measured(Verb::Create, async move { self.made(&order).await })
    }

    fn delete(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        measured(Verb::Delete, async move {
            self.deleted(id, &secrets).await.map(Progress::Done)
        })
    }

    /// Returns the record of started creations. The record is needed because the share of a volume
    /// cannot be derived from its name: only [`Self::create`] can find a volume by its name.
    fn started_creations(&self) -> Option<&StartedCreations> {
        Some(&self.begun)
    }

    fn find(&self, _: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn get(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Volume>> {
        measured(Verb::Get, async move { self.lookup(id, &secrets).await })
    }

    fn traits(&self) -> Traits {
        Traits {
            // The controller does not know a server until a call contains the server's name.
            lists: false,
            ..Traits::default()
        }
    }

    fn list(&self, _: Option<String>, _: usize, _: Secrets) -> Answer<'_, Page> {
        Box::pin(async { Err(Failure::unsupported("volumes are not listed")) })
    }

    supports! {
        expansion: Expansion, capacity: Capacity, clones: Clones, health: Health,
        snapshots: Snapshots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::{Certainty, Kind};

    pub(super) fn nfs() -> Nfs {
        Nfs::new(Config {
            permissions: Mode::default(),
            on_delete: OnDelete::Delete,
            adopts: false,
            mount_options: MountOptions::default(),
        })
    }

    fn id() -> VolumeId {
        VolumeId::new("filer#share#dir#pvc-1#").unwrap()
    }

    #[test]
    fn a_volume_has_the_recorded_size_and_is_deleting_or_ready() {
        for (is_deleting, phase) in [(true, Phase::Deleting), (false, Phase::Ready)] {
            let seen = ExistingVolume {
                bytes: 7,
                is_deleting,
                source: Some("filer#share#dir#pvc-0#".to_owned()),
            };
            let found = volume(id(), seen);
            assert_eq!((found.bytes, found.phase), (7, phase));
            let from = VolumeId::new("filer#share#dir#pvc-0#").unwrap();
            assert_eq!(found.source, Some(ContentSource::Volume(from)));
        }
    }

    #[test]
    fn a_failure_names_its_volume() {
        let failure = about(&id(), Failure::busy("why").may_be_running());
        assert_eq!(failure.message, "volume filer#share#dir#pvc-1#: why");
        let state = (failure.kind, failure.certainty);
        assert_eq!(state, (Kind::Busy, Certainty::MayBeRunning));
    }

    #[test]
    fn a_failure_of_a_creation_names_server_and_share_once() {
        let place = Place::of(&id()).unwrap().unwrap();
        for message in ["subDir x: why", "filer:/share: subDir x: why"] {
            let failure = Failure::busy(message).may_be_running();
            let failure = within(&place.mount(Vec::new()), failure);
            assert_eq!(failure.message, "filer:/share: subDir x: why");
            assert_eq!(failure.certainty, Certainty::MayBeRunning);
        }
    }

    /// A deletion request contains neither a storage class nor mount options.
    #[test]
    fn a_call_without_options_has_those_of_the_configuration() {
        let config = Config {
            mount_options: "nfsvers=3,nolock".parse().unwrap(),
            ..nfs().config
        };
        let options = config.options(&Secrets::default()).unwrap();
        let shown = options.iter().map(|(name, _)| name.as_str());
        assert_eq!(shown.collect::<Vec<_>>(), ["nfsvers", "nolock"]);
    }

    #[tokio::test]
    async fn what_only_a_server_knows_is_not_listed() {
        let nfs = self::nfs();
        assert!(!nfs.traits().lists && nfs.started_creations().is_some());
        let listed = nfs.list(None, 1, Secrets::default()).await;
        assert_eq!(listed.err().unwrap().kind, Kind::Unsupported);
        let found = nfs.find(Name::new("pvc-1").unwrap(), Secrets::default());
        assert!(found.await.unwrap().is_empty());
        assert_eq!(nfs.parameters(), &class::KEYS);
        let traits = nfs.traits();
        assert!(!traits.reaches_preferred);
        assert_eq!((traits.default_bytes, traits.begins_max), (1 << 30, 2));
        assert_eq!(traits.poll_interval, Duration::from_millis(250));
        // No volume can have this ID, so no server is contacted.
        let unknown = VolumeId::new("x").unwrap();
        let found = nfs.get(unknown.clone(), Secrets::default()).await;
        assert!(found.unwrap().is_none());
        let deleted = nfs.delete(unknown, Secrets::default()).await;
        assert_eq!(deleted, Ok(Progress::Done(())));
    }
}
