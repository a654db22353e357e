//! 64 concurrent callers, many of which disconnect before the response. Some have a separate
//! volume; most share a few. No response may be wrong, no call may hang, no mount may be stacked on
//! another, and nothing may be left at the end.
//!
//! With `BELAY_SEED`, every caller chooses the same calls again; their interleaving depends on the
//! machine.

mod codes;
mod owner;
mod scene;
mod stranger;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use owner::Owner;
use scene::Scene;
use stranger::{Shelf, Stranger};

use crate::rig::{Chance, PATIENCE, Pair};

const CALLERS: usize = 64;
/// The number of callers with a separate volume.
const OWNERS: usize = 24;
const KINDS: [&str; 4] = ["ext4", "xfs", "btrfs", "block"];

/// Returns the minimum duration; `make nightly` runs longer.
fn lasts() -> Duration {
    Duration::from_secs(if std::env::var_os("BELAY_NIGHTLY").is_some() {
        120
    } else {
        10
    })
}

#[test]
#[ignore = "needs root: make test"]
fn a_crowd_of_callers_gets_true_answers_and_leaves_nothing() {
    let pair = Pair::new("xfs");
    let mut chance = Chance::new("a crowd");
    let scene = Arc::new(Scene::new(pair.site().clone(), lasts()));
    let shelf = Arc::new(Shelf::default());
    let (tell, reported) = mpsc::channel();
    let pid = pair.agent().pid();
    let watcher = {
        let scene = Arc::clone(&scene);
        thread::spawn(move || scene.watch(pid))
    };
    for number in 0..CALLERS {
        let (scene, shelf, tell) = (Arc::clone(&scene), Arc::clone(&shelf), tell.clone());
        let chance = chance.fork();
        // The thread is not awaited, since it may hang.
        thread::spawn(move || {
            let calls = || call(&scene, &shelf, number, chance);
            let is_well = catch_unwind(AssertUnwindSafe(calls)).is_ok();
            if !is_well {
                scene.end();
            }
            // The test may have failed, and the receiver may have been dropped.
            tell.send(is_well).unwrap_or_default();
        });
    }
    let mut failed = 0;
    for _ in 0..CALLERS {
        match reported.recv_timeout(lasts() + 3 * PATIENCE) {
            Ok(is_well) => failed += u32::from(!is_well),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => panic!(
                "callers hang; not answered yet:\n{}{}",
                scene.journal.outstanding(),
                pair.last_words()
            ),
        }
    }
    scene.end();
    watcher.join().expect("the watcher");
    if let Some(found) = scene.stacked() {
        panic!("a mount is stacked on another: {found}");
    }
    assert!(
        failed == 0,
        "{failed} callers failed, as reported above\n{}",
        pair.last_words()
    );
    end(pair, &scene, &shelf);
}

/// Runs one caller.
fn call(scene: &Scene, shelf: &Shelf, number: usize, chance: Chance) {
    if number < OWNERS {
        let mut owner = Owner::new(scene, number, KINDS[number % KINDS.len()], chance);
        owner.run();
        owner.leave();
    } else {
        Stranger::new(scene, shelf, number, chance).run();
    }
}

/// Checks for leftovers once all callers have ended.
fn end(pair: Pair, scene: &Scene, shelf: &Shelf) {
    eprintln!("{}", scene.journal.table());
    assert_eq!(scene.missing(), [], "no call has ended so");
    stranger::settle(scene, shelf);
    stranger::bring_up(scene, shelf);
    pair.expect_files_of_ledger("after the crowd");
    let [volumes, snapshots] = pair.ledger();
    stranger::take_down(scene, &volumes, &snapshots);
    assert!(
        scene.look(&pair.agent().pid().to_string()),
        "{:?}",
        scene.stacked()
    );
    pair.end();
}
