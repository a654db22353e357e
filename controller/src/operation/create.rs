//! Creates a volume, empty or from a snapshot or another volume. If a volume with the name already
//! exists and matches the request, returns that volume.

use super::clouds::Cloud;
use super::{Operations, Subject, lookup, modify, size, snapshot, support};
use crate::backend::{
    Backend, Clones, Order, Parameter, Phase, Sizes, Usage, Volume, answered, no_volume,
};
use belay_contract::drivers::ParameterPolicy;
use belay_contract::encryption::{self, Encryption};
use belay_contract::format::{self, FormatOptions};
use belay_server::call::{Failure, Kind, Rpc};
use belay_server::request::{
    CapacityRange, ContentSource, Context, CreateVolume, Name, Segments, TopologyRequirement,
};
use belay_server::work::fingerprint;
use std::sync::Arc;

/// The request field that contains the parameters of the StorageClass.
const PARAMETERS: &str = "parameters";

impl Operations {
    /// Creates the volume, or returns the existing one.
    ///
    /// # Errors
    /// Returns `Invalid` for a request that no volume of this driver can satisfy, `Range` if no
    /// size fits, and `Quota` if a limit is reached. Returns `Incompatible` if the existing volume
    /// with this name differs from the request, and `NotFound` if the source does not exist.
    /// Returns the errors of [`lookup::ready`] for the existing volume and for the source.
    pub async fn create(&self, request: CreateVolume) -> Result<Volume, Failure> {
        let cloud = self.cloud(&request.secrets)?;
        let same = fingerprint(&(
            (&request.range, &request.capabilities, &request.topology),
            (&request.parameters, &request.mutable_parameters),
            (&request.source, &request.secrets),
        ));
        let wanted = self.wanted(cloud, request)?;
        let order = Arc::clone(&wanted.order);
        let (backend, engine) = (Arc::clone(&cloud.backend), Arc::clone(&cloud.engine));
        let job = async move {
            let made = wanted.make(backend.as_ref(), engine.may_exist(&wanted.order.name));
            let volume = engine.volume_of(&wanted.order, made).await?;
            let volume = lookup::ready(volume)?;
            let volume = backend.complete(volume, wanted.source.as_ref());
            // Compare a new volume with the request as well, since a different call with this name
            // may have created the volume.
            wanted.agrees(backend.as_ref(), &volume).await?;
            let (mutable, secrets) = (&wanted.mutable, &wanted.order.secrets);
            modify::verify(backend.as_ref(), &volume.id, mutable, secrets).await?;
            wanted.describe(volume)
        };
        let (subject, name) = (Subject::NewVolume, order.name.as_str());
        let call = (subject, name, Rpc::CreateVolume, same);
        self.run(cloud, call, job).await
    }

    /// Returns the topologies from which the volume is reachable, for the response to a
    /// CreateVolume request with the topology requirement `asked`. Returns an empty list if the
    /// volume is reachable from anywhere, or if the driver does not report topology.
    #[must_use]
    pub fn reach(&self, volume: &Volume, asked: Option<&TopologyRequirement>) -> Vec<Segments> {
        match (&volume.place, asked) {
            (Some(place), _) => vec![place.segments()],
            (None, Some(asked)) if self.backend().traits().reaches_preferred => {
                asked.preferred.clone()
            }
            (None, _) => Vec::new(),
        }
    }

    /// Returns the usage (raw block or filesystem) that determines the minimum size of a volume.
    /// Only a volume that is a device needs space for a filesystem.
    pub(super) fn formatted<'a>(&self, usage: &'a Usage) -> &'a Usage {
        match self.rules.profile.has_device() {
            true => usage,
            false => &Usage::Block,
        }
    }

    fn wanted(&self, cloud: &Cloud, request: CreateVolume) -> Result<Wanted, Failure> {
        for (n, capability) in request.capabilities.iter().enumerate() {
            if let Some(why) = support::refusal(&self.rules.profile, capability) {
                return Err(Failure::invalid(&format!("volume_capabilities[{n}]"), why));
            }
        }
        let mut capabilities = request.capabilities.iter();
        let shared = capabilities.any(|it| support::is_shared(&self.rules.profile, it));
        let usage = support::usage(&request.capabilities);
        self.refuse_immutable(&request.mutable_parameters)?;
        let parameters = Self::merged(request.parameters, &request.mutable_parameters)?;
        let mut sizes = self.sizes(&parameters, &usage)?;
        let encryption = support::encryption(PARAMETERS, &parameters, &request.capabilities)?;
        if encryption.is_some() {
            sizes.min = sizes.min.max(support::smallest_encrypted(&usage));
        }
        self.warn_of_unknown(&request.name, &parameters);
        let format = FormatOptions::read(PARAMETERS, &parameters)?;
        let makes = match &request.source {
            None => true,
            Some(ContentSource::Snapshot(_)) => self.backend().snapshots().is_some(),
            Some(ContentSource::Volume(_)) => self.backend().clones().is_some(),
        };
        if !makes {
            let why = "this driver does not create volumes from this source; omit the field";
            return Err(Failure::invalid("volume_content_source", why));
        }
        let default = self.backend().traits().default_bytes;
        let bytes = size::of_new(request.range, default, self.formatted(&usage), sizes)?;
        let format = match &usage {
            // The filesystem belongs to a server, so the node does not create it.
            Usage::Filesystem(_) if !self.rules.profile.has_device() => FormatOptions::default(),
            Usage::Filesystem(fs_type) => {
                format.fit(PARAMETERS, support::filesystem(fs_type), bytes)?;
                format
            }
            // A StorageClass may be used for raw block volumes and for filesystems, so its format
            // options are ignored for raw block.
            Usage::Block => FormatOptions::default(),
        };
        let order = Order {
            name: request.name,
            attempt: cloud.engine.attempt(),
            bytes,
            usage,
            mount_flags: support::mount_flags(&request.capabilities),
            shared,
            parameters,
            topology: request.topology,
            secrets: request.secrets,
        };
        Ok(Wanted {
            order: Arc::new(order),
            range: request.range,
            sizes,
            source: request.source,
            mutable: request.mutable_parameters,
            format,
            encryption,
        })
    }

    /// Logs a warning about ignored parameters, since they may be typos.
    fn warn_of_unknown(&self, name: &Name, parameters: &Context) {
        if self.rules.profile.parameters != ParameterPolicy::Ignore {
            return;
        }
        if let Err(ignored) = support::refuse_unknown(PARAMETERS, parameters, &self.known()) {
            let name = name.as_str();
            tracing::warn!(name, %ignored, "a parameter of the class is ignored");
        }
    }

    /// Returns the parameter keys that the driver supports.
    fn known(&self) -> Vec<&'static str> {
        let own = self.backend().parameters();
        match self.rules.profile.has_device() {
            true => [own, format::PARAMETERS, encryption::PARAMETERS].concat(),
            false => own.to_vec(),
        }
    }

    /// Returns the sizes that volumes with these parameters may have for this usage.
    ///
    /// # Errors
    /// Returns `Invalid` for an unknown parameter, and for a format option that no filesystem can
    /// have.
    pub(super) fn sizes(&self, parameters: &Context, usage: &Usage) -> Result<Sizes, Failure> {
        let known = self.known();
        support::refuse_encryption(PARAMETERS, parameters, &known)?;
        match self.rules.profile.parameters {
            ParameterPolicy::Ignore => {}
            ParameterPolicy::Refuse => support::refuse_unknown(PARAMETERS, parameters, &known)?,
            ParameterPolicy::RefuseInAnyCase => {
                support::refuse_unknown_of_any_case(PARAMETERS, parameters, &known)?;
            }
        }
        FormatOptions::read(PARAMETERS, parameters)?;
        Encryption::wanted(PARAMETERS, parameters)?;
        self.backend().sizes_for(parameters, usage)
    }
}

/// A validated request to create a volume.
struct Wanted {
    order: Arc<Order>,
    range: Option<CapacityRange>,
    sizes: Sizes,
    source: Option<ContentSource>,
    mutable: Context,
    format: FormatOptions,
    /// How the node encrypts the volume; `None` if it does not.
    encryption: Option<Encryption>,
}

impl Wanted {
    /// Creates the volume. Fails if the storage's response describes a different volume.
    async fn make(&self, backend: &dyn Backend, may_exist: bool) -> Result<Volume, Failure> {
        let order = self.order_from_source(backend, may_exist).await?;
        let made = match &self.source {
            None => backend.create(Arc::clone(&order)),
            Some(ContentSource::Snapshot(id)) => {
                snapshot::of(backend)?.restore(Arc::clone(&order), id.clone())
            }
            Some(ContentSource::Volume(id)) => {
                clones_of(backend)?.clone_volume(Arc::clone(&order), id.clone())
            }
        };
        let made = made.await.map_err(|failure| match failure.kind {
            Kind::Quota => self.with_raise(failure, &order),
            _ => failure,
        })?;
        answered::volume(backend, &order, self.source.as_ref(), &made)?;
        Ok(made)
    }

    /// Adds to a lack of space that the volume would be larger than requested.
    fn with_raise(&self, failure: Failure, order: &Order) -> Failure {
        let why = size::raised(order.bytes, self.range, &order.usage).unwrap_or_default();
        let message = failure.message + &why;
        Failure { message, ..failure }
    }

    /// Returns the order for the backend, with at least the size of the source. `may_exist` states
    /// whether an earlier call may have created the copy. If it is true, a missing source is not an
    /// error, since the copy may exist.
    async fn order_from_source(
        &self,
        backend: &dyn Backend,
        may_exist: bool,
    ) -> Result<Arc<Order>, Failure> {
        let secrets = self.order.secrets.clone();
        match &self.source {
            None => Ok(Arc::clone(&self.order)),
            Some(ContentSource::Snapshot(id)) => {
                let from = snapshot::of(backend)?.snapshot(id.clone(), secrets).await;
                let Some(from) = from.map_err(Failure::nothing_happened)? else {
                    return match may_exist {
                        true => Ok(Arc::clone(&self.order)),
                        false => Err(snapshot::not_found(id)),
                    };
                };
                if let Some(damage) = from.damage {
                    return Err(Failure::precondition(format!("snapshot {id}: {damage}")));
                }
                let from = match from.phase {
                    // The check of `from.ready` below also refuses a snapshot that is busy.
                    Phase::Busy(_) => from,
                    _ => lookup::ready(from)?,
                };
                if !from.ready {
                    return Err(Failure::precondition(format!(
                        "snapshot {id}: not ready yet; repeat the call when it is ready_to_use"
                    )));
                }
                if from.bytes == 0 {
                    return Err(Failure::precondition(format!(
                        "snapshot {id}: the storage does not say how large it is, and its volume \
                         {} does not exist; restore it by hand",
                        from.source
                    )));
                }
                self.at_least(from.bytes)
            }
            Some(ContentSource::Volume(id)) => {
                let from = backend.get(id.clone(), secrets).await;
                let Some(from) = from.map_err(Failure::nothing_happened)? else {
                    return match may_exist {
                        true => Ok(Arc::clone(&self.order)),
                        false => Err(no_volume(id)),
                    };
                };
                self.at_least(lookup::ready(from)?.bytes)
            }
        }
    }

    /// Returns the order for the backend to copy a volume or snapshot with `taken_over` bytes.
    fn at_least(&self, taken_over: u64) -> Result<Arc<Order>, Failure> {
        let bytes = size::of_copy(self.range, taken_over, &self.order.usage, self.sizes)?;
        Ok(Arc::new(Order {
            bytes,
            ..Order::clone(&self.order)
        }))
    }

    /// Adds the format options and the encryption for the node to the volume context. Backends do
    /// not store them, since a repeated request contains the same parameters.
    fn describe(&self, mut volume: Volume) -> Result<Volume, Failure> {
        if self.format == FormatOptions::default() && self.encryption.is_none() {
            return Ok(volume);
        }
        let encryption = self.encryption.into_iter().flat_map(Encryption::entries);
        let added = self.format.entries().chain(encryption);
        let context = support::with_entries(volume.context.unwrap_or_default(), added)?;
        volume.context = Some(context);
        Ok(volume)
    }

    /// Compares the request with the volume that has the requested name. The error lists all
    /// differences.
    async fn agrees(&self, backend: &dyn Backend, volume: &Volume) -> Result<(), Failure> {
        let mut differences = self.other_parameters(backend, volume).await?;
        differences.extend(size::outside(volume.bytes, self.range));
        if let Some(usage) = &volume.usage
            && *usage != self.order.usage
        {
            let (is, asked) = (describe(usage), describe(&self.order.usage));
            differences.push(match (usage, &self.order.usage) {
                (Usage::Filesystem(_), Usage::Filesystem(asked)) if asked.is_empty() => format!(
                    "it was created for {is}, but this request leaves fs_type open: set it to {is}"
                ),
                _ => format!("it was created for {is}, not for {asked}"),
            });
        }
        if self.order.shared && !volume.shares {
            differences.push(support::ONE_NODE.to_owned());
        }
        if volume.source != self.source {
            let (is, asked) = (origin(volume.source.as_ref()), origin(self.source.as_ref()));
            differences.push(format!("it was created from {is}, not from {asked}"));
        }
        if let (Some(here), Some(asked)) = (&volume.place, &self.order.topology)
            && !here.satisfies(asked)
        {
            let why = backend.traits().elsewhere;
            let why = why.map_or_else(String::new, |why| format!(" ({why})"));
            let here = here.describe();
            differences.push(format!(
                "it is at {here}, outside the requested topology{why}"
            ));
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(Failure::incompatible(format!(
            "name {:?}: belongs to volume {}: {}; request the same, or use another name",
            self.order.name.as_str(),
            volume.id,
            differences.join("; ")
        )))
    }
}

impl Wanted {
    /// Returns a message for each parameter of the volume that differs from the request. If the
    /// request does not contain a parameter, the volume may have any value for it.
    async fn other_parameters(
        &self,
        backend: &dyn Backend,
        volume: &Volume,
    ) -> Result<Vec<String>, Failure> {
        let mut differences = Vec::new();
        for (key, is) in &volume.parameters {
            let asked = self.order.parameters.get(key);
            let shows = |asked: &&str| {
                let mut shown = volume.parameters.iter();
                shown.any(|(other, is)| other == key && is == asked)
            };
            let Some(asked) = asked.filter(|asked| !shows(asked)) else {
                continue;
            };
            let parameter = Parameter {
                key,
                is: is.clone(),
                asked: asked.to_owned(),
            };
            let met = backend.meets(parameter, self.order.secrets.clone()).await;
            if met.map_err(Failure::may_be_running)? {
                continue;
            }
            let field = match self.mutable.get(key) {
                Some(_) => modify::FIELD,
                None => PARAMETERS,
            };
            differences.push(format!("{field}[{key}]: it has {is:?}, not {asked:?}"));
        }
        Ok(differences)
    }
}

fn clones_of(backend: &dyn Backend) -> Result<&dyn Clones, Failure> {
    let clones = backend.clones();
    clones.ok_or_else(|| Failure::unsupported("no clones"))
}

fn origin(source: Option<&ContentSource>) -> String {
    match source {
        None => "nothing".to_owned(),
        Some(ContentSource::Snapshot(id)) => format!("snapshot {id}"),
        Some(ContentSource::Volume(id)) => format!("volume {id}"),
    }
}

pub(super) fn describe(usage: &Usage) -> String {
    match usage {
        Usage::Block => "raw block".to_owned(),
        Usage::Filesystem(fs_type) if fs_type.is_empty() => "any filesystem".to_owned(),
        Usage::Filesystem(fs_type) => fs_type.clone(),
    }
}
