//! An agent's knowledge of mounts that an earlier one has made.

use belay_server::request::AccessMode;

use super::bench::{Form, Verb, World};
use super::simulated::Simulated;
use crate::operation::{Published, Thread};

#[test]
fn nothing_is_opened_on_the_one_thread_for_a_mount_that_was_found_at_the_start() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs] {
        let world = Simulated::new();
        let mut volume = world.volume("vol", form);
        let before = world.start();
        for verb in [Verb::Stage, Verb::Publish(1)] {
            volume.call(&before, verb).unwrap();
        }
        drop(before);
        let node = world.start();
        volume.mode = AccessMode::SingleNodeSingleWriter;
        // Proves the staged mount, but not the first target.
        volume.call(&node, Verb::Stage).unwrap();
        let target = volume.target(2);
        let publish = |thread| volume.publish_at(&node, &target, thread);
        for _ in 0..2 {
            world.machine.never_wait_here(true);
            let on_thread = publish(Thread::Only);
            world.machine.never_wait_here(false);
            if on_thread.is_ok_and(|published| published == Published::WantsPool) {
                publish(Thread::Pool).unwrap_err();
            }
        }
        assert_eq!(world.machine.violations(), Vec::<String>::new(), "{form:?}");
        for verb in [Verb::Unpublish(1), Verb::Unstage] {
            volume.call(&node, verb).unwrap();
        }
        drop(node);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}
