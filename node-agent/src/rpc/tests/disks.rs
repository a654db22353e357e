//! Tests of NodeStageVolume calls that wait for the volume's disk: how long each call waits, what
//! the wait costs, and which events end it. Also tests the maximum number of volumes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belay_contract::drivers::OPENSTACK;
use belay_proto::csi::v1 as csi;
use belay_server::work::Key;
use csi::node_server::Node as _;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::advance;
use tonic::{Code, Request, Status};

use super::calls::send;
use crate::kernel::fake::{Fake, Plug};
use crate::operation::tests::bench::{Form, Verb, Volume, World, hear};
use crate::operation::tests::simulated::{DISK_DRIVER, Media, Simulated};
use crate::rpc::{NodeIdentity, NodeService};
use crate::work::{Class, Pool};

/// A number of volumes that is higher than the number of slots in the pool.
const MANY: usize = 12;
/// A timeout after which a thread is considered stuck.
const WATCHDOG: Duration = Duration::from_secs(120);

type Service = Arc<NodeService<Fake>>;

fn bench() -> (Simulated, Service) {
    let world = Simulated::of(Media::Disks);
    let service = Arc::new(NodeService::new("", Pool::new(), &OPENSTACK));
    service.come_up(world.start_disks(DISK_DRIVER));
    (world, service)
}

/// Returns a volume whose disk is not attached.
fn without_disk(world: &Simulated, id: &str) -> Volume {
    let volume = world.volume(id, Form::Ext4);
    world.machine.unplug(&volume.file());
    volume
}

/// Starts a NodeStageVolume call, and returns when the call waits for the disk.
async fn waiting(service: &Service, volume: &Volume) -> JoinHandle<Result<(), Status>> {
    let (own, staged) = (Arc::clone(service), volume.clone());
    let stage = tokio::spawn(async move { send(&own, &staged, Verb::Stage).await });
    let since = Instant::now();
    loop {
        let job = service.jobs.view(&Key::new(Class::Change, &volume.id));
        if job.is_some_and(|job| job.awaited == Some("the volume's disk")) {
            return stage;
        }
        assert!(
            since.elapsed() < WATCHDOG && !stage.is_finished(),
            "it does not wait"
        );
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn stages_that_wait_for_disks_hold_no_thread_and_go_on_when_these_come() {
    let (world, service) = bench();
    let mut stages = Vec::new();
    for number in 0..MANY {
        let volume = without_disk(&world, &format!("late-{number}"));
        stages.push((waiting(&service, &volume).await, volume));
    }
    let there = world.volume("there", Form::Ext4);
    hear(&service.node().unwrap()).unwrap();
    send(&service, &there, Verb::Stage).await.unwrap();
    for (stage, volume) in stages {
        let plug = Plug::virtio(&volume.file(), &volume.id);
        world.machine.plug(plug);
        hear(&service.node().unwrap()).unwrap();
        stage.await.unwrap().unwrap();
        send(&service, &volume, Verb::Unstage).await.unwrap();
    }
    send(&service, &there, Verb::Unstage).await.unwrap();
    assert_eq!(world.left(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_while_a_stage_waits() {
    let (world, service) = bench();
    let volume = without_disk(&world, "late");
    let stage = waiting(&service, &volume).await;
    world.machine.begin(None);
    for _ in 0..80 {
        advance(Duration::from_secs(1)).await;
    }
    assert_eq!(world.machine.end(), []);
    assert!(!stage.is_finished());
    stage.abort();
}

#[tokio::test(start_paused = true)]
async fn an_unstage_ends_the_wait_for_a_disk() {
    let (world, service) = bench();
    let volume = without_disk(&world, "late");
    let stage = waiting(&service, &volume).await;
    send(&service, &volume, Verb::Unstage).await.unwrap();
    let ended = stage.await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Aborted, "{ended}");
    // Attach a disk that belongs to a different volume.
    world.machine.plug(Plug::virtio(&volume.file(), "late"));
    hear(&service.node().unwrap()).unwrap();
    assert_eq!(world.left(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_does_not_come_is_named_with_those_that_are_there() {
    let (world, service) = bench();
    world.volume("there", Form::Ext4);
    hear(&service.node().unwrap()).unwrap();
    let volume = without_disk(&world, "late");
    let stage = waiting(&service, &volume).await;
    advance(Duration::from_secs(91)).await;
    let ended = stage.await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable, "{ended}");
    for word in ["\"late\"", "vda (virtio-there)", "90 s"] {
        assert!(ended.message().contains(word), "{ended}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_disk_of_another_volume_wakes_a_stage_and_does_not_end_its_wait() {
    let (world, service) = bench();
    let volume = without_disk(&world, "late");
    let stage = waiting(&service, &volume).await;
    world.volume("other", Form::Ext4);
    hear(&service.node().unwrap()).unwrap();
    let since = Instant::now();
    while service
        .jobs
        .view(&Key::new(Class::Change, "late"))
        .is_some_and(|job| job.awaited.is_none())
    {
        assert!(since.elapsed() < WATCHDOG);
        yield_now().await;
    }
    assert!(!stage.is_finished());
    world.machine.plug(Plug::virtio(&volume.file(), "late"));
    hear(&service.node().unwrap()).unwrap();
    stage.await.unwrap().unwrap();
    send(&service, &volume, Verb::Unstage).await.unwrap();
}

async fn limit(service: &Service) -> i64 {
    let request = Request::new(csi::NodeGetInfoRequest::default());
    let info = service.node_get_info(request).await.unwrap();
    info.into_inner().max_volumes_per_node
}

#[tokio::test]
async fn the_limit_of_volumes_follows_the_disks_and_0_stays_no_limit() {
    let medium = Path::new("/media/root");
    for (volumes_max, with_another) in [(26, 25), (1, 1), (0, 0)] {
        let world = Simulated::of(Media::Disks);
        let service = Arc::new(NodeService::new("", Pool::new(), &OPENSTACK));
        service.identify(NodeIdentity {
            id: "node".to_owned(),
            volumes_max,
            topology: None,
        });
        let without = i64::from(volumes_max);
        assert_eq!(limit(&service).await, without, "not up yet");
        service.come_up(world.start_disks(DISK_DRIVER));
        assert_eq!(limit(&service).await, without);
        world.machine.make_file(medium, 1 << 20);
        world.machine.plug(Plug::virtio(medium, ""));
        hear(&service.node().unwrap()).unwrap();
        assert_eq!(limit(&service).await, with_another);
        world.machine.unplug(medium);
        hear(&service.node().unwrap()).unwrap();
        assert_eq!(limit(&service).await, without);
    }
}
