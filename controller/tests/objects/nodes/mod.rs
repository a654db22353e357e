//! The backend for all nodes of a cluster. The tests act as the stores of the nodes. The nodes of
//! each test have other names, since all tests use one API server.

pub(crate) mod adoption;
pub(crate) mod binding;
pub(crate) mod copies;
pub(crate) mod creation;
pub(crate) mod gone;
pub(crate) mod growth;
pub(crate) mod health;
pub(crate) mod outages;
pub(crate) mod permission;
pub(crate) mod program;
pub(crate) mod removal;
pub(crate) mod restored;
pub(crate) mod unclaimed;

use crate::definitions::done;
use crate::server::Server;
use belay_bed::requests;
use belay_contract::drivers::LOCAL;
use belay_controller::backend::Backend;
use belay_controller::backend::nodes::{Limits, Nodes};
use belay_controller::kubernetes::{
    Change, Client, DiskSpec, DiskStatus, Event, FINALIZER, LocalDisk, LocalVolume, Object, Phase,
    Resource, Selector, VolumeStatus, Watch,
};
use belay_controller::mark_keys::MarkKeys;
use belay_controller::operation::{Operations, Rules};
use belay_controller::rpc::Service;
use belay_proto::csi::v1 as csi;
use belay_server::call::{Failure, Kind};
use csi::controller_server::Controller as _;
use csi::volume_capability::access_mode::Mode;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::{Request, Status};

/// The name of the driver.
const DRIVER: &str = LOCAL.name;
const MIB: u64 = 1 << 20;
/// The free space of each disk in bytes.
const ROOM: u64 = 100 * MIB;
/// The size of a volume in bytes, unless a test needs another size.
const SMALL: u64 = 10 * MIB;
/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Limits that no test reaches unless a store does not respond.
const LONG: Limits = Limits {
    accept: PATIENCE,
    hold: PATIENCE,
    silent: PATIENCE,
    idle: PATIENCE,
    departed: PATIENCE,
    removal: PATIENCE,
    patience: PATIENCE,
    check: PATIENCE,
    adopt: PATIENCE,
    unclaimed: PATIENCE,
};
/// Limits for a store that does not accept orders.
const SHORT: Limits = Limits {
    accept: Duration::from_millis(300),
    ..LONG
};

/// A controller, and a client with which a test acts as the stores. Dropping the controller kills
/// it, with all its calls.
pub(crate) struct Front {
    service: Arc<Service>,
    client: Arc<Client>,
    /// The runtime of the controller; `None` after the controller was killed.
    runtime: Option<Runtime>,
}

impl Drop for Front {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Front {
    async fn start(server: &Server, limits: Limits) -> Self {
        let backend = Arc::new(Nodes::new(server.client(), DRIVER, limits));
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let started = Arc::clone(&backend);
        let started = runtime.spawn(async move {
            while let Err(failure) = started.inspect().await {
                eprintln!("{failure}");
            }
        });
        timeout(PATIENCE, started).await.unwrap().unwrap();
        let rules = Rules {
            profile: LOCAL,
            disk_name_key: None,
            mark_keys: MarkKeys::default(),
        };
        let service = Service::new(Arc::new(Operations::new(backend, rules)));
        Self {
            service: Arc::new(service),
            client: server.client(),
            runtime: Some(runtime),
        }
    }

    /// Makes a call.
    fn call<T: Send + 'static, F>(
        &self,
        call: impl FnOnce(Arc<Service>) -> F,
    ) -> JoinHandle<Result<T, Status>>
    where
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let call = call(Arc::clone(&self.service));
        self.runtime.as_ref().unwrap().spawn(call)
    }

    fn create(&self, request: csi::CreateVolumeRequest) -> JoinHandle<Result<csi::Volume, Status>> {
        self.call(|service| async move {
            let answer = service.create_volume(Request::new(request)).await?;
            Ok(answer.into_inner().volume.unwrap())
        })
    }

    fn delete(&self, id: &str) -> JoinHandle<Result<(), Status>> {
        let request = Request::new(requests::delete(id));
        self.call(|service| async move { service.delete_volume(request).await.map(drop) })
    }

    fn grow(&self, id: &str, bytes: u64) -> JoinHandle<Result<i64, Status>> {
        let request = Request::new(requests::grow(id, bytes.try_into().unwrap()));
        self.call(|service| async move {
            let answer = service.controller_expand_volume(request).await?;
            Ok(answer.into_inner().capacity_bytes)
        })
    }

    async fn room(&self, place: Option<&str>) -> i64 {
        let request = csi::GetCapacityRequest {
            accessible_topology: place.map(topology),
            ..Default::default()
        };
        let room = self.call(|service| async move {
            let answer = service.get_capacity(Request::new(request)).await?;
            Ok(answer.into_inner().available_capacity)
        });
        room.await.unwrap().unwrap()
    }

    /// Waits until the capacity is this number of bytes.
    async fn room_becomes(&self, place: &str, bytes: u64) {
        let bytes = i64::try_from(bytes).unwrap();
        timeout(PATIENCE, async {
            while self.room(Some(place)).await != bytes {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .unwrap();
    }

    /// Creates a disk with this number of free bytes and reports it. Waits until the controller has
    /// seen it.
    async fn disk(&self, place: &str, bytes: u64) -> Object<LocalDisk> {
        let disk = self.unseen_disk(place, bytes).await;
        self.room_becomes(place, bytes).await;
        disk
    }

    async fn unseen_disk(&self, place: &str, bytes: u64) -> Object<LocalDisk> {
        let node = format!("{place}.example");
        let spec = DiskSpec {
            node: node.clone(),
            place: place.to_owned(),
            disk: "default".to_owned(),
            begin: None,
        };
        let name = format!("{node}.default");
        let disk = done(self.client.create::<LocalDisk>(&name, &spec).await);
        self.report(&disk, bytes, None).await
    }

    async fn report(
        &self,
        disk: &Object<LocalDisk>,
        bytes: u64,
        problem: Option<&str>,
    ) -> Object<LocalDisk> {
        let name = &disk.metadata.name;
        let disk = self.client.get::<LocalDisk>(name).await.unwrap().unwrap();
        let status = DiskStatus {
            promisable: Some(bytes),
            problem: problem.map(str::to_owned),
            reported: Some("2026-11-30T10:00:00Z".to_owned()),
            ..disk_status(&disk)
        };
        let change = Change::<LocalDisk>::Status(&status);
        done(self.client.patch(&disk.metadata, change).await)
    }

    /// Waits until the volume with this name satisfies the condition.
    async fn when(
        &self,
        name: &str,
        is_so: impl Fn(&Object<LocalVolume>) -> bool,
    ) -> Object<LocalVolume> {
        let object = when(&self.client, name, |object| object.is_some_and(&is_so)).await;
        object.unwrap()
    }

    /// Waits until there is no volume with this name.
    async fn gone(&self, name: &str) {
        when::<LocalVolume>(&self.client, name, |object| object.is_none()).await;
    }

    /// Accepts the order for a volume.
    async fn accept(&self, volume: &Object<LocalVolume>) -> Object<LocalVolume> {
        accept(&self.client, volume).await
    }

    /// Waits for the order with this name, and accepts it.
    async fn accepted(&self, name: &str) -> Object<LocalVolume> {
        let order = self.when(name, |_| true).await;
        self.accept(&order).await
    }

    async fn status(
        &self,
        volume: &Object<LocalVolume>,
        status: &VolumeStatus,
    ) -> Object<LocalVolume> {
        let change = Change::<LocalVolume>::Status(status);
        done(self.client.patch(&volume.metadata, change).await)
    }

    /// Creates a volume as its store does, and returns its ID.
    async fn ready(&self, request: csi::CreateVolumeRequest) -> csi::Volume {
        let name = request.name.clone();
        let created = self.create(request);
        let accepted = self.accepted(&name).await;
        self.status(&accepted, &ready(&accepted)).await;
        created.await.unwrap().unwrap()
    }

    /// Deletes a volume as its store does: claims the attempt and removes the finalizer.
    async fn removed(&self, name: &str) {
        let ordered = self.when(name, |volume| removal_of(volume).is_some()).await;
        let claim = VolumeStatus {
            phase: Phase::Removing,
            ..ready(&ordered)
        };
        let claimed = self.status(&ordered, &claim).await;
        self.release(&claimed).await;
    }

    async fn release(&self, volume: &Object<LocalVolume>) {
        let change = Change::<LocalVolume>::Finalizers(&[]);
        done(self.client.patch(&volume.metadata, change).await);
    }
}

/// Accepts an order.
async fn accept<R: Resource>(client: &Client, order: &Object<R>) -> Object<R> {
    let change = Change::<R>::Finalizers(&[FINALIZER]);
    done(client.patch(&order.metadata, change).await)
}

/// Waits until the object with this name, if there is one, satisfies the condition.
async fn when<R: Resource>(
    client: &Arc<Client>,
    name: &str,
    is_so: impl Fn(Option<&Object<R>>) -> bool,
) -> Option<Object<R>> {
    let mut watch = Watch::<R>::new(Arc::clone(client), Selector::all());
    let mut current = None;
    let reached = timeout(PATIENCE, async {
        loop {
            let is_named = |object: &Object<R>| object.metadata.name == name;
            match watch.next().await {
                Ok(Event::Listed(all)) => current = all.into_iter().find(is_named),
                Ok(Event::Changed(object)) if is_named(&object) => current = Some(object),
                Ok(Event::Deleted(object)) if is_named(&object) => current = None,
                Ok(Event::Changed(_) | Event::Deleted(_)) => continue,
                Err(failure) => {
                    eprintln!("{failure}");
                    continue;
                }
            }
            if is_so(current.as_ref()) {
                return;
            }
        }
    });
    assert!(reached.await.is_ok(), "{name}: the state is not reached");
    current
}

fn disk_status(disk: &Object<LocalDisk>) -> DiskStatus {
    let status = disk.status.as_ref();
    status
        .and_then(|it| it.known())
        .cloned()
        .unwrap_or_default()
}

/// Returns the status of a volume that has the requested size.
fn ready(volume: &Object<LocalVolume>) -> VolumeStatus {
    VolumeStatus {
        phase: Phase::Ready,
        observed_generation: Some(volume.metadata.generation),
        bytes: Some(volume.spec.known().unwrap().bytes),
        refused_removal: None,
        failure: None,
        conditions: None,
    }
}

/// Returns the status of a volume that its store has refused, for lack of space.
fn refused(volume: &Object<LocalVolume>) -> VolumeStatus {
    VolumeStatus {
        phase: Phase::Refused,
        bytes: None,
        failure: Some(known(Kind::Quota, "the disk is full")),
        ..ready(volume)
    }
}

fn known(kind: Kind, message: &str) -> belay_controller::kubernetes::Parsed<Failure> {
    belay_controller::kubernetes::Parsed::Known(Failure::new(kind, message))
}

fn id_of(volume: &Object<LocalVolume>) -> &str {
    &volume.spec.known().unwrap().id
}

fn place_of(volume: &Object<LocalVolume>) -> &str {
    &volume.spec.known().unwrap().place
}

fn removal_of(volume: &Object<LocalVolume>) -> Option<u64> {
    volume.spec.known().unwrap().remove
}

fn topology(place: &str) -> csi::Topology {
    csi::Topology {
        segments: HashMap::from([(LOCAL.topology_key.to_owned(), place.to_owned())]),
    }
}

/// Returns a request for a small volume at one of these places, in order of preference.
fn request(name: &str, places: &[&str]) -> csi::CreateVolumeRequest {
    let places: Vec<_> = places.iter().map(|place| topology(place)).collect();
    csi::CreateVolumeRequest {
        capacity_range: requests::range(SMALL.try_into().unwrap(), 0),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: places.clone(),
            preferred: places,
        }),
        ..requests::create(
            name,
            requests::capability("block", Mode::SingleNodeWriter),
            None,
        )
    }
}

/// Returns the code and the message of a refused call.
#[track_caller]
fn refusal<T: std::fmt::Debug>(
    answer: Result<Result<T, Status>, tokio::task::JoinError>,
) -> (tonic::Code, String) {
    let status = answer.unwrap().unwrap_err();
    (status.code(), status.message().to_owned())
}
