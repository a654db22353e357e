//! Tests calls in which one system call fails: the server refuses the request, or its response is
//! lost.

use super::killed::{fail, fail_look, was_left};
use super::*;
use rustix::io::Errno;

/// Runs the call in a new share for each of its changes. In each share, one change fails with this
/// error. Returns the results.
fn failing_at_each(
    errno: Errno,
    prepare: impl Fn(&Share),
    call: impl Fn(&Share) -> Result<(), Failure>,
    after: impl Fn(&Share),
) -> Vec<Result<(), Failure>> {
    let mut results = Vec::new();
    loop {
        let share = Share::new();
        prepare(&share);
        fail(results.len(), errno);
        let result = call(&share);
        if was_left() {
            result.unwrap();
            return results;
        }
        results.push(result);
        call(&share).unwrap();
        after(&share);
    }
}

/// Creates a volume with files.
fn volume_with_files(share: &Share, on_delete: OnDelete) {
    let order = NewVolume {
        on_delete,
        ..volume("ns/data", "pvc-1")
    };
    share.create(&order).unwrap();
    share.write("ns/data/a/file");
}

#[test]
fn no_change_that_the_server_does_not_confirm_counts_as_made() {
    let order = volume("ns/data", "pvc-1");
    for errno in [Errno::IO, Errno::STALE] {
        let created = failing_at_each(
            errno,
            |_| {},
            |share| share.create(&order).map(drop),
            |share| assert_eq!(share.lookup(&order.at).map(|it| it.bytes), Some(7)),
        );
        let deleted = failing_at_each(
            errno,
            |share| volume_with_files(share, OnDelete::Delete),
            |share| share.delete(&old(&order, OnDelete::Delete)),
            |share| {
                assert_eq!(names(&share.path("")), [".belay"]);
                // An empty claim directory may be left, until the path is claimed again.
                share.create(&order).unwrap();
                share.delete(&old(&order, OnDelete::Delete)).unwrap();
                share.assert_clean();
            },
        );
        let archived = failing_at_each(
            errno,
            |share| volume_with_files(share, OnDelete::Archive),
            |share| share.delete(&old(&order, OnDelete::Archive)),
            |share| {
                assert_eq!(names(&share.path("archived-ns/data")), ["a"]);
                // A claim that was not published remains in `.belay/tmp` until the archive's claim
                // is removed.
                assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
            },
        );
        for results in [created, deleted, archived] {
            assert!(results.len() > 4, "{}", results.len());
            for (at, result) in results.into_iter().enumerate() {
                let failure = match result {
                    // A parent directory that another call has removed is created again.
                    Ok(()) if errno == Errno::STALE => continue,
                    Ok(()) => panic!("change {at} counts as made"),
                    Err(failure) => failure,
                };
                assert_eq!(failure.kind, Kind::Unreachable, "{at}: {failure}");
            }
        }
    }
}

/// If the server refuses to remove a parent directory, the deletion of the volume still succeeds.
#[test]
fn a_deleted_volume_is_not_kept_for_a_directory_above_it_that_cannot_be_removed() {
    let order = volume("ns/data", "pvc-1");
    let results = failing_at_each(
        Errno::ACCESS,
        |share| volume_with_files(share, OnDelete::Delete),
        |share| share.delete(&old(&order, OnDelete::Delete)),
        |share| assert!(!share.path("ns/data").exists()),
    );
    let done: Vec<_> = results.iter().filter(|result| result.is_ok()).collect();
    assert_eq!(done.len(), 1, "{results:?}");
    for failure in results.into_iter().filter_map(Result::err) {
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    }
}

/// Runs the call in a new share for each of its lookups. In each share, one lookup fails.
fn failing_at_each_look(
    prepare: impl Fn(&Share),
    call: impl Fn(&Share) -> Result<(), Failure>,
    after: impl Fn(&Share),
) {
    for at in 0.. {
        let share = Share::new();
        prepare(&share);
        fail_look(at, Errno::IO);
        let result = call(&share);
        if was_left() {
            assert!(at > 5, "{at}");
            return result.unwrap();
        }
        let failure = result.expect_err("a look that failed has shown nothing");
        assert_eq!(failure.kind, Kind::Unreachable, "{at}: {failure}");
        assert!(failure.message.contains("EIO"), "{at}: {failure}");
        call(&share).unwrap();
        after(&share);
    }
}

#[test]
fn what_the_server_does_not_say_is_not_taken_for_missing() {
    let order = adopting(volume("ns/data", "pvc-1"));
    failing_at_each_look(
        |_| {},
        |share| share.create(&order).map(drop),
        |share| assert!(share.lookup(&order.at).is_some()),
    );
    // A killed call has left this file.
    let written = format!("{}.0123456789abcdef", file_name(&order.at.dir));
    for policy in [OnDelete::Delete, OnDelete::Archive, OnDelete::Retain] {
        for is_claimed in [true, false] {
            let deletion = OldVolume {
                on_delete: Some(policy),
                ..old(&order, policy)
            };
            failing_at_each_look(
                |share| {
                    if is_claimed {
                        share.create(&order).unwrap();
                        share.write(&format!(".belay/tmp/{written}/claim"));
                    }
                    share.write("ns/data/a/file");
                },
                |share| share.delete(&deletion),
                |share| {
                    let left = ["ns/data/a/file", "archived-ns/data/a/file"];
                    let left = left.map(|file| share.path(file).exists());
                    let expected = match policy {
                        OnDelete::Delete => [false, false],
                        OnDelete::Archive => [false, true],
                        OnDelete::Retain => [true, false],
                    };
                    assert_eq!(left, expected, "{policy}");
                    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
                },
            );
        }
    }
}
