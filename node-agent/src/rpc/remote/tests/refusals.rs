//! Tests of paths and calls that are refused, and of error messages, which must contain the
//! volume's ID.

use std::path::Path;

use belay_proto::csi::v1 as csi;
use csi::node_server::Node as _;
use tonic::{Code, Request};

use super::bench::{Agent, Volume, machine, publish_at, target, unpublish_at};
use crate::kernel::Kernel as _;
use crate::kernel::fake::Fault;

#[test]
fn a_path_outside_of_the_kubelets_directory_is_refused() {
    let machine = machine();
    machine.make_dir(Path::new("/elsewhere"));
    let agent = Agent::of_kubelet(&machine, "/pods");
    let volume = Volume::new("a");
    let before = machine.picture();
    for path in ["/elsewhere/1", "/pods/../elsewhere/1", "/pods"] {
        let published = publish_at(&agent, &volume, path).unwrap_err();
        let unpublished = unpublish_at(&agent, &volume, path).unwrap_err();
        for status in [published, unpublished] {
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(status.message().starts_with("target_path: "), "{status}");
        }
    }
    assert_eq!(machine.picture().difference(&before), "");
    assert_eq!(machine.helpers_started(), 0);
    agent.publish(&volume, 1).unwrap();
    agent.unpublish(&volume, 1).unwrap();
}

#[test]
fn the_health_of_a_volume_has_its_id() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    let request = csi::NodeGetVolumeHealthRequest {
        volume_id: volume.id.clone(),
        volume_publish_path: target(1),
        ..Default::default()
    };
    let answer = agent.service.node_get_volume_health(Request::new(request));
    let answer = agent.runtime.block_on(answer).unwrap().into_inner();
    assert_eq!(answer.volume_health.unwrap().volume_id, volume.id);
    agent.settle();
}

/// If the kubelet does not see the mount, the pod would write to the node's own disk.
#[test]
fn a_mount_that_the_kubelet_would_not_see_is_not_made() {
    let machine = machine();
    machine.keep_mounts_here(false);
    let agent = Agent::of_kubelet(&machine, "/pods");
    let status = agent.publish(&Volume::new("a"), 1).unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("Bidirectional"), "{status}");
    assert_eq!(machine.helpers_started(), 0);
}

#[test]
fn usage_is_not_read_outside_of_the_kubelets_directory() {
    let machine = machine();
    machine.make_dir(Path::new("/kubelet"));
    let volume = Volume::new("a");
    Agent::new(&machine).publish(&volume, 1).unwrap();
    let status = Agent::of_kubelet(&machine, "/kubelet").stats(&volume, 1);
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(status.message().starts_with("volume_path: "), "{status}");
}

#[test]
fn a_target_whose_parent_does_not_exist_is_not_made_and_the_caller_is_named() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let status = publish_at(&agent, &Volume::new("a"), "/pods/none/1").unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("the parent of"), "{status}");
}

/// The kubelet or a concurrent call for the same target may remove the target at any time.
#[test]
fn a_target_that_is_removed_meanwhile_was_unpublished() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    machine.make_dir(Path::new(&target(1)));
    machine.begin(None);
    agent.unpublish(&volume, 1).unwrap();
    let calls = machine.end();
    let at = calls.iter().position(|call| call.name == "rmdir").unwrap() + 1;
    machine.make_dir(Path::new(&target(1)));
    machine.begin(Some(Fault::Hang(at)));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            machine.wait_for_hang();
            machine.process().rmdir(Path::new(&target(1))).unwrap();
            machine.let_go();
        });
        agent.unpublish(&volume, 1).unwrap();
    });
    machine.end();
}
