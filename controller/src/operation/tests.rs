//! Tests of the operations with a stub backend.

mod modify;
mod parameters;
mod sharing;
mod unfound;

use super::{Operations, Rules, Verdict};
use crate::backend::{
    Answer, AttachOrder, Attachment, Attachments, Backend, Clones, Expansion, Health, Mark, Order,
    Page, Parameter, Phase, Progress, Sizes, Snapshot, SnapshotOrder, SnapshotPage, Snapshots,
    Traits, UnhealthyPage, Usage, Volume,
};
use crate::mark_keys::MarkKeys;
use belay_contract::disk::DiskIdentity;
use belay_contract::drivers::LOCAL;
use belay_contract::publish_context::{Content, Transport};
use belay_contract::topology::Topology;
use belay_server::call::{Certainty, Failure, Kind};
use belay_server::health::Conditions;
use belay_server::request::{
    Access, AccessMode, Capability, CapacityRange, ContentSource, Context, ControllerExpand,
    ControllerPublish, ControllerUnpublish, CreateSnapshot, CreateVolume, DeleteVolume, GetVolume,
    ListSnapshots, ListVolumeHealth, ListVolumes, MountFlags, Name, NodeId, Secrets, Segments,
    SnapshotId, TopologyRequirement, ValidateCapabilities, VolumeId,
};
use std::future::pending;
use std::sync::{Arc, Mutex};
use tokio::task::yield_now;

/// The token of a requested page, and its maximum number of entries.
type Asked = (Option<String>, usize);

fn rules() -> Rules {
    Rules {
        profile: LOCAL,
        disk_name_key: None,
        mark_keys: MarkKeys::default(),
    }
}

const ANY: Sizes = Sizes {
    step: 1,
    min: 1,
    max: u64::MAX,
};

/// A backend that lists nothing and records its arguments. The backend has at most one volume,
/// `pvc-1`.
#[derive(Default)]
struct Stub {
    asked: Arc<Mutex<Vec<Asked>>>,
    ordered: Arc<Mutex<Vec<Arc<Order>>>>,
    volume: Option<Volume>,
    reaches_preferred: bool,
    meets: bool,
}

impl Stub {
    fn note<T: Default + Send + 'static>(
        &self,
        after: Option<String>,
        limit: usize,
    ) -> Answer<'_, T> {
        self.asked.lock().unwrap().push((after, limit));
        Box::pin(async { Ok(T::default()) })
    }
}

impl Backend for Stub {
    fn traits(&self) -> Traits {
        Traits {
            reaches_preferred: self.reaches_preferred,
            ..Traits::default()
        }
    }

    fn sizes(&self, parameters: &Context) -> Result<Sizes, Failure> {
        match parameters.get("class") {
            None => Ok(ANY),
            Some("small") => Ok(Sizes {
                max: 1 << 30,
                ..ANY
            }),
            Some(other) => Err(Failure::invalid("parameters[class]", other)),
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["class"]
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        let made = Volume {
            bytes: order.bytes,
            ..volume(Phase::Ready)
        };
        self.ordered.lock().unwrap().push(order);
        Box::pin(async { Ok(made) })
    }

    fn delete(&self, _: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        unreachable!()
    }

    fn find(&self, name: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        let is_its = name.as_str() == "pvc-1";
        let volume = self.volume.clone().filter(|_| is_its);
        Box::pin(async move { Ok(volume.into_iter().collect()) })
    }

    fn get(&self, _: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        Box::pin(async { Ok(self.volume.clone()) })
    }

    fn list(&self, after: Option<String>, limit: usize, _: Secrets) -> Answer<'_, Page> {
        self.note(after, limit)
    }

    fn meets(&self, _: Parameter, _: Secrets) -> Answer<'_, bool> {
        Box::pin(async { Ok(self.meets) })
    }

    fn attachments(&self) -> Option<&dyn Attachments> {
        Some(self)
    }

    fn expansion(&self) -> Option<&dyn Expansion> {
        Some(self)
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn clones(&self) -> Option<&dyn Clones> {
        Some(self)
    }

    fn health(&self) -> Option<&dyn Health> {
        Some(self)
    }
}

impl Attachments for Stub {
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        let Some(export) = order.context.get("export") else {
            return Box::pin(pending());
        };
        let attachment = Attachment {
            spec: order.spec.clone(),
            transport: Transport::Disk(DiskIdentity::Serial(export.to_owned())),
            bytes: 1,
            content: Content::New,
            attached_at: None,
            disk_name: None,
        };
        Box::pin(async { Ok(Progress::Done(attachment)) })
    }

    fn detach(&self, _: VolumeId, _: NodeId, _: Secrets) -> Answer<'_, Progress<()>> {
        unreachable!()
    }
}

impl Expansion for Stub {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        ANY
    }

    fn resize(&self, _: VolumeId, _: u64, _: Secrets) -> Answer<'_, Progress<u64>> {
        unreachable!()
    }
}

impl Snapshots for Stub {
    fn cut(&self, _: SnapshotOrder) -> Answer<'_, Snapshot> {
        Box::pin(pending())
    }

    fn discard(&self, _: SnapshotId, _: Secrets) -> Answer<'_, Progress<()>> {
        unreachable!()
    }

    fn snapshot(&self, _: SnapshotId, _: Secrets) -> Answer<'_, Option<Snapshot>> {
        unreachable!()
    }

    fn list_snapshots(
        &self,
        _: Option<VolumeId>,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        self.note(after, limit)
    }

    fn restore(&self, _: Arc<Order>, _: SnapshotId) -> Answer<'_, Volume> {
        unreachable!()
    }
}

impl Clones for Stub {
    fn clone_volume(&self, _: Arc<Order>, _: VolumeId) -> Answer<'_, Volume> {
        unreachable!()
    }
}

impl Health for Stub {
    fn health(&self, _: VolumeId, _: Secrets) -> Answer<'_, Option<Conditions>> {
        unreachable!()
    }

    fn conditions(&self, _: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>> {
        unreachable!()
    }

    fn list_unhealthy(
        &self,
        after: Option<String>,
        limit: usize,
        _: Secrets,
    ) -> Answer<'_, UnhealthyPage> {
        self.note(after, limit)
    }
}

#[tokio::test]
async fn a_page_has_as_many_entries_as_asked_for_and_never_more_than_a_message_holds() {
    let backend = Stub::default();
    let asked = Arc::clone(&backend.asked);
    let operations = Operations::new(Arc::new(backend), rules());
    for (max_entries, limit) in [
        (None, 4096),
        (Some(1), 1),
        (Some(4095), 4095),
        (Some(4096), 4096),
        (Some(4097), 4096),
        (Some(2_147_483_647), 4096),
    ] {
        let token = Some("token".to_owned());
        let volumes = ListVolumes {
            max_entries,
            starting_token: token.clone(),
        };
        operations.list(volumes).await.unwrap();
        let snapshots = ListSnapshots {
            max_entries,
            starting_token: token.clone(),
            source: None,
            id: None,
            secrets: Secrets::default(),
        };
        operations.list_snapshots(snapshots).await.unwrap();
        let unhealthy = ListVolumeHealth {
            max_entries,
            starting_token: token.clone(),
            secrets: Secrets::default(),
        };
        operations.list_health(unhealthy).await.unwrap();
        let pages = std::mem::take(&mut *asked.lock().unwrap());
        assert_eq!(pages, vec![(token, limit); 3], "{max_entries:?}");
    }
}

fn id() -> VolumeId {
    VolumeId::new("vol-1").unwrap()
}

fn volume(phase: Phase) -> Volume {
    Volume {
        id: id(),
        name: None,
        phase,
        mark: Mark::None,
        bytes: 1 << 30,
        usage: Some(Usage::Block),
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

/// Creates operations on a backend with this volume.
fn on(volume: Volume) -> Operations {
    let backend = Stub {
        volume: Some(volume),
        ..Stub::default()
    };
    Operations::new(Arc::new(backend), rules())
}

fn block() -> Capability {
    Capability {
        access: Access::Block,
        mode: AccessMode::SingleNodeWriter,
    }
}

fn mount() -> Capability {
    let access = Access::Mount {
        fs_type: String::new(),
        flags: MountFlags::default(),
        group: String::new(),
    };
    Capability { access, ..block() }
}

/// Returns a request for a volume with this name and capability.
fn named(name: &str, capability: Capability) -> CreateVolume {
    CreateVolume {
        name: Name::new(name).unwrap(),
        range: None,
        capabilities: vec![capability],
        parameters: Context::default(),
        mutable_parameters: Context::default(),
        source: None,
        topology: None,
        secrets: Secrets::default(),
    }
}

/// Returns a request to validate the volume with this context.
fn judged(capability: Capability, context: &[(&str, &str)]) -> ValidateCapabilities {
    ValidateCapabilities {
        id: id(),
        capabilities: vec![capability],
        volume_context: owned(context),
        parameters: Context::default(),
        mutable_parameters: Context::default(),
        secrets: Secrets::default(),
    }
}

fn owned(context: &[(&str, &str)]) -> Context {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Context::new("volume_context", context.iter().map(owned)).unwrap()
}

fn attached(node: &str, context: &[(&str, &str)]) -> ControllerPublish {
    ControllerPublish {
        id: id(),
        node: NodeId::new(node).unwrap(),
        capability: block(),
        read_only: false,
        volume_context: owned(context),
        secrets: Secrets::default(),
    }
}

fn grown() -> ControllerExpand {
    ControllerExpand {
        id: id(),
        range: CapacityRange {
            required_bytes: 2 << 30,
            limit_bytes: 0,
        },
        capability: None,
        secrets: Secrets::default(),
    }
}

fn cut(name: &str) -> CreateSnapshot {
    CreateSnapshot {
        name: Name::new(name).unwrap(),
        source: id(),
        parameters: Context::default(),
        topology: None,
        secrets: Secrets::default(),
    }
}

/// Returns the results of the calls that use the volume as a source, or refer to the volume by its
/// ID.
async fn outcomes(operations: &Operations) -> Vec<Result<(), Failure>> {
    let mut copied = named("pvc-2", block());
    copied.source = Some(ContentSource::Volume(id()));
    vec![
        operations.create(copied).await.map(drop),
        operations.expand(grown()).await.map(drop),
        operations.validate(judged(block(), &[])).await.map(drop),
    ]
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_ready_is_repeated_for_or_failed_and_shown_as_it_is() {
    for (phase, kind, word) in [
        (Phase::Busy("creating".to_owned()), Kind::Busy, "creating"),
        (Phase::Deleting, Kind::Busy, "deleted"),
        (
            Phase::Failed(Failure::quota("no host has room")),
            Kind::Precondition,
            "no host has room",
        ),
    ] {
        let operations = on(volume(phase.clone()));
        for outcome in outcomes(&operations).await {
            let failure = outcome.unwrap_err();
            assert_eq!(failure.kind, kind, "{failure}");
            assert_eq!(failure.certainty, Certainty::NothingHappened);
            for named in ["vol-1", word] {
                assert!(failure.message.contains(named), "{failure}");
            }
        }
        // A creation with the name waits for the volume, unless the volume has failed.
        let named = operations.create(named("pvc-1", block())).await;
        let failure = named.unwrap_err();
        let certainty = match kind {
            Kind::Busy => Certainty::MayBeRunning,
            _ => Certainty::NothingHappened,
        };
        assert_eq!((failure.kind, failure.certainty), (kind, certainty));
        let shown = operations.get(GetVolume { id: id() }).await.unwrap();
        assert_eq!(shown.phase, phase);
    }
}

/// Returns a request for a raw volume with this parameter.
fn classed(key: &str, value: &str) -> CreateVolume {
    let parameters = [(key.to_owned(), value.to_owned())];
    CreateVolume {
        parameters: Context::new("parameters", parameters).unwrap(),
        ..named("pvc-2", block())
    }
}

#[tokio::test]
async fn an_order_has_the_parameters_and_the_topology_as_given() {
    let backend = Stub::default();
    let ordered = Arc::clone(&backend.ordered);
    let operations = Operations::new(Arc::new(backend), rules());
    let zone = Segments::from([("example.org/zone".to_owned(), "a".to_owned())]);
    let request = CreateVolume {
        topology: Some(TopologyRequirement {
            requisite: vec![zone.clone()],
            preferred: vec![zone],
        }),
        ..classed("class", "small")
    };
    operations.create(request.clone()).await.unwrap();
    let order = ordered.lock().unwrap().remove(0);
    assert_eq!(order.parameters, request.parameters);
    assert_eq!(order.topology, request.topology);
}

#[tokio::test]
async fn a_parameter_is_refused_by_its_key_and_a_class_has_its_own_sizes() {
    let operations = Operations::new(Arc::new(Stub::default()), rules());
    for (key, value) in [("class", "vast"), ("clas", "small")] {
        let refused = operations.create(classed(key, value)).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid);
        assert!(refused.message.contains(key), "{refused}");
    }
    let larger = CreateVolume {
        range: Some(CapacityRange {
            required_bytes: 2 << 30,
            limit_bytes: 0,
        }),
        ..classed("class", "small")
    };
    let refused = operations.create(larger.clone()).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Range);
    let unclassed = CreateVolume {
        parameters: Context::default(),
        ..larger
    };
    assert_eq!(operations.create(unclassed).await.unwrap().bytes, 2 << 30);
}

#[tokio::test]
async fn what_the_backend_does_not_remember_is_not_compared() {
    let export = [("export", "/a")];
    let remembered = Volume {
        context: Some(owned(&export)),
        ..volume(Phase::Ready)
    };
    let forgotten = Volume {
        usage: None,
        context: None,
        ..remembered.clone()
    };
    for (volume, agrees) in [(remembered, false), (forgotten, true)] {
        let operations = on(volume);
        assert_eq!(
            operations.create(named("pvc-1", mount())).await.is_ok(),
            agrees
        );
        operations.create(named("pvc-1", block())).await.unwrap();
        for (capability, context, agrees) in [
            (block(), &export[..], true),
            (mount(), &export, agrees),
            (block(), &[("export", "/b")], agrees),
            (block(), &[("exprt", "/a")], agrees),
        ] {
            let verdict = operations.validate(judged(capability, context)).await;
            let confirmed = verdict.unwrap() == Verdict::Confirmed;
            assert_eq!(confirmed, agrees, "{context:?}");
        }
    }
}

#[tokio::test]
async fn the_volume_context_reaches_the_backend_with_the_attachment() {
    let request = attached("node-1", &[("export", "/a")]);
    let attachment = on(volume(Phase::Ready)).publish(request).await.unwrap();
    let disk = DiskIdentity::Serial("/a".to_owned());
    assert_eq!(attachment.transport, Transport::Disk(disk));
}

/// Returns the results of the calls that change or delete the volume.
async fn changes(operations: &Operations) -> Vec<Result<(), Failure>> {
    let deleted = DeleteVolume {
        id: id(),
        secrets: Secrets::default(),
    };
    let detached = ControllerUnpublish {
        id: id(),
        node: None,
        secrets: Secrets::default(),
    };
    vec![
        operations.publish(attached("node-2", &[])).await.map(drop),
        operations.unpublish(detached).await,
        operations.expand(grown()).await.map(drop),
        operations.delete(deleted).await,
    ]
}

/// Starts a call that never returns.
async fn begin(call: impl Future<Output = ()> + Send + 'static) {
    let begun = tokio::spawn(call);
    for _ in 0..3 {
        yield_now().await;
    }
    assert!(!begun.is_finished());
}

#[tokio::test]
async fn a_volume_has_one_job_at_a_time_but_for_cuts() {
    let operations = Arc::new(on(volume(Phase::Ready)));
    for name in ["snap-1", "snap-2"] {
        let cutting = Arc::clone(&operations);
        begin(async move { drop(cutting.cut(cut(name)).await) }).await;
    }
    assert_refused(changes(&operations).await, "CreateSnapshot");

    let operations = Arc::new(on(volume(Phase::Ready)));
    let attaching = Arc::clone(&operations);
    let call = async move { drop(attaching.publish(attached("node-1", &[])).await) };
    begin(call).await;
    let mut refused = changes(&operations).await;
    refused.push(operations.cut(cut("snap-3")).await.map(drop));
    assert_refused(refused, "ControllerPublishVolume");
}

fn assert_refused(outcomes: Vec<Result<(), Failure>>, for_rpc: &str) {
    let first = format!("{for_rpc} has been running");
    for outcome in outcomes {
        let failure = outcome.unwrap_err();
        assert_eq!(failure.kind, Kind::Busy);
        assert!(failure.message.contains(&first), "{failure}");
    }
}

#[tokio::test]
async fn a_parameter_that_no_backend_knows_makes_no_volume_and_no_snapshot() {
    let backend = Stub::default();
    let ordered = Arc::clone(&backend.ordered);
    let operations = Operations::new(Arc::new(backend), rules());
    let mutable = CreateVolume {
        mutable_parameters: owned(&[("iops", "7")]),
        ..named("pvc-2", block())
    };
    for (request, key) in [(mutable, "iops"), (classed("clas", "small"), "clas")] {
        let refused = operations.create(request).await.unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid);
        assert!(refused.message.contains(key), "{refused}");
    }
    assert!(ordered.lock().unwrap().is_empty());
    let request = CreateSnapshot {
        parameters: owned(&[("retention", "7d")]),
        ..cut("snapshot-1")
    };
    let refused = operations.cut(request).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Invalid);
    assert!(refused.message.contains("retention"), "{refused}");
}

#[test]
fn a_volume_is_reachable_from_its_place_or_where_places_are_ignored_from_what_is_preferred() {
    let segments = |zone: &str| Segments::from([("zone".to_owned(), zone.to_owned())]);
    let asked = TopologyRequirement {
        requisite: vec![segments("a"), segments("b"), segments("c")],
        preferred: vec![segments("b"), segments("a")],
    };
    let placed = Volume {
        place: Some(Arc::new(Topology::new("zone", "c").unwrap())),
        ..volume(Phase::Ready)
    };
    let unplaced = volume(Phase::Ready);
    for (reaches_preferred, volume, asked, reach) in [
        (false, &placed, Some(&asked), vec![segments("c")]),
        (false, &placed, None, vec![segments("c")]),
        (false, &unplaced, Some(&asked), vec![]),
        (true, &unplaced, Some(&asked), asked.preferred.clone()),
        (true, &unplaced, None, vec![]),
    ] {
        let stub = Stub {
            reaches_preferred,
            ..Stub::default()
        };
        let operations = Operations::new(Arc::new(stub), rules());
        assert_eq!(operations.reach(volume, asked), reach);
    }
}

#[tokio::test]
async fn a_snapshot_has_the_topology_of_its_volume_and_is_refused_elsewhere() {
    let node = |name: &str| Topology::new("node", name).unwrap();
    let operations = on(Volume {
        place: Some(Arc::new(node("a"))),
        ..volume(Phase::Ready)
    });
    let asked = |names: &[&str]| CreateSnapshot {
        topology: Some(TopologyRequirement {
            requisite: names.iter().map(|name| node(name).segments()).collect(),
            preferred: vec![node("b").segments()],
        }),
        ..cut("snapshot-1")
    };
    let cloud = operations.cloud(&Secrets::default()).unwrap();
    for request in [cut("snapshot-1"), asked(&[]), asked(&["b", "a"])] {
        let topology = operations.snapshot_topology(cloud, &request).await;
        assert_eq!(topology.unwrap().as_deref(), Some(&node("a")));
    }
    let refused = operations.cut(asked(&["b", "c"])).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Quota);
    let why = "accessibility_requirements.requisite: the snapshot can only be restored on the node";
    assert!(refused.message.starts_with(why), "{refused}");
}
