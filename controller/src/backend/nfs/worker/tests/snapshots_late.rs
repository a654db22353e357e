//! Tests that a killed call's incomplete archive is removed after its volume was deleted.

use super::killed::killed_at_each;
use super::slow::{Step, during};
use super::snapshots::{VOLUME, cutting};
use super::*;
use belay_server::call::Certainty;
use std::cell::Cell;

fn temporary(share: &Share) -> Option<PathBuf> {
    let all = share.path(".belay/snapshots");
    let names = names(&all);
    assert!(names.len() <= 1, "{names:?}");
    names.first().map(|name| all.join(name))
}

/// Kills the creation of a snapshot before each of its changes.
fn killed(after: impl Fn(&Share)) {
    let cut = |share: &Share| share.cut(&cutting()).map(drop);
    killed_at_each(Share::make_source, cut, |share, _| after(share));
}

#[test]
fn what_a_killed_snapshot_has_left_is_removed_when_its_volume_is_gone() {
    let left = Cell::new(0);
    killed(|share| {
        let (was_made, was_left) = (share.find().is_some(), temporary(share).is_some());
        let source = old(&volume("from", "pvc-1"), OnDelete::Delete);
        share.delete(&source).unwrap();
        let again = share.cut(&cutting());
        if was_made {
            again.unwrap();
            return;
        }
        let failure = again.unwrap_err();
        let state = (failure.kind, failure.certainty);
        assert_eq!(state, (Kind::NotFound, Certainty::RolledBack), "{failure}");
        assert_eq!(names(&share.path("")), [".belay"]);
        share.assert_no_temporary();
        left.set(left.get() + usize::from(was_left));
    });
    assert!(left.get() > 3, "{}", left.get());
}

/// The server creates the final name of the archive after the call has not found the archive, and
/// before the call removes the temporary file. The volume is deleted before the call, or while the
/// call archives the volume again.
#[test]
fn an_archive_that_gets_its_name_late_is_the_snapshot_though_its_volume_is_gone() {
    for gone_at in 0..6 {
        let linked = Cell::new(0);
        killed(|share| {
            let is_whole = share.path("cut").exists() && share.find().is_none();
            let Some(whole) = temporary(share).filter(|_| is_whole) else {
                return;
            };
            linked.set(linked.get() + 1);
            let (source, archive) = (share.path("from"), share.archive());
            if gone_at == 0 {
                fs::remove_dir_all(&source).unwrap();
            }
            let mut changes = 0;
            let late = move |step| {
                if step != Step::Change {
                    return;
                }
                if changes == 0 {
                    fs::hard_link(&whole, &archive).unwrap();
                }
                if changes == gone_at && gone_at > 0 {
                    fs::remove_dir_all(&source).unwrap();
                }
                changes += 1;
            };
            let found = during(late, || share.cut(&cutting())).unwrap();
            assert_eq!(found.volume.as_deref(), Some(VOLUME));
            assert_eq!(share.find(), Some(found));
            share.assert_no_temporary();
        });
        assert_eq!(linked.get(), 1);
    }
}
