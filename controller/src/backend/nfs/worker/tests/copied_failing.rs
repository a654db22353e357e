//! Tests copies in each of which one system call fails.

use super::copied::order;
use super::killed::{fail, was_left};
use super::*;
use rustix::io::Errno;

/// Copies the volume in a new share for each change of the copy. In each share, one change fails
/// with this error, and the call is then repeated. Returns the results.
fn failing_at_each(errno: Errno, after: impl Fn(&Share)) -> Vec<Result<ExistingVolume, Failure>> {
    let mut results = Vec::new();
    loop {
        let share = Share::new();
        share.make_source();
        fail(results.len(), errno);
        let result = share.copy(&order());
        if was_left() {
            result.unwrap();
            return results;
        }
        if result.is_err() {
            after(&share);
        }
        results.push(result);
        share.copy(&order()).unwrap();
        share.assert_copied();
    }
}

fn made(results: &[Result<ExistingVolume, Failure>]) -> usize {
    results.iter().filter(|result| result.is_ok()).count()
}

/// Maximum number of failed changes after which a copy still succeeds: the removals of an empty
/// trash.
const UNCONFIRMED_MAX: usize = 2;

#[test]
fn no_change_of_a_copy_that_the_server_does_not_confirm_counts_as_made() {
    let results = failing_at_each(Errno::IO, |_| {});
    assert!(made(&results) <= UNCONFIRMED_MAX, "{results:?}");
    for failure in results.into_iter().filter_map(Result::err) {
        assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
    }
}

#[test]
fn nothing_is_left_of_a_copy_for_which_the_server_has_no_room() {
    let results = failing_at_each(Errno::NOSPC, |share| {
        assert!(!share.path("ns/copy").exists());
        let trash = share.path(".belay/trash");
        for name in names(&trash) {
            assert_eq!(names(&trash.join(name)), [""; 0]);
        }
    });
    assert!(made(&results) <= UNCONFIRMED_MAX, "{results:?}");
    for failure in results.into_iter().filter_map(Result::err) {
        assert_eq!(failure.kind, Kind::Quota, "{failure}");
    }
}

/// The copy creates links to each file in two directories.
#[test]
fn a_file_with_as_many_links_as_the_server_allows_is_copied() {
    let with = |errno| made(&failing_at_each(errno, |_| {}));
    assert_eq!(with(Errno::MLINK), with(Errno::NOSPC) + 3);
}
