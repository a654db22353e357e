//! Tests old claim files, and temporary files from which claim files are created.

use super::super::claim::{Claim, State};
use super::super::claims::{Claims, Occupancy};
use super::repeated::{claimed, dir, record};
use super::slow::{Step, during};
use super::*;
use std::cell::Cell;
use std::rc::Rc;
use std::time::SystemTime;

const CHANGING: &str = "another call changes its volume";

/// Creates a claim on `ns/data` that has not changed for two hours.
fn aged(share: &Share, state: State) -> (Claims, Claim) {
    let made = claimed(share, record("ns/data", None), state);
    let path = claim_of(share, "ns/data");
    let file = fs::File::options().write(true).open(path).unwrap();
    let long_ago = SystemTime::now() - Duration::from_secs(7200);
    file.set_modified(long_ago).unwrap();
    made
}

/// The directory of a complete volume is not removed, even if the directory is empty.
#[test]
fn a_volume_that_exists_keeps_its_directory_however_old_its_claim_is() {
    for state in [
        State::Ready,
        State::Deleting,
        State::Retained,
        State::Archived,
    ] {
        let share = Share::new();
        let (claims, claim) = aged(&share, state);
        fs::create_dir_all(share.path("ns/data")).unwrap();
        let other = share.create(&volume("ns/data", "pvc-2"));
        refused(other, Kind::Incompatible, "volume \"pvc-1\"");
        assert_eq!(claims.read(&dir("ns/data")).unwrap(), Occupancy::By(claim));
    }
}

/// Copying many files may take hours.
#[test]
fn a_creation_that_is_in_progress_for_hours_is_not_abandoned() {
    let share = Share::new();
    let (claims, claim) = aged(&share, State::Creating);
    let path = dir("ns/data");
    assert!(claims.is_abandoned(&path, &claim).unwrap());
    claims.refresh(&path, &claim).unwrap();
    assert!(!claims.is_abandoned(&path, &claim).unwrap());
    // The call that creates the volume detects that the state of its claim has changed.
    claims.advance(&path, &claim, State::Gone).unwrap();
    refused(claims.refresh(&path, &claim), Kind::Busy, CHANGING);
}

/// A killed call has left a file, which another call is removing at the same time.
#[test]
fn what_another_call_removes_at_the_same_time_keeps_no_volume_from_being_deleted() {
    let share = Share::new();
    let order = volume("ns/data", "pvc-1");
    share.create(&order).unwrap();
    let hash = file_name(&order.at.dir);
    let written = format!(".belay/tmp/{hash}.0123456789abcdef");
    share.write(&format!("{written}/0123456789abcdef.creating"));
    let (written, own) = (share.path(&written), share.path(".belay/claims").join(hash));
    let removed = Rc::new(Cell::new(false));
    let remove = {
        let removed = removed.clone();
        move |step| {
            // The next change renames the temporary file.
            if step == Step::Change && !own.exists() && fs::remove_dir_all(&written).is_ok() {
                removed.set(true);
            }
        }
    };
    during(remove, || share.delete(&old(&order, OnDelete::Delete))).unwrap();
    assert!(removed.get());
    share.assert_clean();
}
