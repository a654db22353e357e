//! The rules after a power loss: everything acknowledged is there, repeated unacknowledged acts
//! succeed, and nothing is left over. Fails with the broken rule.

use std::collections::BTreeSet;

use rustix::fs::getxattr;

use super::user::{Act, Known, User};
use crate::rig::{Chance, Drive, Op, Origin, Outcome, Pair};

/// The extended attributes (xattr(7)) of a volume's file.
const STATE: &str = "trusted.belay.state";
const WANTED_BACK: &str = "user.belay.detach";
const COMPLETE: &str = "user.belay.complete";

/// Checks the state that both programs found at their start, repeats the acts in doubt, and uses
/// all volumes. Returns the updated knowledge.
pub(super) fn judge<D: Drive>(
    pair: &Pair<D>,
    known: &Known,
    doubt: Option<&Act>,
    when: &str,
) -> Known {
    let mut user = User::new(pair.site().clone(), known.clone(), Chance::seeded(1));
    expect_ids(pair, known, doubt);
    pair.expect_files_of_ledger(when);
    expect_sizes(&user, doubt);
    expect_attributes(pair, known, doubt);
    if let Some(act) = doubt {
        repeat(&mut user, act);
    }
    if user.known.volumes.is_empty() {
        use_new_volume(&mut user);
    }
    use_volumes(&mut user, doubt);
    use_snapshots(&mut user);
    user.known
}

/// Deletes all volumes and snapshots.
pub(super) fn leave<D: Drive>(pair: &Pair<D>, known: Known) {
    let mut user = User::new(pair.site().clone(), known, Chance::seeded(1));
    for id in user.known.snapshots.clone().into_keys() {
        user.act(&Act::Discard(id));
    }
    for id in user.known.volumes.clone().into_keys() {
        user.act(&Act::Delete(id));
    }
}

/// Checks that everything known exists, and nothing else.
fn expect_ids<D: Drive>(pair: &Pair<D>, known: &Known, doubt: Option<&Act>) {
    let [volumes, snapshots] = pair.ledger();
    let kept: BTreeSet<_> = known.volumes.keys().cloned().collect();
    let (may_go, may_come) = match doubt {
        Some(Act::Delete(id)) => (Some(id), 0),
        Some(Act::Create(..)) => (None, 1),
        _ => (None, 0),
    };
    expect_set("volumes", &kept, &volumes, may_go, may_come);
    let kept: BTreeSet<_> = known.snapshots.keys().cloned().collect();
    let (may_go, may_come) = match doubt {
        Some(Act::Discard(id)) => (Some(id), 0),
        Some(Act::Cut(..)) => (None, 1),
        _ => (None, 0),
    };
    expect_set("snapshots", &kept, &snapshots, may_go, may_come);
}

fn expect_set(
    what: &str,
    reported: &BTreeSet<String>,
    found: &BTreeSet<String>,
    may_go: Option<&String>,
    may_come: usize,
) {
    let mut lost = reported.difference(found).filter(|id| may_go != Some(*id));
    let come: Vec<_> = found.difference(reported).collect();
    assert!(
        lost.next().is_none(),
        "lost {what}: {reported:?}, now {found:?}"
    );
    assert!(
        come.len() <= may_come,
        "{what} that were never created, or were deleted: {come:?}"
    );
}

fn expect_sizes(user: &User, doubt: Option<&Act>) {
    for (id, held) in &user.known.volumes {
        let wanted = match doubt {
            Some(Act::Grow(growing, bytes)) if growing == id => [held.bytes, *bytes],
            Some(Act::Delete(going)) if going == id => continue,
            _ => [held.bytes; 2],
        };
        let found = user.ask(&Op::Get(id.clone()));
        let Ok(Outcome::Volume(_, bytes)) = found else {
            panic!("volume {id}: {found:?}")
        };
        assert!(
            wanted.contains(&bytes),
            "{bytes} bytes, not {wanted:?}: {id}"
        );
        let file = user.file(id);
        let length = std::fs::metadata(&file).expect("stat").len();
        assert_eq!(
            u64::try_from(bytes),
            Ok(length),
            "size of {}",
            file.display()
        );
    }
}

/// Checks the required attributes of each volume's file.
fn expect_attributes<D: Drive>(pair: &Pair<D>, known: &Known, doubt: Option<&Act>) {
    let directory = pair.site().volumes();
    let has = |id: &str, name: &str| getxattr(directory.join(id), name, &mut [0_u8; 64]).is_ok();
    for (id, held) in &known.volumes {
        if matches!(doubt, Some(Act::Delete(going)) if going == id) {
            continue;
        }
        if held.is_used {
            let mut value = [0_u8; 64];
            let length = getxattr(directory.join(id), STATE, &mut value);
            let is_used = length.is_ok_and(|length| matches!(&value[..length], b"0" | b"1"));
            assert!(is_used, "{id} was staged, and its {STATE} does not say so");
        }
        if held.context.is_some() && !held.is_wanted_back {
            let is_asked = matches!(doubt, Some(Act::DetachTooEarly(asked)) if asked == id);
            let is_there = has(id, WANTED_BACK) && !is_asked;
            assert!(!is_there, "{id} is attached, and has {WANTED_BACK}");
        }
        if held.is_copy {
            assert!(has(id, COMPLETE), "{id} is a copy, and has no {COMPLETE}");
        }
    }
    let directory = pair.site().top.join("state/snapshots");
    for (id, cut) in &known.snapshots {
        let is_going = matches!(doubt, Some(Act::Discard(going)) if going == id);
        if cut.is_ready && !is_going {
            let has = getxattr(directory.join(id), COMPLETE, &mut [0_u8; 64]).is_ok();
            assert!(has, "{id} is ready, and has no {COMPLETE}");
        }
    }
}

/// Repeats an interrupted act. A call to the controller is completed by its repetition. The node's
/// state is lost, and is rebuilt for every volume.
fn repeat(user: &mut User, act: &Act) {
    match act {
        Act::Create(..)
        | Act::Delete(_)
        | Act::Attach(_)
        | Act::Detach(_)
        | Act::Grow(..)
        | Act::Cut(..)
        | Act::Discard(_) => user.act(act),
        _ => {}
    }
}

fn use_new_volume(user: &mut User) {
    user.act(&Act::Create("new".to_owned(), "block", Origin::Blank));
    for id in user.known.volumes.clone().into_keys() {
        user.up(&id);
        user.act(&Act::Write(id.clone()));
        user.down(&id);
    }
}

fn use_volumes(user: &mut User, doubt: Option<&Act>) {
    for id in user.known.volumes.clone().into_keys() {
        user.up(&id);
        let is_written = matches!(doubt, Some(Act::Write(written)) if *written == id);
        if let Some(damage) = user.damage(&id) {
            panic!("{damage}\n{}", user.journal().about(&[&id]));
        }
        if !is_written {
            user.expect_no_more(&id);
        }
        user.down(&id);
    }
}

/// Checks each snapshot by restoring a volume from it. A snapshot that was ready must still be
/// ready at once.
fn use_snapshots(user: &mut User) {
    for (id, cut) in user.known.snapshots.clone() {
        let again = user.ask(&Op::Cut(cut.name.clone(), cut.volume.clone()));
        let is_it = |outcome: &Outcome| match outcome {
            Outcome::Snapshot(found, is_ready) => *found == id && *is_ready >= cut.is_ready,
            _ => false,
        };
        assert!(again.as_ref().is_ok_and(is_it), "{cut:?}: now {again:?}");
        user.act(&Act::Await(cut.name.clone(), cut.volume.clone()));
        let name = format!("check of {}", cut.name);
        let before = user.known.volumes.clone();
        user.act(&Act::Create(name, cut.kind, Origin::Snapshot(id.clone())));
        let mut ids = user.known.volumes.keys();
        let check = ids.find(|id| !before.contains_key(*id));
        let check = check.expect("a new volume").clone();
        user.up(&check);
        if let Some(damage) = user.damage(&check) {
            panic!("snapshot {id}: {damage}");
        }
        user.down(&check);
        user.act(&Act::Delete(check));
    }
}
