//! Tests of a volume's file with a second name (hard link) that another program has created, so
//! that the file may belong to two volumes.

use belay_contract::reason::volume;
use belay_server::call::Kind;

use super::bench::{Form, Verb, World};
use super::simulated::Simulated;

#[test]
fn a_volume_whose_file_has_a_second_name_is_neither_staged_nor_expanded_nor_healthy() {
    for form in [Form::Ext4, Form::Xfs, Form::Btrfs, Form::Block] {
        let world = Simulated::new();
        let node = world.start();
        let vol = world.volume("vol", form);
        let second = world.base().join("second");
        vol.call(&node, Verb::Stage).unwrap();
        vol.call(&node, Verb::Unstage).unwrap();
        world.machine.link_file(&vol.file(), &second);
        let refused = vol.call(&node, Verb::Stage).unwrap_err();
        assert_eq!(refused.kind, Kind::Precondition, "{form:?}: {refused}");
        let begin = format!("{}: has 2 names (hard links)", vol.file().display());
        assert!(refused.message.starts_with(&begin), "{form:?}: {refused}");
        world.machine.delete_file(&second);
        vol.call(&node, Verb::Stage).unwrap();
        vol.call(&node, Verb::Publish(1)).unwrap();
        vol.expand(&node).unwrap();
        assert!(vol.health(&node).unwrap().is_empty(), "{form:?}");
        // If the second name is created while the volume is in use, the volume is reported
        // unhealthy and cannot be expanded, but all other calls succeed.
        world.machine.link_file(&vol.file(), &second);
        vol.call(&node, Verb::Stage).unwrap();
        vol.call(&node, Verb::Publish(2)).unwrap();
        let refused = vol.expand(&node).unwrap_err();
        assert_eq!(refused.kind, Kind::Precondition, "{form:?}: {refused}");
        let stats = vol.condition(&node).unwrap();
        for conditions in [vol.health(&node).unwrap(), stats.conditions] {
            let mut reasons = conditions.iter().map(|it| it.reason);
            assert_eq!(
                reasons.next(),
                Some(volume::BACKING_FILE_FOREIGN),
                "{form:?}"
            );
        }
        for verb in [Verb::Unpublish(1), Verb::Unpublish(2), Verb::Unstage] {
            vol.call(&node, verb).unwrap();
        }
    }
}

/// Two volumes have the same file, and the loop device of the first volume has locked the file.
#[test]
fn a_volume_whose_file_is_that_of_a_staged_one_is_refused_by_its_names_and_not_as_busy() {
    let world = Simulated::new();
    let node = world.start();
    let [one, other] = ["one", "other"].map(|id| world.volume(id, Form::Ext4));
    one.call(&node, Verb::Stage).unwrap();
    world.machine.delete_file(&other.file());
    world.machine.link_file(&one.file(), &other.file());
    let refused = other.call(&node, Verb::Stage).unwrap_err();
    assert_eq!(refused.kind, Kind::Precondition, "{refused}");
    assert!(refused.message.contains("has 2 names"), "{refused}");
    one.call(&node, Verb::Unstage).unwrap();
}
