//! A fixed sequence of calls, which tests/counted/run.sh runs in callgrind to count instructions
//! and allocations of each operation.

use super::bench::{Form, Verb, World};
use super::simulated::Simulated;

/// Enough lifecycles to hide the constant cost of the first one.
const LIFECYCLES: usize = 8;

#[test]
fn lifecycles_of_one_volume_leave_nothing() {
    let world = Simulated::new();
    let node = world.start();
    let volume = world.volume("vol", Form::Ext4);
    for _ in 0..LIFECYCLES {
        for verb in [
            Verb::Stage,
            Verb::Publish(1),
            Verb::Stats,
            Verb::Unpublish(1),
            Verb::Unstage,
        ] {
            volume.call(&node, verb).unwrap();
        }
    }
    assert_eq!(world.left(), Vec::<String>::new());
}
