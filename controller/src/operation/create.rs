//! Create a volume, empty or from a snapshot or another volume: find what has the name already,
//! else make it; either way it must agree with what is asked for.

use super::{Operations, lookup, phase, size, snapshot, support};
use crate::backend::{Backend, Order, Sizes, Usage, Volume};
use belay_server::call::{Failure, Rpc};
use belay_server::request::{CapacityRange, ContentSource, Context, CreateVolume};
use belay_server::work::fingerprint;
use std::sync::Arc;

impl Operations {
    /// Makes the volume, or finds that it was made.
    ///
    /// # Errors
    /// `Invalid` for what no volume of this driver can be; `Range` and `Quota` for sizes and
    /// places; `Incompatible` if the name belongs to another kind of volume; `NotFound` for the
    /// source; those of [`phase::ready`] for the volume of that name and for the source.
    pub async fn create(&self, request: CreateVolume) -> Result<Volume, Failure> {
        let same = fingerprint(&(
            (&request.range, &request.capabilities, &request.topology),
            (&request.parameters, &request.mutable_parameters),
            &request.source,
        ));
        let wanted = self.wanted(request)?;
        let order = Arc::clone(&wanted.order);
        let (backend, engine) = (Arc::clone(&self.backend), Arc::clone(&self.engine));
        let job = async move {
            let Order { name, attempt, .. } = &*wanted.order;
            let made = wanted.make(backend.as_ref());
            let volume = engine.volume_of(name, attempt, made).await?;
            let volume = phase::ready(volume)?;
            // Also what was just made: another caller may have made it in between.
            wanted.agrees(&volume)?;
            Ok(volume)
        };
        self.creating
            .run(order.name.as_str(), Rpc::CreateVolume, same, |_| job)
            .await
    }

    fn wanted(&self, request: CreateVolume) -> Result<Wanted, Failure> {
        for (n, capability) in request.capabilities.iter().enumerate() {
            if let Some(why) = support::refusal(capability) {
                return Err(Failure::invalid(&format!("volume_capabilities[{n}]"), why));
            }
        }
        let sizes = self.sizes(&request.parameters)?;
        support::refuse_unknown("mutable_parameters", &request.mutable_parameters, &[])?;
        let makes = match &request.source {
            None => true,
            Some(ContentSource::Snapshot(_)) => self.backend.snapshots().is_some(),
            Some(ContentSource::Volume(_)) => self.backend.clones().is_some(),
        };
        if !makes {
            let why = "this driver makes no volumes from that; leave it out";
            return Err(Failure::invalid("volume_content_source", why));
        }
        let usage = support::usage(&request.capabilities);
        let bytes = size::of_new(request.range, &usage, sizes)?;
        let order = Order {
            name: request.name,
            attempt: self.engine.attempt(),
            bytes,
            usage,
            parameters: request.parameters,
            topology: request.topology,
            secrets: request.secrets,
        };
        Ok(Wanted {
            order: Arc::new(order),
            range: request.range,
            sizes,
            source: request.source,
        })
    }

    /// The sizes that volumes with these parameters can have.
    ///
    /// # Errors
    /// `Invalid` for a parameter that this driver does not understand.
    pub(super) fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure> {
        support::refuse_unknown("parameters", parameters, self.backend.parameters())?;
        self.backend.sizes(parameters)
    }
}

/// A request that could be fulfilled if the name is free.
struct Wanted {
    order: Arc<Order>,
    range: Option<CapacityRange>,
    sizes: Sizes,
    source: Option<ContentSource>,
}

impl Wanted {
    async fn make(&self, backend: &dyn Backend) -> Result<Volume, Failure> {
        match &self.source {
            None => backend.create(Arc::clone(&self.order)).await,
            Some(ContentSource::Snapshot(id)) => {
                let snapshots = snapshot::of(backend)?;
                let from = snapshots.snapshot(id.clone()).await?;
                let from = from.ok_or_else(|| snapshot::not_found(id))?;
                if let Some(damage) = from.damage {
                    return Err(Failure::precondition(format!("snapshot {id}: {damage}")));
                }
                if !from.ready {
                    return Err(Failure::precondition(format!(
                        "snapshot {id}: is not ready yet; repeat the call when it is ready_to_use"
                    )));
                }
                let order = self.at_least(from.bytes)?;
                snapshots.restore(order, id.clone()).await
            }
            Some(ContentSource::Volume(id)) => {
                let clones = backend.clones();
                let clones = clones.ok_or_else(|| Failure::unsupported("no clones"))?;
                let from = backend.get(id.clone()).await?;
                let from = phase::ready(from.ok_or_else(|| lookup::not_found(id))?)?;
                let order = self.at_least(from.bytes)?;
                clones.clone_volume(order, id.clone()).await
            }
        }
    }

    /// The order, for a volume that takes over that many bytes.
    fn at_least(&self, taken_over: u64) -> Result<Arc<Order>, Failure> {
        let bytes = size::of_copy(self.range, taken_over, &self.order.usage, self.sizes)?;
        Ok(Arc::new(Order {
            bytes,
            ..Order::clone(&self.order)
        }))
    }

    /// Compares with the volume that has the name, and tells all differences.
    fn agrees(&self, volume: &Volume) -> Result<(), Failure> {
        let mut differences = Vec::new();
        differences.extend(size::outside(volume.bytes, self.range));
        if let Some(usage) = &volume.usage
            && *usage != self.order.usage
        {
            let (is, asked) = (describe(usage), describe(&self.order.usage));
            differences.push(format!("it was made for {is}, asked for is {asked}"));
        }
        if volume.source != self.source {
            let (is, asked) = (origin(volume.source.as_ref()), origin(self.source.as_ref()));
            differences.push(format!("it was made from {is}, asked for is {asked}"));
        }
        if let (Some(here), Some(asked)) = (&volume.place, &self.order.topology)
            && !here.satisfies(asked)
        {
            differences.push(format!(
                "it is at {}, asked for is another place",
                here.describe()
            ));
        }
        if differences.is_empty() {
            return Ok(());
        }
        Err(Failure::incompatible(format!(
            "name {:?} belongs to volume {}: {}",
            self.order.name.as_str(),
            volume.id,
            differences.join("; ")
        )))
    }
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
