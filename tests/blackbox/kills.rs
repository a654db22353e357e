//! `kill -9` of either program at random instants, during the lifecycles of twenty volumes with
//! snapshots and clones. Every acknowledged change persists, nothing is left over, and every
//! repeated call eventually succeeds.

mod life;
mod trial;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use life::Life;
use trial::{Binary, Trial};

use crate::rig::{Chance, PATIENCE, Pair, mounts_of, stacked};

const LIVES: usize = 20;
const KINDS: [&str; 4] = ["ext4", "xfs", "btrfs", "block"];
/// Maximum time between two kills.
const KILL_WITHIN_MS: u64 = 500;
/// The number of kills between two checks of everything.
const KILLS_A_LOOK: u32 = 5;

/// Returns the number of kills; `make nightly` runs more.
fn kills_wanted() -> u32 {
    if std::env::var_os("BELAY_NIGHTLY").is_some() {
        200
    } else {
        20
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Controller,
    NodeAgent,
    NodeAgentAndMkfs,
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_outlive_kills_of_either_binary() {
    live_and_kill("xfs", kills_wanted());
}

#[test]
#[ignore = "needs root: make test"]
fn volumes_outlive_kills_where_files_share_no_blocks() {
    live_and_kill("ext4", kills_wanted() / 2);
}

/// Runs the test with the state on this filesystem.
fn live_and_kill(filesystem: &str, kills: u32) {
    let mut pair = Pair::new(filesystem);
    let mut chance = Chance::new(&format!("kills of either binary on {filesystem}"));
    let trial = Arc::new(Trial::new(pair.site().clone(), filesystem == "xfs"));
    let lives: Vec<_> = (0..LIVES)
        .map(|number| {
            let kind = KINDS[number % KINDS.len()];
            Arc::new(Mutex::new(Life::new(&trial, number, kind, chance.fork())))
        })
        .collect();
    let (report, reported) = mpsc::channel();
    for life in &lives {
        let (trial, life, report) = (Arc::clone(&trial), Arc::clone(life), report.clone());
        // The thread is not awaited, since it may hang.
        thread::spawn(move || {
            let steps = || live(&trial, &life);
            let is_well = catch_unwind(AssertUnwindSafe(steps)).is_ok();
            if !is_well {
                trial.fail_all();
            }
            // The test may have failed, and the receiver may have been dropped.
            report.send(is_well).unwrap_or_default();
        });
    }
    for kill in 1..=kills {
        let instant = Duration::from_millis(chance.below(KILL_WITHIN_MS));
        // Until then, no lifecycle ends, unless it fails.
        if reported.recv_timeout(instant) != Err(RecvTimeoutError::Timeout) {
            trial.end();
            panic!("a life failed, as reported above\n{}", pair.last_words());
        }
        let victims = [
            Victim::Controller,
            Victim::NodeAgent,
            Victim::NodeAgentAndMkfs,
        ];
        strike(&mut pair, &trial, *chance.pick(&victims));
        if kill % KILLS_A_LOOK == 0 {
            look(&pair, &trial, &lives, kill);
        }
    }
    trial.end();
    wait(&pair, &trial, &reported);
    look(&pair, &trial, &lives, kills);
    eprintln!(
        "{}interrupted: {:?}",
        trial.journal.table(),
        trial.interrupted()
    );
    assert!(!trial.interrupted().is_empty(), "no kill met a call");
    for life in lives {
        life.lock().unwrap_or_else(PoisonError::into_inner).leave();
    }
    pair.end();
}

fn live(trial: &Trial, life: &Mutex<Life>) {
    while !trial.is_over() {
        let _step = trial.step();
        life.lock().unwrap_or_else(PoisonError::into_inner).step();
    }
}

fn strike(pair: &mut Pair, trial: &Trial, victim: Victim) {
    let binary = match victim {
        Victim::Controller => Binary::Controller,
        Victim::NodeAgent | Victim::NodeAgentAndMkfs => Binary::NodeAgent,
    };
    trial.turn(binary);
    match victim {
        Victim::Controller => pair.restart_controller(),
        Victim::NodeAgent => pair.restart_agent(),
        Victim::NodeAgentAndMkfs => {
            pair.agent().kill_children();
            pair.restart_agent();
        }
    }
    trial.turn(binary);
}

/// Compares the responses of all lifecycles with the ledger, the kernel and the disk.
fn look(pair: &Pair, trial: &Trial, lives: &[Arc<Mutex<Life>>], kill: u32) {
    let _still = trial.hold_still();
    let when = format!("after kill {kill}");
    let mut known = [BTreeSet::new(), BTreeSet::new()];
    for life in lives {
        let life = life.lock().unwrap_or_else(PoisonError::into_inner);
        if trial.has_failed() {
            panic!("a life failed, as reported above\n{}", pair.last_words());
        }
        life.check();
        let [volumes, snapshots] = life.ids();
        known[0].extend(volumes);
        known[1].extend(snapshots);
    }
    assert_eq!(pair.ledger(), known, "the ledger and the responses, {when}");
    pair.expect_files_of_ledger(&when);
    let stacked = stacked(&mounts_of(&pair.agent().pid().to_string()), &trial.site.top);
    assert!(
        stacked.is_empty(),
        "a mount is stacked on another, {when}: {stacked:#?}"
    );
    pair.expect_no_trouble(&when);
}

/// Waits until all lifecycles have ended.
fn wait(pair: &Pair, trial: &Trial, reported: &Receiver<bool>) {
    for _ in 0..LIVES {
        match reported.recv_timeout(2 * PATIENCE) {
            Ok(true) => {}
            Ok(false) => panic!("a life failed, as reported above\n{}", pair.last_words()),
            Err(error) => panic!(
                "lives hang ({error}); not answered yet:\n{}{}",
                trial.journal.outstanding(),
                pair.last_words()
            ),
        }
    }
}
