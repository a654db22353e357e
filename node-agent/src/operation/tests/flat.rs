//! Tests that the number of system calls of a call does not depend on the number of other staged
//! volumes.

use super::bench::{Form, Verb, World};
use super::simulated::Simulated;

const LIFECYCLE: [Verb; 6] = [
    Verb::Stage,
    Verb::Publish(1),
    Verb::Stats,
    Verb::Health,
    Verb::Unpublish(1),
    Verb::Unstage,
];

/// Counts the system calls of each call in a volume's lifecycle while `neighbours` other volumes
/// are in use.
fn costs(form: Form, neighbours: usize) -> Vec<(Verb, usize)> {
    let world = Simulated::new();
    let node = world.start();
    // The first raw volume creates directories that are never removed.
    let first = world.volume("first", form);
    for verb in LIFECYCLE {
        first.call(&node, verb).unwrap();
    }
    for number in 0..neighbours {
        let neighbour = world.volume(&format!("neighbour-{number}"), form);
        for verb in [Verb::Stage, Verb::Publish(1)] {
            neighbour.call(&node, verb).unwrap();
        }
    }
    let volume = world.volume("vol", form);
    let cost = |verb| {
        world.machine.begin(None);
        volume.call(&node, verb).unwrap();
        (verb, world.machine.end().len())
    };
    LIFECYCLE.map(cost).to_vec()
}

#[test]
fn a_call_costs_the_same_with_other_volumes_on_the_node_as_without() {
    for form in [Form::Ext4, Form::Block] {
        assert_eq!(costs(form, 5), costs(form, 0), "{form:?}");
    }
}
