//! Tests of the health and space of the storage behind all volumes: its directory and its
//! filesystem.

use belay_contract::drivers::local::CLAIM;
use belay_server::call::Failure;
use belay_server::facts::Space;
use belay_server::health::StorageSeverity::{self, Degraded, Unreachable};

use super::bench::{Form, Verb, Volume, World, run};
use super::covered::want_unstaged;
use super::simulated::{Media, Simulated};
use crate::kernel::fake::{Call, Fake, Fault, Trouble};
use crate::kernel::{Kernel, Open};
use crate::operation::{self, Node, StorageCondition, release};
use crate::work::Operation;

const GIB: u64 = 1 << 30;
const UNREADABLE: (StorageSeverity, &str) = (Unreachable, "StorageUnreadable");
const READ_ONLY: (StorageSeverity, &str) = (Degraded, "StorageReadOnly");
const REPLACED: (StorageSeverity, &str) = (Unreachable, "StorageReplaced");

fn health(node: &Node<Fake>) -> Result<Vec<StorageCondition>, Failure> {
    run(node, Operation::StorageHealth, |cx| {
        operation::storage_health(cx, 0)
    })
}

fn reasons(node: &Node<Fake>) -> Vec<(StorageSeverity, &'static str)> {
    let all = health(node).unwrap().into_iter();
    all.map(|condition| (condition.reason.severity(), condition.reason.name()))
        .collect()
}

fn message(node: &Node<Fake>) -> String {
    let [condition] = health(node).unwrap().try_into().unwrap();
    condition.message
}

#[test]
fn storage_is_healthy_while_a_twentieth_of_it_is_free() {
    let world = Simulated::new();
    let node = world.start();
    assert_eq!(reasons(&node), []);
    world.machine.fill_storage(100 * GIB, 95 * GIB);
    assert_eq!(reasons(&node), []);
    world.machine.fill_storage(100 * GIB, 95 * GIB + 1);
    assert_eq!(reasons(&node), [(Degraded, "StorageNearlyFull")]);
    assert!(message(&node).starts_with("/base/volumes has "));
}

#[test]
fn storage_whose_directory_does_not_exist_is_missing_and_one_in_its_place_is_another() {
    let world = Simulated::new();
    let node = world.start();
    world.machine.cover(world.base());
    assert_eq!(reasons(&node), [(Unreachable, "StorageMissing")]);
    assert!(message(&node).starts_with("/base/volumes does not exist"));
    world.make_dir(&world.volumes());
    assert_eq!(reasons(&node), [REPLACED]);
    assert_eq!(reasons(&world.start()), []);
}

#[test]
fn storage_that_was_mounted_over_is_another_until_that_is_unmounted() {
    let world = Simulated::new();
    let node = world.start();
    world.machine.cover(&world.volumes());
    assert_eq!(reasons(&node), [REPLACED]);
    world.machine.uncover(&world.volumes());
    assert_eq!(reasons(&node), []);
}

#[test]
fn a_filesystem_of_the_storage_that_stopped_is_a_health_reason_with_and_without_statmount() {
    for numbers_mounts in [true, false] {
        for (trouble, expected) in [
            (Trouble::ReadOnly, READ_ONLY),
            (Trouble::ShutDown, UNREADABLE),
        ] {
            let world = Simulated::new();
            world.machine.cover(&world.volumes());
            let node = world.start();
            if !numbers_mounts {
                world.machine.number_no_mounts();
            }
            assert_eq!(reasons(&node), []);
            world.machine.trouble(&world.volumes(), trouble);
            assert_eq!(reasons(&node), [expected], "{trouble:?} {numbers_mounts}");
            assert!(message(&node).starts_with("the tmpfs of /base/volumes "));
        }
    }
}

#[test]
fn a_disk_that_fails_is_a_health_reason_and_any_other_error_is_returned() {
    let world = Simulated::new();
    let node = world.start();
    let look = |call: &Call| call.name == "statx";
    let first = world.first_call(|| drop(health(&node)), look);
    let last = world.last_call(|| drop(health(&node)), look);
    assert_eq!(last, first + 1, "by its name, and as opened at the start");
    for at in [first, last] {
        world.machine.begin(Some(Fault::Fail(at, "EIO")));
        let found = reasons(&node);
        world.machine.end();
        assert_eq!(found, [UNREADABLE]);
        world.machine.begin(Some(Fault::Fail(at, "EPERM")));
        let failure = health(&node).unwrap_err();
        world.machine.end();
        assert!(failure.message.contains("EPERM"), "{failure}");
    }
}

#[test]
fn disks_have_no_common_storage() {
    let world = Simulated::of(Media::Disks);
    let node = world.start();
    world.machine.fill_storage(GIB, GIB);
    assert_eq!(reasons(&node), []);
    assert!(operation::space(&node, 0).is_err());
}

#[test]
fn the_space_is_that_of_the_directory_that_was_opened_and_of_no_other() {
    let world = Simulated::new();
    let node = world.start();
    world.machine.fill_storage(5 * GIB, 2 * GIB);
    let space = Space {
        free_bytes: 3 * GIB,
        size_bytes: 5 * GIB,
    };
    assert_eq!(operation::space(&node, 0), Ok(Some(space)));
    world.machine.cover(&world.volumes());
    assert_eq!(operation::space(&node, 0), Ok(None));
}

/// Returns a raw volume that the controller is deleting while one of its targets is still mounted.
fn held_back(world: &Simulated, node: &Node<Fake>) -> Volume {
    let volume = world.volume("vol", Form::Block);
    for verb in [Verb::Stage, Verb::Publish(1)] {
        volume.call(node, verb).unwrap();
    }
    want_unstaged(world, &volume);
    let id = volume.volume_id();
    run(node, Operation::Unstage, |cx| release(cx, &id)).unwrap();
    volume
}

#[test]
fn a_detach_that_a_mount_blocks_is_a_health_reason_until_the_mount_is_removed() {
    let world = Simulated::new();
    let node = world.start();
    let volume = held_back(&world, &node);
    for _ in 0..2 {
        assert_eq!(reasons(&node), [(Degraded, "UnstagePending")]);
    }
    let target = volume.target(1).display().to_string();
    let message = message(&node);
    assert!(message.starts_with("volume vol: ") && message.contains(&target));
    // Even a target that is hidden by another mount blocks the deletion.
    let folder = volume.target(1).parent().unwrap().to_owned();
    world.machine.cover(&folder);
    assert_eq!(reasons(&node), [(Degraded, "UnstagePending")]);
    world.machine.uncover(&folder);
    volume.call(&node, Verb::Unpublish(1)).unwrap();
    assert_eq!(reasons(&node), []);
}

#[test]
fn a_detach_that_is_no_longer_pending_is_no_health_reason() {
    let world = Simulated::new();
    let node = world.start();
    let volume = held_back(&world, &node);
    let kernel = world.kernel();
    let file = kernel.open(&volume.file(), Open::FileWrite).unwrap();
    kernel.remove_xattr(&file, CLAIM).unwrap();
    assert_eq!(reasons(&node), []);
    // The volume is reported again only after the agent has tried to release it again.
    want_unstaged(&world, &volume);
    assert_eq!(reasons(&node), []);
}
