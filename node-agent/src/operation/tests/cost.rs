//! A fixed sequence of calls. tests/counted/run.sh runs it in callgrind to count the instructions
//! and allocations of each operation.

use super::bench::{Form, Verb, World};
use super::simulated::Simulated;

/// The number of lifecycles, which is high enough to make the initial cost of the first lifecycle
/// insignificant.
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
