//! Creates a volume: selects a disk, creates the object, and waits for the store of the disk.

use super::follow::Followed;
use super::item::{id, object_name, wanted};
use super::place::{LATE, Offer, Unusable, choose, is_allowed, places};
use super::settle::Settled;
use super::{Front, KEY, disk, shown};
use crate::backend::local::id as ids;
use crate::backend::{Order, Usage, Volume, no_volume};
use crate::kubernetes::{
    LocalSnapshot, LocalVolume, Mode, Object, SPEC_VERSION, Source, Usage as UsageSpec, VolumeSpec,
    Written,
};
use belay_server::call::{Failure, Kind};
use belay_server::request::{ContentSource, Name};
use belay_server::size::Exact;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::time::Instant;

/// The parameters with which csi-provisioner names the claim.
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
/// The annotation of a claim whose pod was scheduled before the volume is created.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The disk of a new volume.
struct Target {
    place: String,
    node: String,
    disk: String,
}

/// The place and the name of the disk with the source of a copy.
struct Origin {
    /// The source for messages, such as "volume vol-1".
    what: String,
    place: String,
    disk: String,
}

impl Front {
    /// Returns the complete volume with this name. Waits while a store creates the volume. If the
    /// order of an earlier call was refused or not accepted, removes it.
    pub(super) async fn found(&self, name: &Name) -> Result<Option<Volume>, Failure> {
        self.volumes.ready().await?;
        // The cache may still contain a volume that was just deleted.
        let object = self.client.get(&object_name(name)).await?;
        let Some(object) = object.map(Arc::new) else {
            return Ok(None);
        };
        // The creation reports an object with another name in its request.
        if wanted(&object).is_some_and(|wanted| wanted.name != name.as_str()) {
            return Ok(None);
        }
        match self.usable_or_lost(object, self.until()).await? {
            Settled::Usable(object) => shown::volume(&object).map(Some),
            // CreateVolume is called, so no PersistentVolume has the volume.
            Settled::Lost(object) => self.discard(object).await.map(|()| None),
            Settled::Withdrawn | Settled::Refused(_) | Settled::Gone => Ok(None),
        }
    }

    /// Waits like [`Self::settle`]. A volume that no PersistentVolume has is lost with its disk.
    async fn usable_or_lost(
        &self,
        object: Arc<Object<LocalVolume>>,
        until: Instant,
    ) -> Result<Settled<LocalVolume>, Failure> {
        match self.settle(object, until).await? {
            Settled::Usable(object) | Settled::Lost(object) if self.is_gone(&object) => {
                let home = LocalVolume::home(self, id(&object)).await;
                Ok(match home.map_err(Failure::may_be_running)? {
                    Some(_) => Settled::Usable(object),
                    None => Settled::Lost(object),
                })
            }
            settled => Ok(settled),
        }
    }

    /// Creates the volume, or returns the volume with its name.
    ///
    /// # Errors
    /// Returns `Quota` if no disk has room, and `Unreachable` if the store of a disk that may have
    /// room has not accepted its orders yet. With a source, returns `Invalid` if the request
    /// excludes the disk of the source, `Precondition` if the disk has no room, and `Unreachable`
    /// if its store does not accept the order. Returns the errors of [`Self::settle`].
    pub(super) async fn created(
        &self,
        order: &Order,
        source: Option<&ContentSource>,
    ) -> Result<Volume, Failure> {
        let (name, until) = (object_name(&order.name), self.until());
        let mut refused = HashMap::new();
        loop {
            let target = self.target(order, source, &refused).await?;
            let spec = spec(order, source, &target)?;
            let (object, is_own) = match self.client.create::<LocalVolume>(&name, &spec).await? {
                Written::Done(object) => (object, true),
                Written::Conflict | Written::Missing => {
                    let read = self.client.get(&name).await;
                    match read.map_err(Failure::may_be_running)? {
                        Some(object) => (object, false),
                        None => continue,
                    }
                }
            };
            refuse_other_name(&name, &order.name, wanted(&object).map(|it| it.name))?;
            match self.usable_or_lost(Arc::new(object), until).await? {
                Settled::Usable(object) => return shown::volume(&object),
                Settled::Lost(object) => {
                    let discarded = self.discard(object).await;
                    discarded.map_err(Failure::may_be_running)?;
                }
                Settled::Withdrawn if is_own && source.is_some() => {
                    return Err(not_accepted(&target).rolled_back());
                }
                Settled::Refused(failure) if is_own => match (failure.kind, source) {
                    (Kind::Quota, None) => drop(refused.insert(target.node, failure.message)),
                    (Kind::Quota, Some(_)) => {
                        return Err(Failure::precondition(failure.message).rolled_back());
                    }
                    _ => return Err(failure.rolled_back()),
                },
                Settled::Withdrawn | Settled::Refused(_) | Settled::Gone => {}
            }
            if Instant::now() >= until {
                let name = order.name.as_str();
                let why =
                    format!("name {name:?}: other calls are changing this volume; repeat the call");
                return Err(Failure::busy(why).may_be_running());
            }
        }
    }

    /// Returns the disk for a new volume. `refused` contains the nodes whose stores have refused
    /// the order, and the reasons.
    async fn target(
        &self,
        order: &Order,
        source: Option<&ContentSource>,
        refused: &HashMap<String, String>,
    ) -> Result<Target, Failure> {
        let disk = disk(&order.parameters)?;
        self.disks.ready().await?;
        let mut offers = self.offers(disk);
        if let Some(source) = source {
            let origin = self.origin(source).await?;
            return next_to(&origin, disk, order, &offers);
        }
        for offer in &mut offers {
            if let Some(why) = refused.get(&offer.node) {
                offer.room = Err(Unusable::Refused(why.clone()));
            }
        }
        let places = places(KEY, order.topology.as_ref(), &offers);
        loop {
            let chosen = self.chosen(order, disk, &places, &offers).await?;
            if places.len() == 1 || !self.is_cordoned(chosen).await? || self.is_late(order).await? {
                return Ok(target(chosen, disk));
            }
            let node = chosen.node.clone();
            for offer in offers.iter_mut().filter(|offer| offer.node == node) {
                offer.room = Err(Unusable::Cordoned);
            }
        }
    }

    /// Returns the offer for a new volume at one of these places, in order of preference.
    async fn chosen<'a>(
        &self,
        order: &Order,
        disk: &str,
        places: &[String],
        offers: &'a [Offer],
    ) -> Result<&'a Offer, Failure> {
        let is_preferred = order
            .topology
            .as_ref()
            .is_some_and(|asked| !asked.preferred.is_empty());
        let first = places.get(..1).filter(|_| is_preferred);
        let mut tried = first.unwrap_or(places);
        let mut chosen = choose(tried, offers, order.bytes);
        // If the pod is on its way to the first place, a volume elsewhere would not help.
        if chosen.is_err() && first.is_some() && !self.is_late(order).await? {
            tried = places;
            chosen = choose(tried, offers, order.bytes);
        }
        let may_accept = |offer: &Offer| tried.contains(&offer.place) && offer.fits(order.bytes);
        chosen.map_err(|why| {
            let bytes = Exact(order.bytes);
            match offers.iter().any(may_accept) {
                true => {
                    let why = format!("no disk {disk:?} takes an order for {bytes} now: {why}");
                    Failure::new(Kind::Unreachable, why)
                }
                false => Failure::quota(format!("no room for {bytes} on any disk {disk:?}: {why}")),
            }
        })
    }

    /// Whether the Node of the disk gets no new pods.
    async fn is_cordoned(&self, offer: &Offer) -> Result<bool, Failure> {
        let node = self.client.node(&offer.node).await?;
        Ok(node.is_some_and(|node| node.spec.unschedulable))
    }

    /// Returns the disk with the source of a copy.
    async fn origin(&self, source: &ContentSource) -> Result<Origin, Failure> {
        let found = |what: &str, id: &str, place: &str, disk: &str| Origin {
            what: format!("{what} {id}"),
            place: place.to_owned(),
            disk: disk.to_owned(),
        };
        let origin = match source {
            ContentSource::Snapshot(id) => {
                let object = self.identified::<LocalSnapshot>(id.as_str()).await?;
                let object = object.ok_or_else(|| no_snapshot(id.as_str()))?;
                wanted(&object).map(|it| found("snapshot", it.id, it.place, it.disk))
            }
            ContentSource::Volume(id) => {
                let object = self.identified::<LocalVolume>(id.as_str()).await?;
                let object = object.ok_or_else(|| no_volume(id))?;
                wanted(&object).map(|it| found("volume", it.id, it.place, it.disk))
            }
        };
        origin.ok_or_else(|| Failure::bug("a source that this release does not know"))
    }

    /// Whether the pod of the claim was scheduled before the creation. If the claim cannot be found
    /// by the parameters, the volume may be at any requested place.
    async fn is_late(&self, order: &Order) -> Result<bool, Failure> {
        let parameters = &order.parameters;
        let names = (parameters.get(CLAIM_NAMESPACE), parameters.get(CLAIM_NAME));
        let (Some(namespace), Some(name)) = names else {
            return Ok(false);
        };
        let annotations = self.client.annotations_of_claim(namespace, name).await?;
        Ok(annotations.is_some_and(|all| all.contains_key(SELECTED_NODE)))
    }
}

pub(super) fn no_snapshot(id: &str) -> Failure {
    Failure::not_found(format!("snapshot {id}: not found"))
}

/// Fails if an object with the name in this request is for another name.
///
/// # Errors
/// Returns `Incompatible`, naming the object.
pub(super) fn refuse_other_name(
    object: &str,
    asked: &Name,
    name: Option<&str>,
) -> Result<(), Failure> {
    match name {
        Some(name) if name != asked.as_str() => Err(Failure::incompatible(format!(
            "name {:?}: the object {object} is for the name {name:?}; use another name",
            asked.as_str()
        ))),
        _ => Ok(()),
    }
}

fn target(offer: &Offer, disk: &str) -> Target {
    Target {
        place: offer.place.clone(),
        node: offer.node.clone(),
        disk: disk.to_owned(),
    }
}

/// Returns the disk of the source, if the request allows it and the disk has room.
fn next_to(
    origin: &Origin,
    disk: &str,
    order: &Order,
    offers: &[Offer],
) -> Result<Target, Failure> {
    let Origin {
        what,
        place,
        disk: own,
    } = origin;
    if own != disk {
        let why = format!("{disk:?}: {what} is on disk {own:?}, and a copy is on the same disk");
        return Err(Failure::invalid("parameters[disk]", why));
    }
    if !is_allowed(KEY, order.topology.as_ref(), place) {
        let why = format!("{what} is at {KEY}={place}, and a copy is at the same place");
        return Err(Failure::invalid("accessibility_requirements", why));
    }
    let here = || offers.iter().filter(|offer| offer.place == *place);
    let usable = here().find(|offer| offer.room.is_ok());
    let there = format!("disk {disk:?} at {place}");
    let Some(offer) = usable.or_else(|| here().next()) else {
        let why = format!("{what}: no store reports {there}");
        return Err(Failure::new(Kind::Unreachable, why));
    };
    match &offer.room {
        Ok(room) if *room >= order.bytes && offer.is_late => {
            let why = format!("{what}: {there}: {LATE}");
            Err(Failure::new(Kind::Unreachable, why))
        }
        Ok(room) if *room >= order.bytes => Ok(target(offer, disk)),
        Ok(room) => Err(Failure::precondition(format!(
            "{what}: a copy of {} must be on {there}, which has {} left; delete volumes or \
             snapshots there",
            Exact(order.bytes),
            Exact(*room)
        ))),
        Err(why @ (Unusable::Silent | Unusable::Withdrawn)) => {
            let why = format!("{what}: {there}: {why}");
            Err(Failure::new(Kind::Unreachable, why))
        }
        Err(why) => Err(Failure::precondition(format!("{what}: {there}: {why}"))),
    }
}

fn not_accepted(target: &Target) -> Failure {
    let Target { place, node, disk } = target;
    Failure::new(
        Kind::Unreachable,
        format!(
            "the store of disk {disk:?} at {place} has not accepted the order; check node {node}"
        ),
    )
}

fn spec(
    order: &Order,
    source: Option<&ContentSource>,
    target: &Target,
) -> Result<VolumeSpec, Failure> {
    let (mode, filesystem) = match &order.usage {
        Usage::Block => (Mode::Block, None),
        Usage::Filesystem(fs_type) => (Mode::Filesystem, Some(fs_type.clone())),
    };
    Ok(VolumeSpec {
        version: SPEC_VERSION,
        id: ids::fresh(ids::VOLUME)?,
        name: order.name.as_str().to_owned(),
        place: target.place.clone(),
        disk: target.disk.clone(),
        node: target.node.clone(),
        bytes: order.bytes,
        usage: UsageSpec {
            mode,
            filesystem: filesystem.filter(|fs_type| !fs_type.is_empty()),
        },
        source: source.map(|source| match source {
            ContentSource::Snapshot(id) => Source::Snapshot(id.as_str().to_owned()),
            ContentSource::Volume(id) => Source::Volume(id.as_str().to_owned()),
        }),
        adopt: false,
        remove: None,
    })
}
