//! The secrets of each call reach every verb of the backend that serves it, and do not appear in
//! logs.

use crate::{PROFILE, map, mount, on};
use belay_bed::requests;
use belay_contract::disk::DiskIdentity;
use belay_contract::publish_context::{Content, Transport};
use belay_controller::backend::{
    Answer, AttachOrder, Attachment, Attachments, Backend, Claims, Clones, Expansion, Health, Mark,
    Order, Page, Phase, Progress, Sizes, Snapshot, SnapshotOrder, SnapshotPage, Snapshots,
    UnhealthyPage, Volume,
};
use belay_controller::rpc::Service;
use belay_proto::csi::v1 as csi;
use belay_server::call::Failure;
use belay_server::health::Conditions;
use belay_server::request::{ContentSource, Context, Name, NodeId, Secrets, SnapshotId, VolumeId};
use csi::controller_server::Controller as _;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tonic::{Request, Response, Status};

const BYTES: u64 = 1 << 30;

/// A backend with one volume that records the verbs, each with its token. Every change takes a
/// moment, so that the engine reads the volume.
#[derive(Default)]
struct Witness {
    noted: Mutex<Vec<(&'static str, Option<String>)>>,
    volume: Mutex<Option<Volume>>,
    is_discarded: AtomicBool,
}

impl Witness {
    fn with(volume: Option<Volume>) -> Arc<Self> {
        Arc::new(Self {
            volume: Mutex::new(volume),
            ..Self::default()
        })
    }

    fn note(&self, verb: &'static str, secrets: &Secrets) {
        assert!(!format!("{secrets:?}").contains("canary"));
        let token = secrets.get("token").map(str::to_owned);
        self.noted.lock().unwrap().push((verb, token));
    }

    fn answer<T: Send + 'static>(
        &self,
        verb: &'static str,
        secrets: &Secrets,
        answer: T,
    ) -> Answer<'_, T> {
        self.note(verb, secrets);
        Box::pin(async { Ok(answer) })
    }

    fn seen(&self) -> Option<Volume> {
        self.volume.lock().unwrap().clone()
    }

    /// Creates a volume, which is ready at the next read.
    fn make(
        &self,
        verb: &'static str,
        order: &Order,
        of: Option<ContentSource>,
    ) -> Answer<'_, Volume> {
        assert!(!format!("{order:?}").contains("canary"));
        let made = Volume {
            mark: Mark::Open(order.attempt.clone()),
            source: of,
            ..volume()
        };
        *self.volume.lock().unwrap() = Some(made.clone());
        let phase = Phase::Busy("creating".to_owned());
        self.answer(verb, &order.secrets, Volume { phase, ..made })
    }
}

fn volume() -> Volume {
    Volume {
        bytes: BYTES,
        ..crate::cloud::blank(VolumeId::new("vol-1").unwrap())
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        id: SnapshotId::new("snap-1").unwrap(),
        name: None,
        phase: Phase::Ready,
        mark: Mark::None,
        source: volume().id,
        bytes: BYTES,
        created: SystemTime::UNIX_EPOCH,
        ready: true,
        damage: None,
    }
}

impl Backend for Witness {
    fn parameters(&self) -> &'static [&'static str] {
        &[]
    }

    fn sizes(&self, _: &Context) -> Result<Sizes, Failure> {
        let (step, min, max) = (1, BYTES, 4 * BYTES);
        Ok(Sizes { step, min, max })
    }

    fn create(&self, order: Arc<Order>) -> Answer<'_, Volume> {
        self.make("create", &order, None)
    }

    fn delete(&self, _: VolumeId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        *self.volume.lock().unwrap() = None;
        self.answer("delete", &secrets, Progress::Begun)
    }

    fn find(&self, name: Name, secrets: Secrets) -> Answer<'_, Vec<Volume>> {
        let is_new = |volume: &Volume| name.as_str() == "pvc-1" && volume.mark != Mark::None;
        let found = self.seen().into_iter().filter(is_new).collect();
        self.answer("find", &secrets, found)
    }

    fn get(&self, _: VolumeId, secrets: Secrets) -> Answer<'_, Option<Volume>> {
        self.answer("get", &secrets, self.seen())
    }

    fn list(&self, _: Option<String>, _: usize, secrets: Secrets) -> Answer<'_, Page> {
        self.answer("list", &secrets, Page::default())
    }

    fn claims(&self) -> Option<&dyn Claims> {
        Some(self)
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

impl Claims for Witness {
    fn claim(&self, _: VolumeId, secrets: Secrets) -> Answer<'_, ()> {
        if let Some(volume) = &mut *self.volume.lock().unwrap() {
            volume.mark = Mark::Claimed;
        }
        self.answer("claim", &secrets, ())
    }
}

impl Attachments for Witness {
    fn attach(&self, order: Arc<AttachOrder>) -> Answer<'_, Progress<Attachment>> {
        assert!(!format!("{order:?}").contains("canary"));
        let mut volume = self.volume.lock().unwrap();
        let nodes = &mut volume.as_mut().unwrap().nodes;
        if nodes.is_empty() {
            nodes.push(order.node.clone());
            return self.answer("attach", &order.secrets, Progress::Begun);
        }
        let attachment = Attachment {
            spec: order.spec.clone(),
            transport: Transport::Disk(DiskIdentity::Serial("f".to_owned())),
            bytes: BYTES,
            content: Content::New,
            attached_at: None,
            disk_name: None,
        };
        self.answer("attach", &order.secrets, Progress::Done(attachment))
    }

    fn detach(&self, _: VolumeId, _: NodeId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        self.volume.lock().unwrap().as_mut().unwrap().nodes.clear();
        self.answer("detach", &secrets, Progress::Begun)
    }
}

impl Expansion for Witness {
    fn grown_sizes(&self, _: &Volume) -> Sizes {
        let (step, min, max) = (1, BYTES, 4 * BYTES);
        Sizes { step, min, max }
    }

    fn resize(&self, _: VolumeId, bytes: u64, secrets: Secrets) -> Answer<'_, Progress<u64>> {
        self.volume.lock().unwrap().as_mut().unwrap().bytes = bytes;
        self.answer("resize", &secrets, Progress::Begun)
    }
}

impl Snapshots for Witness {
    fn cut(&self, order: SnapshotOrder) -> Answer<'_, Snapshot> {
        assert!(!format!("{order:?}").contains("canary"));
        self.answer("cut", &order.secrets, snapshot())
    }

    fn discard(&self, _: SnapshotId, secrets: Secrets) -> Answer<'_, Progress<()>> {
        self.is_discarded.store(true, Ordering::Relaxed);
        self.answer("discard", &secrets, Progress::Begun)
    }

    fn snapshot(&self, _: SnapshotId, secrets: Secrets) -> Answer<'_, Option<Snapshot>> {
        let is_discarded = self.is_discarded.load(Ordering::Relaxed);
        let snapshot = (!is_discarded).then(snapshot);
        self.answer("snapshot", &secrets, snapshot)
    }

    fn list_snapshots(
        &self,
        _: Option<VolumeId>,
        _: Option<String>,
        _: usize,
        secrets: Secrets,
    ) -> Answer<'_, SnapshotPage> {
        self.answer("list_snapshots", &secrets, SnapshotPage::default())
    }

    fn restore(&self, order: Arc<Order>, from: SnapshotId) -> Answer<'_, Volume> {
        self.make("restore", &order, Some(ContentSource::Snapshot(from)))
    }
}

impl Clones for Witness {
    fn clone_volume(&self, order: Arc<Order>, from: VolumeId) -> Answer<'_, Volume> {
        self.make("clone", &order, Some(ContentSource::Volume(from)))
    }
}

impl Health for Witness {
    fn health(&self, _: VolumeId, secrets: Secrets) -> Answer<'_, Option<Conditions>> {
        self.answer("health", &secrets, Some(Conditions::default()))
    }

    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>> {
        Box::pin(async move { Ok(volumes.iter().map(|_| Conditions::default()).collect()) })
    }

    fn list_unhealthy(
        &self,
        _: Option<String>,
        _: usize,
        secrets: Secrets,
    ) -> Answer<'_, UnhealthyPage> {
        self.answer("list_unhealthy", &secrets, UnhealthyPage::default())
    }
}

fn secrets() -> HashMap<String, String> {
    map("token", "canary")
}

/// Makes a call with secrets, with a backend that has the volume, and checks that it uses these
/// verbs.
async fn expect<T: Debug>(
    verbs: &[&'static str],
    token: Option<&str>,
    volume: Option<Volume>,
    call: impl AsyncFnOnce(&Service) -> Result<Response<T>, Status>,
) {
    let witness = Witness::with(volume);
    let service = on(Arc::clone(&witness), PROFILE);
    let answer = format!("{:?}", call(&service).await.unwrap());
    assert!(!answer.contains("canary"), "{answer}");
    let token = token.map(str::to_owned);
    let expected: Vec<_> = verbs.iter().map(|verb| (*verb, token.clone())).collect();
    assert_eq!(*witness.noted.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn the_secrets_of_a_create_reach_each_verb_that_serves_it() {
    for (source, first) in [
        (None, &["create"][..]),
        (
            Some(requests::of_snapshot("snap-1")),
            &["snapshot", "restore"],
        ),
        (Some(requests::of_volume("vol-1")), &["get", "clone"]),
    ] {
        let request = csi::CreateVolumeRequest {
            secrets: secrets(),
            ..requests::create("pvc-1", mount(), source)
        };
        let verbs = [&["find"], first, &["get", "find", "claim", "find"]].concat();
        expect(&verbs, Some("canary"), Some(volume()), async |service| {
            service.create_volume(Request::new(request)).await
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_secrets_of_a_change_reach_each_verb_that_serves_it() {
    let token = Some("canary");
    let there = || Some(volume());
    let id = || "vol-1".to_owned();
    expect(&["delete", "get"], token, there(), async |service| {
        let mut request = requests::delete("vol-1");
        request.secrets = secrets();
        service.delete_volume(Request::new(request)).await
    })
    .await;
    expect(
        &["attach", "get", "attach"],
        token,
        there(),
        async |service| {
            let mut request = requests::attach("vol-1", "node-1", mount());
            request.secrets = secrets();
            let request = Request::new(request);
            service.controller_publish_volume(request).await
        },
    )
    .await;
    let attached = Volume {
        nodes: vec![NodeId::new("node-1").unwrap()],
        ..volume()
    };
    expect(
        &["get", "detach", "get"],
        token,
        Some(attached),
        async |service| {
            let mut request = requests::detach("vol-1", "");
            request.secrets = secrets();
            let request = Request::new(request);
            service.controller_unpublish_volume(request).await
        },
    )
    .await;
    expect(&["get", "resize", "get"], token, there(), async |service| {
        let mut request = requests::grow("vol-1", 2 << 30);
        request.secrets = secrets();
        let request = Request::new(request);
        service.controller_expand_volume(request).await
    })
    .await;
    expect(&["get", "cut"], token, there(), async |service| {
        let mut request = requests::cut("snap", "vol-1");
        request.secrets = secrets();
        service.create_snapshot(Request::new(request)).await
    })
    .await;
    expect(&["discard", "snapshot"], token, there(), async |service| {
        let mut request = requests::discard("snap-1");
        request.secrets = secrets();
        service.delete_snapshot(Request::new(request)).await
    })
    .await;
    expect(&["get"], token, there(), async |service| {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id(),
            volume_capabilities: vec![mount()],
            secrets: secrets(),
            ..Default::default()
        };
        let request = Request::new(request);
        service.validate_volume_capabilities(request).await
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_secrets_of_a_query_reach_the_verb_and_calls_without_secrets_have_none() {
    let token = Some("canary");
    let there = || Some(volume());
    expect(&["snapshot"], token, there(), async |service| {
        let request = csi::GetSnapshotRequest {
            snapshot_id: "snap-1".to_owned(),
            secrets: secrets(),
        };
        service.get_snapshot(Request::new(request)).await
    })
    .await;
    for (id, verb) in [("", "list_snapshots"), ("snap-1", "snapshot")] {
        expect(&[verb], token, there(), async |service| {
            let request = csi::ListSnapshotsRequest {
                snapshot_id: id.to_owned(),
                secrets: secrets(),
                ..Default::default()
            };
            service.list_snapshots(Request::new(request)).await
        })
        .await;
    }
    expect(&["health"], token, there(), async |service| {
        let request = csi::ControllerGetVolumeHealthRequest {
            volume_id: "vol-1".to_owned(),
            secrets: secrets(),
        };
        let request = Request::new(request);
        service.controller_get_volume_health(request).await
    })
    .await;
    expect(&["list_unhealthy"], token, there(), async |service| {
        let request = csi::ControllerListVolumeHealthRequest {
            secrets: secrets(),
            ..Default::default()
        };
        let request = Request::new(request);
        service.controller_list_volume_health(request).await
    })
    .await;
    expect(&["get"], None, there(), async |service| {
        let request = Request::new(requests::get("vol-1"));
        service.controller_get_volume(request).await
    })
    .await;
    expect(&["list"], None, there(), async |service| {
        let request = Request::new(csi::ListVolumesRequest::default());
        service.list_volumes(request).await
    })
    .await;
}
