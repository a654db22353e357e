//! Tests of volumes that are mounted with the SELinux label of their pod.

use belay_server::call::Kind;

use super::bench::{Form, Verb, Volume, World};
use super::simulated::Simulated;
use crate::kernel::fake::Holds;

const FORMS: [Form; 3] = [Form::Ext4, Form::Xfs, Form::Btrfs];
/// Mount flags in the kubelet's notation.
const ONE: &[&str] = &[
    "context=\"system_u:object_r:container_file_t:s0:c1,c2\"",
    "noatime",
];
const SAME: &[&str] = &[
    "noatime",
    "context=\"system_u:object_r:container_file_t:s0:c2,c1\"",
];
const OTHER: &[&str] = &[
    "context=\"system_u:object_r:container_file_t:s0:c1,c3\"",
    "noatime",
];
const NONE: &[&str] = &["noatime"];

fn staged(world: &Simulated, form: Form, flags: &'static [&'static str]) -> Volume {
    let mut volume = world.volume("vol", form);
    volume.flags = flags;
    volume.call(&world.start(), Verb::Stage).unwrap();
    volume
}

#[test]
fn a_volume_is_staged_again_only_with_its_label() {
    for is_shown in [true, false] {
        for form in FORMS {
            let world = Simulated::new();
            world.machine.enable_labels(is_shown);
            let mut volume = staged(&world, form, ONE);
            let mut again = |flags| {
                volume.flags = flags;
                volume
                    .call(&world.start(), Verb::Stage)
                    .map_err(|failure| failure.kind)
            };
            assert_eq!(again(ONE), Ok(()), "{form:?}");
            assert_eq!(again(SAME), Ok(()), "{form:?}");
            assert_eq!(again(OTHER), Err(Kind::Incompatible), "{form:?}");
            // Before Linux 6.13, the check that a mount has no label would have to read the mount
            // table, so this check is omitted.
            let unlabelled = if is_shown {
                Err(Kind::Incompatible)
            } else {
                Ok(())
            };
            assert_eq!(again(NONE), unlabelled, "{form:?}");
            let world = Simulated::new();
            world.machine.enable_labels(is_shown);
            let mut volume = staged(&world, form, NONE);
            volume.flags = ONE;
            let refused = volume.call(&world.start(), Verb::Stage).unwrap_err();
            assert_eq!(refused.kind, Kind::Incompatible, "{form:?}: {refused}");
        }
    }
}

#[test]
fn without_selinux_a_label_is_refused_before_anything_is_formatted() {
    for form in FORMS {
        let world = Simulated::new();
        let mut volume = world.volume("vol", form);
        volume.flags = ONE;
        let refused = volume.call(&world.start(), Verb::Stage).unwrap_err();
        assert_eq!(refused.kind, Kind::Invalid, "{refused}");
        for part in ["mount_flags", "SELinux", "seLinuxMount"] {
            assert!(refused.message.contains(part), "{refused}");
        }
        assert!(!refused.message.contains("container_file_t"), "{refused}");
        assert_eq!(world.machine.holds(&volume.file()), Holds::Nothing);
        assert_eq!(world.left(), Vec::<String>::new());
    }
}
