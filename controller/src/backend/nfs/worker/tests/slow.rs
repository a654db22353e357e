//! Stops a call before one of its lookups or changes, as if the worker was slow or the server
//! executed the request late. While the call is stopped, other calls are completed; then the
//! stopped call continues.

use super::*;
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};

struct Pause {
    steps: usize,
    /// The kind of steps that are counted; `None` if all steps are counted.
    only: Option<Step>,
    reached: Sender<()>,
    resumed: Receiver<()>,
}

/// The function that runs before each step.
type Other = Box<dyn FnMut(Step)>;

thread_local! {
    static PAUSE: RefCell<Option<Pause>> = const { RefCell::new(None) };
    static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) };
}

/// A step of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Look,
    Change,
}

/// Runs `other` before each step of the call.
pub(super) fn during<T>(other: impl FnMut(Step) + 'static, call: impl FnOnce() -> T) -> T {
    OTHER.set(Some(Box::new(other)));
    let result = call();
    OTHER.take();
    result
}

/// Called before each change.
pub(super) fn before_change() {
    before(Step::Change);
}

/// Called before each lookup.
pub(super) fn before_look() {
    before(Step::Look);
}

/// Runs before each step. Waits if the test has requested a stop before this step.
fn before(step: Step) {
    // The function may itself make calls whose steps call `before`.
    if let Some(mut other) = OTHER.take() {
        other(step);
        OTHER.set(Some(other));
    }
    match PAUSE.take() {
        Some(pause) if pause.only.is_some_and(|only| step != only) => PAUSE.set(Some(pause)),
        Some(pause) if pause.steps == 0 => {
            pause.reached.send(()).unwrap();
            // Ignore an error: it means that the test has failed, and the call may continue.
            pause.resumed.recv().ok();
        }
        Some(pause) => PAUSE.set(Some(Pause {
            steps: pause.steps - 1,
            ..pause
        })),
        None => {}
    }
}

/// Stops the call before each of its steps in turn, each time in a new share, until the call is
/// complete. Returns the number of steps.
pub(super) fn slow_at_each(
    prepare: impl Fn(&Share),
    call: impl Fn(&Share) -> Result<(), Failure> + Sync,
    meanwhile: impl Fn(&Share),
    after: impl Fn(&Share),
) -> usize {
    slow_at(None, prepare, call, meanwhile, after)
}

/// Stops the call like [`slow_at_each`], but at steps of one kind only.
pub(super) fn slow_at(
    only: Option<Step>,
    prepare: impl Fn(&Share),
    call: impl Fn(&Share) -> Result<(), Failure> + Sync,
    meanwhile: impl Fn(&Share),
    after: impl Fn(&Share),
) -> usize {
    for steps in 0.. {
        let share = Share::new();
        prepare(&share);
        let (reached, is_reached) = channel();
        let (resume, resumed) = channel();
        let pause = Pause {
            steps,
            only,
            reached,
            resumed,
        };
        let stopped = std::thread::scope(|scope| {
            let (share, call) = (&share, &call);
            let slow = scope.spawn(move || {
                PAUSE.set(Some(pause));
                let result = call(share);
                PAUSE.take();
                result
            });
            // The end of the thread drops the sender.
            let stops = is_reached.recv().is_ok();
            if stops {
                meanwhile(share);
            }
            drop(resume);
            match (stops, slow.join().unwrap()) {
                (false, result) => result.unwrap(),
                // The failure must not ask an operator to move a file away.
                (true, Err(failure)) => assert_eq!(failure.kind, Kind::Busy, "{failure}"),
                (true, Ok(())) => {}
            }
            stops
        });
        if !stopped {
            return steps;
        }
        after(&share);
    }
    unreachable!("a call makes a finite number of steps")
}

/// Repeats a deletion, as csi-provisioner does, while the deletion returns `Busy`.
pub(super) fn repeated(share: &Share, order: &OldVolume) -> Result<(), Failure> {
    for _ in 0..4 {
        match share.delete(order) {
            Err(failure) if failure.kind == Kind::Busy => {}
            result => return result,
        }
    }
    share.delete(order)
}

fn deleted(share: &Share, order: &OldVolume) {
    repeated(share, order).unwrap();
}

/// Creates a volume with a file and the policy `archive`.
fn prepare(share: &Share) {
    let (order, _) = archived("pvc-1");
    share.create(&order).unwrap();
    share.write("ns/data/new");
}

/// Moves the archive away, as an operator does.
fn moved_away(share: &Share) {
    assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
    fs::rename(share.path("archived-ns"), share.path("kept")).unwrap();
}

/// Deletes the volume, and creates a later volume in the same directory.
fn replaced(share: &Share, deletion: &OldVolume, later: &NewVolume) {
    deleted(share, deletion);
    share.create(later).unwrap();
    share.write("ns/data/later");
}

/// Asserts that the archive belongs to `pvc-2`, and that the record of the archive contains this
/// name.
fn later_is_archived(share: &Share) {
    assert_eq!(names(&share.path("archived-ns/data")), ["later"]);
    refused(
        share.create(&volume("archived-ns/data", "pvc-3")),
        Kind::Incompatible,
        "is the archive of volume \"pvc-2\"",
    );
}

#[test]
fn an_archive_that_another_controller_has_just_made_is_kept() {
    let (order, deletion) = archived("pvc-1");
    let (later, its_deletion) = archived("pvc-2");
    let steps = slow_at_each(
        prepare,
        |share| share.delete(&deletion),
        |share| deleted(share, &deletion),
        |share| {
            assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
            deleted(share, &deletion);
            assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
            assert!(!share.path("ns/data").exists());
        },
    );
    assert!(steps > 40, "{steps}");
    // A later volume is created in the directory.
    slow_at_each(
        prepare,
        |share| share.delete(&deletion),
        |share| {
            replaced(share, &deletion, &later);
        },
        |share| {
            assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
            assert_eq!(names(&share.path("ns/data")), ["later"]);
            share.delete(&old(&order, OnDelete::Archive)).unwrap();
            assert_eq!(names(&share.path("ns/data")), ["later"]);
        },
    );
    // The later volume is archived, too.
    slow_at_each(
        prepare,
        |share| share.delete(&deletion),
        |share| {
            replaced(share, &deletion, &later);
            moved_away(share);
            deleted(share, &its_deletion);
        },
        |share| {
            later_is_archived(share);
        },
    );
}

/// Kills a call after some changes, and in each further round after more changes, until the call is
/// complete in one round.
fn killed_in_rounds(from: usize, round: impl Fn(&dyn Fn(&dyn Fn() -> Result<(), Failure>))) {
    for changes in (from..).step_by(3) {
        let is_whole = std::cell::Cell::new(true);
        round(&|call| match killed::until(changes, call) {
            Some(done) => done.unwrap(),
            None => is_whole.set(false),
        });
        if is_whole.get() {
            return;
        }
    }
}

/// The second controller is killed while the call is stopped.
#[test]
fn of_two_archives_at_once_one_is_made() {
    let (_, deletion) = archived("pvc-1");
    killed_in_rounds(0, |kill| {
        slow_at_each(
            prepare,
            |share| share.delete(&deletion),
            |share| kill(&|| share.delete(&deletion)),
            |share| {
                deleted(share, &deletion);
                assert_eq!(names(&share.path("archived-ns/data")), ["new"]);
                assert!(!share.path("ns/data").exists());
            },
        );
    });
}

/// While the call is stopped, the next volume in the directory is archived.
#[test]
fn a_slow_archive_does_not_disturb_that_of_a_later_volume() {
    let (_, deletion) = archived("pvc-1");
    let (later, its_deletion) = archived("pvc-2");
    killed_in_rounds(0, |kill| {
        slow_at_each(
            prepare,
            |share| share.delete(&deletion),
            |share| {
                replaced(share, &deletion, &later);
                moved_away(share);
                kill(&|| share.delete(&its_deletion));
            },
            |share| {
                deleted(share, &its_deletion);
                later_is_archived(share);
            },
        );
    });
}

#[test]
fn a_slow_deletion_removes_nothing_that_came_later() {
    let order = volume("ns/data", "pvc-1");
    let deletion = old(&order, OnDelete::Delete);
    for later in [volume("ns/data", "pvc-2"), volume("ns/data", "pvc-1")] {
        // A call that has not yet read the claim may apply to the later volume if the names are
        // equal.
        let is_same = later.at.name == order.at.name;
        let steps = slow_at(
            is_same.then_some(Step::Change),
            |share| {
                share.create(&order).unwrap();
                share.write("ns/data/a/file");
            },
            |share| share.delete(&deletion),
            |share| {
                replaced(share, &deletion, &later);
            },
            |share| {
                assert_eq!(
                    names(&share.path("ns/data")),
                    ["later"],
                    "{}",
                    later.at.name
                );
                assert!(share.lookup(&later.at).is_some());
            },
        );
        assert!(steps > 10, "{steps}");
    }
}

/// A claim is renamed to its final name while another call is removing unused temporary claims.
#[test]
fn a_claim_that_was_just_made_keeps_its_file() {
    let order = volume("ns/data", "pvc-1");
    let dir = &order.at.dir;
    let hash = file_name(dir);
    let written = format!("{hash}.0123456789abcdef");
    let made = std::cell::Cell::new(0);
    slow_at_each(
        |share| {
            share.create(&order).unwrap();
            share.write(&format!(".belay/tmp/{written}/0123456789abcdef.creating"));
        },
        |share| share.delete(&old(&order, OnDelete::Delete)),
        |share| {
            // The rename fails while the directory has a claim, and after the file was removed.
            let to = share.path(".belay/claims").join(&hash);
            if fs::rename(share.path(".belay/tmp").join(&written), to).is_ok() {
                made.set(made.get() + 1);
            }
        },
        |share| {
            let claim = share.path(".belay/claims").join(&hash);
            assert!(!claim.exists() || names(&claim).len() == 1, "{claim:?}");
        },
    );
    assert!(made.get() > 0);
}
