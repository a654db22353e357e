//! Tests of when NodeUnpublishVolume detaches a mount (`MNT_DETACH`), and of nested mounts, which
//! are detached together with it.

use std::path::Path;

use tonic::Code;

use super::bench::{Agent, SERVER, Volume, machine, publish_at, target};
use crate::kernel::fake::Fault;

#[test]
fn a_volume_in_use_is_not_unmounted_with_mounts_inside_it_except_of_nfs() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    let published = machine.picture();
    let inside = Path::new("/pods/1/inside");
    machine.make_dir(inside);
    machine.cover(inside);
    let covered = machine.picture();
    let refused = agent.unpublish(&volume, 1).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("/pods/1/inside"), "{refused}");
    assert!(refused.message().contains("in use"), "{refused}");
    assert_eq!(machine.picture().difference(&covered), "");
    machine.uncover(inside);
    assert_eq!(machine.picture().difference(&published), "");
    // A nested NFS mount that the kernel has made automatically is detached together with the
    // volume, even if it shows a different directory of the server.
    machine.mount_nfs(&format!("{SERVER}:/exports/b"), SERVER, inside);
    agent.unpublish(&volume, 1).unwrap();
    assert!(!machine.is_there(Path::new(&target(1))));
}

#[test]
fn a_volume_published_inside_a_volume_in_use_is_not_detached_with_it() {
    let machine = machine();
    let outer = Volume::new("a");
    Agent::new(&machine).publish(&outer, 1).unwrap();
    machine.make_dir(Path::new("/pods/1/inside"));
    // After a restart, the agent does not know that the outer volume was published.
    let agent = Agent::new(&machine);
    publish_at(&agent, &Volume::new("b"), "/pods/1/inside").unwrap();
    let both = machine.picture();
    let refused = agent.unpublish(&outer, 1).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("/pods/1/inside"), "{refused}");
    assert_eq!(machine.picture().difference(&both), "");
}

#[test]
fn an_unmount_that_the_node_cannot_begin_detaches_nothing() {
    let machine = machine();
    let agent = Agent::new(&machine);
    let volume = Volume::new("a");
    agent.publish(&volume, 1).unwrap();
    machine.begin(None);
    agent.unpublish(&volume, 1).unwrap();
    let calls = machine.end();
    let starts = 1 + calls.iter().position(|call| call.name == "exec").unwrap();
    agent.publish(&volume, 1).unwrap();
    let published = machine.picture();
    machine.begin(Some(Fault::Fail(starts, "EAGAIN")));
    let failed = agent.unpublish(&volume, 1).unwrap_err();
    machine.end();
    assert!(failed.message().contains("EAGAIN"), "{failed}");
    assert_eq!(machine.picture().difference(&published), "");
    agent.unpublish(&volume, 1).unwrap();
}
