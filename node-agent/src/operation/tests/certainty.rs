//! The certainty of a failed change: the kubelet may forget a volume after "rolled back", and
//! retries after "may be running".

use belay_server::call::Certainty;

use super::bench::{Form, Verb, Volume, World};
use super::simulated::Simulated;
use crate::kernel::fake::Fault;

/// A volume with everything done that precedes `verb`.
fn before(verb: Verb, form: Form) -> (Simulated, Volume) {
    let world = Simulated::new();
    let volume = world.volume("vol", form);
    if verb != Verb::Stage {
        volume.call(&world.start(), Verb::Stage).unwrap();
    }
    (world, volume)
}

/// The certainty if the mount cannot be attached; and the number of new things that are left.
fn unshown(verb: Verb, form: Form, fault: fn(usize, &'static str) -> Fault) -> (Certainty, usize) {
    let (world, volume) = before(verb, form);
    let node = world.start();
    let act = || volume.call(&node, verb).unwrap();
    let number = world.first_call(act, |call| call.name == "move_mount");

    let (world, volume) = before(verb, form);
    let was = world.left().len();
    let node = world.start();
    world.machine.begin(Some(fault(number, "EPERM")));
    let failure = volume.call(&node, verb).unwrap_err();
    world.machine.end();
    (failure.certainty, world.left().len() - was)
}

#[test]
fn what_could_be_put_back_is_and_what_could_not_is_said() {
    for (verb, form) in [
        (Verb::Stage, Form::Block),
        (Verb::Publish(1), Form::Block),
        (Verb::Publish(1), Form::Ext4),
    ] {
        let put_back = unshown(verb, form, Fault::Fail);
        assert_eq!(put_back, (Certainty::RolledBack, 0), "{verb:?} {form:?}");
        let (certainty, left) = unshown(verb, form, Fault::FailFrom);
        assert_eq!(certainty, Certainty::MayBeRunning, "{verb:?} {form:?}");
        assert_ne!(left, 0, "{verb:?} {form:?}");
    }
    // Its descriptors hold everything, so nothing must be undone.
    for fault in [Fault::Fail, Fault::FailFrom] {
        let gone = unshown(Verb::Stage, Form::Ext4, fault);
        assert_eq!(gone, (Certainty::NothingHappened, 0));
    }
}
