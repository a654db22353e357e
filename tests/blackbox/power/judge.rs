//! The rules after a power loss: everything acknowledged is there, repeated unacknowledged acts
//! succeed, and nothing is left over. Fails with the broken rule.

use std::collections::BTreeSet;
use std::path::Path;

use belay_contract::drivers::local::{self, Claim};

use super::user::{Act, Known, User};
use crate::rig::{Chance, Drive, Op, Origin, Outcome, Pair, attribute};

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
    expect_claims(&user, doubt);
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

/// Checks the size of each volume: the reported one, the file's, and the one recorded on the file.
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
        let volume = user.volume(id);
        let bytes = u64::try_from(bytes).expect("a size");
        assert_eq!(bytes, volume.bytes(), "size of {}", volume.file.display());
        expect_recorded(&volume.file, bytes);
    }
}

/// Checks the size that the complete file of a volume or snapshot records.
fn expect_recorded(file: &Path, bytes: u64) {
    let recorded = attribute(file, local::BYTES);
    let recorded = recorded.map(|value| local::parse_bytes(&value));
    let name = local::BYTES;
    assert_eq!(recorded, Some(bytes), "{name} of {}", file.display());
}

/// Checks what the files record of their use: a file that was never used must be formatted, and any
/// other must not.
fn expect_attributes<D: Drive>(pair: &Pair<D>, known: &Known, doubt: Option<&Act>) {
    let volumes = pair.site().volumes();
    for (id, held) in &known.volumes {
        match doubt {
            Some(Act::Delete(going)) if going == id => {}
            Some(Act::Stage(staged)) if staged == id && !held.is_used => {}
            _ => expect_use(&volumes.join(id), held.is_used),
        }
    }
    let snapshots = pair.site().top.join("state/snapshots");
    for (id, cut) in &known.snapshots {
        let is_going = matches!(doubt, Some(Act::Discard(going)) if going == id);
        if cut.is_ready && !is_going {
            let file = snapshots.join(id);
            expect_recorded(&file, std::fs::metadata(&file).expect("stat").len());
            expect_use(&file, cut.is_used);
        }
    }
}

/// Checks what a file records of its use.
fn expect_use(file: &Path, is_used: bool) {
    let value = attribute(file, local::NEW);
    let is_true = match (is_used, value.as_deref()) {
        (true, value) => value.is_none_or(|value| value == local::USE_BEGUN),
        (false, value) => value == Some(local::IS_NEW),
    };
    let (file, name) = (file.display(), local::NEW);
    assert!(is_true, "{file}, used: {is_used}, has {name}: {value:?}");
}

/// Checks that no volume is claimed by a deletion that was not completed, and that the claim on a
/// volume prevents its stage until all snapshots of it are ready.
fn expect_claims(user: &User, doubt: Option<&Act>) {
    let deleting = Some(Claim::Deleting.value().into_bytes());
    for id in user.known.volumes.keys() {
        let volume = user.volume(id);
        let is_claimed = volume.file.exists() && volume.attribute(local::CLAIM) == deleting;
        assert!(!is_claimed, "{id} exists, and is claimed by its deletion");
    }
    for (id, cut) in &user.known.snapshots {
        let is_going = matches!(doubt, Some(Act::Discard(going)) if going == id);
        if cut.is_ready || is_going {
            continue;
        }
        // The copy may be ending now, but an earlier claim cannot come back.
        let claim = user.volume(&cut.volume).attribute(local::CLAIM);
        if claim == Some(Claim::Copy(id.clone()).value().into_bytes()) {
            continue;
        }
        let now = user.ask(&Op::Cut(cut.name.clone(), cut.volume.clone()));
        let is_ready = matches!(now, Ok(Outcome::Snapshot(_, true)));
        assert!(is_ready, "{cut:?}: {now:?}, but the claim is {claim:?}");
    }
}

/// Repeats an interrupted act. A call to the controller is completed by its repetition. The node's
/// state is lost, and is rebuilt for every volume.
fn repeat(user: &mut User, act: &Act) {
    match act {
        Act::Create(..) | Act::Delete(_) | Act::Grow(..) | Act::Cut(..) | Act::Discard(_) => {
            user.act(act)
        }
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
