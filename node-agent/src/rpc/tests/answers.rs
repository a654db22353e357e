//! Tests of the errors of failed calls, and of calls that a kubelet never makes.

use std::sync::Arc;

use belay_contract::drivers::LOCAL;
use belay_contract::drivers::local::CLAIM;
use belay_proto::csi::v1 as csi;
use csi::node_server::Node as _;
use csi::node_service_capability::Type;
use csi::node_service_capability::rpc::Type as Rpc;
use tonic::{Code, Request};

use super::calls::send;
use crate::kernel::fake::{Fake, Fault};
use crate::kernel::{Kernel as _, Open};
use crate::operation::tests::bench::{Form, Verb, Volume, World};
use crate::operation::tests::simulated::Simulated;
use crate::rpc::NodeService;
use crate::work::Pool;

fn up() -> (Simulated, Arc<NodeService<Fake>>) {
    let world = Simulated::new();
    // Enable quotas, so that statistics run on the pool.
    world.machine.keep_quotas();
    let service = Arc::new(NodeService::new("", Pool::new(), &LOCAL));
    service.come_up(world.start());
    (world, service)
}

async fn published(world: &Simulated, service: &NodeService<Fake>, form: Form) -> Volume {
    let volume = world.volume("vol", form);
    for verb in [Verb::Stage, Verb::Publish(1)] {
        send(service, &volume, verb).await.unwrap();
    }
    volume
}

/// A failed read-only call is not treated as a hung call, and does not affect the next call.
#[tokio::test]
async fn a_read_that_fails_returns_its_error_and_no_health_reason() {
    let (world, service) = up();
    let volume = published(&world, &service, Form::Ext4).await;
    for verb in [Verb::Health, Verb::Stats] {
        world.machine.begin(Some(Fault::FailFrom(1, "EPERM")));
        let status = send(&service, &volume, verb).await.unwrap_err();
        world.machine.end();
        assert_eq!(status.code(), Code::Internal, "{verb:?}: {status}");
        assert!(status.message().contains("EPERM"), "{verb:?}: {status}");
        send(&service, &volume, verb).await.unwrap();
    }
    let storage = || service.node_get_storage_health(Request::new(Default::default()));
    world.machine.begin(Some(Fault::FailFrom(1, "EPERM")));
    let status = storage().await.unwrap_err();
    world.machine.end();
    assert!(status.message().contains("EPERM"), "{status}");
    let health = storage().await.unwrap().into_inner();
    assert_eq!(health.backend_health, []);
}

#[tokio::test]
async fn a_driver_that_is_not_up_says_why_it_is_not() {
    let world = Simulated::new();
    let service = NodeService::new("it has just started", Pool::new(), &LOCAL);
    let volume = world.volume("vol", Form::Ext4);
    for why in ["it has just started", "its directory does not exist"] {
        let status = send(&service, &volume, Verb::Stage).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains(why), "{status}");
        service.fails("its directory does not exist");
    }
    service.come_up(world.start());
    send(&service, &volume, Verb::Stage).await.unwrap();
}

#[tokio::test]
async fn the_capabilities_are_those_of_the_agent_and_of_the_driver() {
    let (_, service) = up();
    let request = Request::new(csi::NodeGetCapabilitiesRequest {});
    let answer = service.node_get_capabilities(request).await.unwrap();
    let kinds = answer.into_inner().capabilities.into_iter();
    let kinds: Vec<Rpc> = kinds
        .filter_map(|capability| match capability.r#type {
            Some(Type::Rpc(rpc)) => Rpc::try_from(rpc.r#type).ok(),
            None => None,
        })
        .collect();
    let expected = [
        Rpc::StageUnstageVolume,
        Rpc::GetVolumeStats,
        Rpc::ExpandVolume,
        Rpc::SingleNodeMultiWriter,
        Rpc::GetVolumeHealth,
        Rpc::GetStorageHealth,
        Rpc::VolumeCondition,
    ];
    assert_eq!(kinds, expected);
}

fn want_detached(world: &Simulated, volume: &Volume) {
    let kernel = world.kernel();
    let file = kernel.open(&volume.file(), Open::FileWrite).unwrap();
    kernel.set_xattr(&file, CLAIM, b"delete").unwrap();
}

#[tokio::test]
async fn a_volume_is_released_only_once_its_detach_is_pending() {
    let (world, service) = up();
    let mut volume = world.volume("vol", Form::Ext4);
    let staging = world
        .base()
        .join("plugins/kubernetes.io/csi/local.csi.belay.dev/hash/globalmount");
    world.make_dir(&staging);
    volume.staged_at = Some(staging.clone());
    send(&service, &volume, Verb::Stage).await.unwrap();
    let id = volume.volume_id();
    let is_staged = || world.kernel().look(&staging).unwrap().unwrap().mount_root;
    assert_eq!(service.is_wanted(&id).await, Ok(false));
    service.release(id.clone()).await.unwrap();
    assert!(is_staged());
    want_detached(&world, &volume);
    assert_eq!(service.is_wanted(&id).await, Ok(true));
    service.release(id).await.unwrap();
    assert!(!is_staged());
    assert!(world.kernel().loop_bound().unwrap().is_empty());
}

#[tokio::test]
async fn a_device_that_a_killed_agent_left_is_freed_and_no_other() {
    let world = Simulated::new();
    let volume = world.volume("vol", Form::Block);
    volume.call(&world.start(), Verb::Stage).unwrap();
    let [number] = world.kernel().loop_bound().unwrap()[..] else {
        panic!("one device is bound");
    };
    let service = Arc::new(NodeService::new("", Pool::new(), &LOCAL));
    service.come_up(world.start());
    let free = || service.free_remnant(0, number, volume.volume_id());
    assert_eq!(free().await, Ok(false), "it is staged");
    let device = volume.staging().join("device");
    world.kernel().umount(&device).unwrap();
    assert_eq!(free().await, Ok(true));
    assert!(world.kernel().loop_bound().unwrap().is_empty());
}
