//! Tests of statistics and health of a volume that is unpublished and unstaged during any system
//! call.

use belay_server::call::{Failure, Kind};

use super::bench::{Form, Verb, Volume, World};
use super::simulated::Simulated;
use super::suite::all_ok;
use crate::kernel::fake::{Fake, Fault};
use crate::operation::Node;

const BEFORE: [Verb; 2] = [Verb::Stage, Verb::Publish(1)];
const MEANWHILE: [Verb; 2] = [Verb::Unpublish(1), Verb::Unstage];

/// A read-only call, which must succeed or report that the volume is not mounted.
type Read = fn(&Volume, &Node<Fake>) -> Result<(), Failure>;

fn published(form: Form) -> (Simulated, Node<Fake>, Volume) {
    let world = Simulated::new();
    let volume = world.volume("vol", form);
    let node = world.start();
    all_ok(&node, &volume, &BEFORE);
    (world, node, volume)
}

fn calls_of(form: Form, read: Read) -> usize {
    let (world, node, volume) = published(form);
    world.machine.begin(None);
    read(&volume, &node).unwrap();
    world.machine.end().len()
}

/// Runs `read` once for each of its system calls. During each run, that system call hangs while the
/// volume is unpublished and unstaged. Returns the number of runs in which `read` reported that the
/// volume is not mounted.
fn not_found(form: Form, read: Read) -> usize {
    let calls = calls_of(form, read);
    let unmounted = |at: usize| {
        let (world, node, volume) = published(form);
        world.machine.begin(Some(Fault::Hang(at)));
        let answer = std::thread::scope(|scope| {
            let answer = scope.spawn(|| read(&volume, &node));
            world.machine.wait_for_hang();
            for verb in MEANWHILE {
                // An unmount may fail here, because the read-only call may have the mount open. The
                // unmount is repeated below.
                let _busy = volume.call(&node, verb);
            }
            world.machine.let_go();
            answer.join().unwrap()
        });
        world.machine.end();
        all_ok(&node, &volume, &MEANWHILE);
        assert_eq!(world.left(), Vec::<String>::new(), "{form:?}, call {at}");
        match answer {
            Ok(()) => false,
            Err(failure) if failure.kind == Kind::NotFound => true,
            Err(failure) => panic!("{form:?}, call {at} of {calls}: {failure:?}"),
        }
    };
    (1..=calls).filter(|at| unmounted(*at)).count()
}

#[test]
fn a_volume_that_is_unpublished_while_its_statistics_are_read_is_not_found() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block] {
        let found = not_found(form, |volume, node| volume.condition(node).map(drop));
        assert!(found > 0, "{form:?}");
    }
}

#[test]
fn a_volume_that_is_unstaged_while_its_health_is_read_is_healthy() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block] {
        let found = not_found(form, |volume, node| {
            let conditions = volume.health(node)?;
            assert!(conditions.is_empty(), "{conditions:?}");
            Ok(())
        });
        // The file of the volume still exists, so its health can be reported.
        assert_eq!(found, 0, "{form:?}");
    }
}
