//! Statistics on the event loop: where no call can wait, and nowhere else.

use belay_server::request::Stats;

use super::bench::{Form, Verb, Volume, World};
use super::simulated::Simulated;
use crate::kernel::fake::Fake;
use crate::operation::{self, Node, Read, Thread, run};
use crate::work::{Operation, Progress};

/// The answer on the event loop; a call that may wait is a violation.
fn on_loop(world: &Simulated, node: &Node<Fake>, volume: &Volume) -> Read {
    let request = Stats {
        id: volume.volume_id(),
        volume_path: volume.target(1),
        staging: Some(volume.staging()),
    };
    world.machine.never_wait_here(true);
    let read = run(node, &Progress::default(), Operation::Stats, |cx| {
        operation::stats(cx, &request, Thread::Only)
    });
    world.machine.never_wait_here(false);
    assert_eq!(world.machine.violations(), Vec::<String>::new());
    read.unwrap()
}

fn published(form: Form) -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::new();
    let volume = world.volume("vol", form);
    let node = world.start();
    for verb in [Verb::Stage, Verb::Publish(1)] {
        volume.call(&node, verb).unwrap();
    }
    (world, node, volume)
}

#[test]
fn statistics_are_read_in_place_where_nothing_can_wait() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block] {
        let (world, node, volume) = published(form);
        let read = on_loop(&world, &node, &volume);
        match form {
            Form::Ext4 | Form::Xfs => {
                assert_eq!(read, Read::Done(volume.condition(&node).unwrap()));
                world.machine.keep_quotas();
                assert_eq!(on_loop(&world, &node, &volume), Read::WantsPool);
            }
            _ => assert_eq!(read, Read::WantsPool, "{form:?}"),
        }
    }
}

#[test]
fn statistics_of_a_mount_that_was_not_proven_yet_are_not_read_in_place() {
    let (world, node, volume) = published(Form::Ext4);
    drop(node);
    let node = world.start();
    assert_eq!(on_loop(&world, &node, &volume), Read::WantsPoolNow);
    let stats = volume.condition(&node).unwrap();
    assert_eq!(on_loop(&world, &node, &volume), Read::Done(stats));
}

#[test]
fn a_file_that_was_removed_or_replaced_is_not_judged_in_place() {
    let (world, node, volume) = published(Form::Ext4);
    world.remove_file(&volume.file());
    assert_eq!(on_loop(&world, &node, &volume), Read::WantsPoolNow);
    assert!(!volume.condition(&node).unwrap().complaints.is_empty());
    world.make_file(&volume.file(), super::bench::BYTES);
    assert_eq!(on_loop(&world, &node, &volume), Read::WantsPoolNow);
    assert!(!volume.condition(&node).unwrap().complaints.is_empty());
}
