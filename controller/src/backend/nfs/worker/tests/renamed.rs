//! Tests claim files, and requests whose response is lost.

use super::super::claim::{Claim, State};
use super::super::claims::{Occupancy, is_abandoned};
use super::repeated::{claimed, dir, record};
use super::slow::{Step, during};
use super::*;
use rustix::io::Errno;

/// Returns the directory that contains the claim file of a path.
fn path_of(share: &Share, path: &str) -> PathBuf {
    share.path(".belay/claims").join(file_name(&dir(path)))
}

/// The server has already executed the request when the client sends the request again.
#[test]
fn a_claim_that_is_made_or_changed_twice_is_made_or_changed() {
    let share = Share::new();
    let (claims, ready) = claimed(&share, record("a", None), State::Ready);
    let own = path_of(&share, "a");
    let (from, to) = (
        own.join(ready.file()),
        own.join(format!("{}.gone", ready.nonce)),
    );
    let rename = move |step| {
        if step == Step::Change {
            fs::rename(&from, &to).ok();
        }
    };
    let gone = during(rename, || claims.advance(&dir("a"), &ready, State::Gone));
    assert_eq!(gone.unwrap().state, State::Gone);

    for is_made in [true, false] {
        let path = if is_made { "b" } else { "c" };
        let claim = Claim::new(record(path, None), State::Ready).unwrap();
        let written =
            share
                .path(".belay/tmp")
                .join(format!("{}.{}", file_name(&dir(path)), claim.nonce));
        let (own, file) = (path_of(&share, path), claim.file());
        // The last change is the rename.
        let rename = move |step| {
            if step == Step::Change && fs::read(written.join(&file)).is_ok_and(|it| !it.is_empty())
            {
                match is_made {
                    true => fs::rename(&written, &own).unwrap(),
                    false => fs::remove_dir_all(&written).unwrap(),
                }
            }
        };
        let published = during(rename, || claims.publish(&dir(path), &claim));
        assert_eq!(published.unwrap(), is_made);
        assert_eq!(
            claims.read(&dir(path)).unwrap() == Occupancy::By(claim),
            is_made
        );
    }
}

#[test]
fn a_claim_that_is_not_made_leaves_nothing() {
    let share = Share::new();
    let (claims, first) = claimed(&share, record("a", None), State::Ready);
    let second = Claim::new(record("a", None), State::Ready).unwrap();
    assert!(!claims.publish(&dir("a"), &second).unwrap());
    assert_eq!(claims.read(&dir("a")).unwrap(), Occupancy::By(first));
    assert_eq!(names(&share.path(".belay/tmp")), [""; 0]);
}

#[test]
fn a_claim_that_changes_at_each_look_is_busy() {
    let share = Share::new();
    let (claims, ready) = claimed(&share, record("a", None), State::Ready);
    let own = path_of(&share, "a");
    let names = [ready.file(), format!("{}.gone", ready.nonce)].map(|file| own.join(file));
    let rename = move |_| {
        let [one, other] = &names;
        if fs::rename(one, other).is_err() {
            fs::rename(other, one).unwrap();
        }
    };
    let read = during(rename, || claims.read(&dir("a")));
    refused(read, Kind::Busy, "another call changes its volume");
}

#[test]
fn an_empty_directory_of_a_claim_is_no_claim() {
    let share = Share::new();
    let (claims, _) = claimed(&share, record("a", None), State::Ready);
    fs::create_dir(path_of(&share, "b")).unwrap();
    assert_eq!(claims.read(&dir("b")).unwrap(), Occupancy::Free);
    fs::create_dir(path_of(&share, "b").join("below")).unwrap();
    assert_eq!(claims.read(&dir("b")).unwrap(), Occupancy::Above);
}

#[test]
fn a_claim_in_the_place_of_another_is_not_found_there() {
    let share = Share::new();
    let (claims, claim) = claimed(&share, record("a", None), State::Ready);
    let hash = file_name(&dir("a"));
    assert_eq!(claims.by_hash(&hash).unwrap(), Some((dir("a"), claim)));
    fs::rename(path_of(&share, "a"), path_of(&share, "b")).unwrap();
    assert_eq!(claims.by_hash(&file_name(&dir("b"))).unwrap(), None);
    assert_eq!(claims.by_hash(&hash).unwrap(), None);
    let words = format!("\".belay/claims/{}/", file_name(&dir("b")));
    refused(claims.read(&dir("b")), Kind::Precondition, &words);
}

#[test]
fn a_creation_is_abandoned_after_an_hour() {
    for (age, expected) in [(-5, false), (0, false), (3600, false), (3601, true)] {
        assert_eq!(is_abandoned(1000, 1000 + age), expected, "{age}");
    }
    assert!(!is_abandoned(i64::MAX, i64::MIN));
}

/// Creates files that killed calls have written for claims on the same path.
fn prepare(share: &Share) -> (super::super::claims::Claims, Claim) {
    let (claims, claim) = claimed(share, record("a", None), State::Gone);
    let hash = file_name(&dir("a"));
    share.write(&format!(".belay/tmp/{hash}.1/1.creating"));
    share.write(&format!(".belay/tmp/{hash}.2.old/2.creating"));
    share.write(&format!(".belay/tmp/{hash}.3"));
    share.write(".belay/tmp/other.4/4.creating");
    (claims, claim)
}

#[test]
fn what_was_written_for_a_claim_goes_with_it_and_nothing_else() {
    let share = Share::new();
    let (claims, claim) = prepare(&share);
    assert!(claims.remove(&dir("a"), &claim).unwrap());
    assert_eq!(names(&share.path(".belay/tmp")), ["other.4"]);
    assert_eq!(names(&share.path(".belay/tmp/other.4")), ["4.creating"]);
    // Another call removes one of the files at the same time.
    let share = Share::new();
    let (claims, claim) = prepare(&share);
    let (tmp, hash) = (share.path(".belay/tmp"), file_name(&dir("a")));
    let remove = move |step| {
        if step == Step::Change {
            fs::remove_dir_all(tmp.join(format!("{hash}.1"))).ok();
        }
    };
    assert!(during(remove, || claims.remove(&dir("a"), &claim)).unwrap());
    assert_eq!(names(&share.path(".belay/tmp")), ["other.4"]);
}

#[test]
fn what_was_written_for_a_claim_is_not_forgotten_if_the_server_refuses() {
    let mut refusals = 0;
    for at in 0.. {
        let share = Share::new();
        let (claims, claim) = prepare(&share);
        killed::fail(at, Errno::ACCESS);
        let result = claims.remove(&dir("a"), &claim);
        if killed::was_left() {
            break;
        }
        refused(result, Kind::Precondition, "EACCES");
        refusals += 1;
    }
    assert!(refusals > 6, "{refusals}");
}
