//! A backend in which one verb fails with a given failure, and all others succeed.

use crate::cloud::{GIB, blank};
use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::{Content, Transport};
use belay_controller::backend::{
    Answer, AttachOrder, Attachment, Attachments, Backend, Capacity, Clones, Expansion, Health,
    Mark, Modification, Order, Page, Parameter, Phase, Planned, Progress, Sizes, Snapshot,
    SnapshotOrder, SnapshotPage, Snapshots, Traits, UnhealthyPage, Volume,
};
use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::{ContentSource, Context, Name, NodeId, Secrets, SnapshotId, VolumeId};
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

/// A backend in which one verb fails.
#[derive(Default)]
pub(crate) struct Refusing(Mutex<Option<(&'static str, Failure)>>);

const SIZES: Sizes = Sizes {
    step: 1,
    min: 1,
    max: 1024 * GIB,
};

impl Refusing {
    /// Makes a verb fail from now on.
    pub(crate) fn refuse(&self, verb: &'static str, failure: &Failure) {
        *self.0.lock().unwrap() = Some((verb, failure.clone()));
    }

    fn answer<T: Send + 'static>(&self, verb: &str, good: T) -> Answer<'_, T> {
        let refused = self.0.lock().unwrap().clone();
        let refused = refused.filter(|(refused, _)| *refused == verb);
        let answer = refused.map_or(Ok(good), |(_, failure)| Err(failure));
        Box::pin(async { answer })
    }
}

/// Returns a volume whose type is shown, and may have another name.
fn volume() -> Volume {
    Volume {
        parameters: vec![("type", "silver".to_owned())],
        ..blank(VolumeId::new("vol-1").unwrap())
    }
}

fn volume_from(source: ContentSource) -> Volume {
    Volume {
        source: Some(source),
        ..volume()
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        id: SnapshotId::new("snap-1").unwrap(),
        name: None,
        phase: Phase::Ready,
        mark: Mark::None,
        source: VolumeId::new("vol-1").unwrap(),
        bytes: GIB,
        created: UNIX_EPOCH,
        ready: true,
        damage: None,
    }
}

impl Backend for Refusing {
    fn traits(&self) -> Traits {
        Traits {
            attaches_one_by_one: true,
            ..Traits::default()
        }
    }

    fn parameters(&self) -> &'static [&'static str] {
        &["type"]
    }

    fn sizes(&self, _: &Context) -> Result<Sizes, Failure> {
        Ok(SIZES)
    }

    fn create(&self, _: Arc<Order>) -> Answer<'_, Volume> {
        self.answer("create", volume())
    }

    fn delete(&self, _: VolumeId, _: Secrets) -> Answer<'_, Progress<()>> {
        self.answer("delete", Progress::Done(()))
    }

    fn find(&self, _: Name, _: Secrets) -> Answer<'_, Vec<Volume>> {
        self.answer("find", Vec::new())
    }

    fn get(&self, _: VolumeId, _: Secrets) -> Answer<'_, Option<Volume>> {
        self.answer("get", Some(volume()))
    }

    fn list(&self, _: Option<String>, _: usize, _: Secrets) -> Answer<'_, Page> {
        let volumes = vec![volume()];
        let next = None;
        self.answer("list", Page { volumes, next })
    }

    fn meets(&self, _: Parameter, _: Secrets) -> Answer<'_, bool> {
        self.answer("meets", true)
    }

    fn attachments(&self) -> Option<&dyn Attachments> {
        Some(self)
    }

    fn expansion(&self) -> Option<&dyn Expansion> {
        Some(self)
    }

    fn modification(&self) -> Option<&dyn Modification> {
        Some(self)
    }

    fn capacity(&self) -> Option<&dyn Capacity> {
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

impl Attachments for Refusing {
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        let attachment = Attachment {
            spec: order.spec.clone(),
            transport: Transport::Disk(DiskIdentity::Serial("vol-1".to_owned())),
            bytes: GIB,
            content: Content::New,
            attached_at: None,
            disk_name: None,
        };
        self.answer("attach", Progress::Done(attachment))
    }

    fn detach(&self, _: VolumeId, _: NodeId, _: Secrets) -> Answer<'_, Progress<()>> {
        self.answer("detach", Progress::Done(()))
    }

    fn mark_used<'a>(&'a self, _: &'a Volume, _: Secrets) -> Answer<'a, ()> {
        self.answer("mark_used", ())
    }
}

impl Expansion for Refusing {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        SIZES
    }

    fn resize(&self, _: VolumeId, bytes: u64, _: Secrets) -> Answer<'_, Progress<u64>> {
        self.answer("resize", Progress::Done(bytes))
    }
}

impl Modification for Refusing {
    fn mutable_parameters(&self) -> &'static [&'static str] {
        &["type"]
    }

    fn modify(&self, _: VolumeId, _: Context, _: Secrets) -> Answer<'_, Progress<()>> {
        self.answer("modify", Progress::Begun)
    }

    fn verify(&self, _: VolumeId, _: Context, _: Secrets) -> Answer<'_, ()> {
        self.answer("verify", ())
    }
}

impl Capacity for Refusing {
    fn available_bytes(&self, _: Planned) -> Answer<'_, u64> {
        self.answer("available_bytes", GIB)
    }
}

impl Snapshots for Refusing {
    fn cut(&self, _: SnapshotOrder) -> Answer<'_, Snapshot> {
        self.answer("cut", snapshot())
    }

    fn drop_basis(&self, _: SnapshotOrder) -> Answer<'_, ()> {
        self.answer("drop_basis", ())
    }

    fn discard(&self, _: SnapshotId, _: Secrets) -> Answer<'_, Progress<()>> {
        self.answer("discard", Progress::Done(()))
    }

    fn snapshot(&self, _: SnapshotId, _: Secrets) -> Answer<'_, Option<Snapshot>> {
        self.answer("snapshot", Some(snapshot()))
    }

    fn list_snapshots(
        &self,
        _: Option<VolumeId>,
        _: Option<String>,
        _: usize,
        _: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        let snapshots = vec![snapshot()];
        let next = None;
        self.answer("list_snapshots", SnapshotPage { snapshots, next })
    }

    fn restore(&self, _: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        self.answer("restore", volume_from(ContentSource::Snapshot(from)))
    }
}

impl Clones for Refusing {
    fn clone_volume(&self, _: Arc<Order>, from: VolumeId) -> Answer<'_, Volume> {
        self.answer("clone_volume", volume_from(ContentSource::Volume(from)))
    }
}

impl Health for Refusing {
    fn health(&self, _: VolumeId, _: Secrets) -> Answer<'_, Option<Conditions>> {
        self.answer("health", Some(Conditions::default()))
    }

    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>> {
        self.answer("conditions", vec![Conditions::default(); volumes.len()])
    }

    fn list_unhealthy(&self, _: Option<String>, _: usize, _: Secrets) -> Answer<'_, UnhealthyPage> {
        self.answer("list_unhealthy", UnhealthyPage::default())
    }
}
