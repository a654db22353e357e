//! Power loss. The lifecycles of some volumes are recorded below both programs, write by write;
//! then the power fails at each position of the record, and both programs start on the remaining
//! disk content.

mod cuts;
mod disk;
mod image;
mod judge;
mod life;
mod tape;
mod tree;
mod user;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use cuts::{Cut, Sample};
use disk::Recorded;
use image::Image;
use life::{Life, Recording};
use tree::Tree;
use user::Act;

use crate::rig::{Chance, Pair, TestDir};

/// The number of failures after which the test stops, since more add no information.
const FAILURES_MAX: usize = 10;
/// Without `make nightly`, the power fails a second time in one of this many trials.
const ONCE_AND_TWICE: usize = 4;
/// The number of power cuts per line of progress.
const CUTS_A_LINE: usize = 50;

#[test]
#[ignore = "needs root: make test"]
fn what_was_acknowledged_outlives_a_power_loss() {
    let life = Life::of(start::<Recorded>(Tree::new()), false);
    let few = Sample {
        others: 40,
        ..Sample::ALL
    };
    lose_power::<Recorded>("only synced data", &life, few, Sample::ALL);
}

#[test]
#[ignore = "needs root: make test"]
fn what_was_acknowledged_outlives_a_power_loss_on_ext4() {
    on_a_real_filesystem("ext4", false);
}

#[test]
#[ignore = "needs root: make test"]
fn what_was_acknowledged_outlives_a_power_loss_on_xfs() {
    on_a_real_filesystem("xfs", true);
}

#[test]
#[ignore = "needs root: make test"]
fn what_was_acknowledged_outlives_a_power_loss_on_btrfs() {
    on_a_real_filesystem("btrfs", true);
}

/// Runs the test on a real filesystem. `shares` states whether it can share blocks between files.
fn on_a_real_filesystem(filesystem: &str, shares: bool) {
    let test_dir = TestDir::new();
    let image = Image::new(&test_dir, filesystem);
    let life = Life::of(Pair::on(test_dir, image), shares);
    let few = Sample {
        acknowledged: 8,
        overtaking: 4,
        others: 4,
    };
    let many = Sample {
        overtaking: 50,
        others: 100,
        ..Sample::ALL
    };
    lose_power::<Image>(filesystem, &life, few, many);
}

/// Cuts the power at some points of the recorded lifecycle, one after the other; in `make nightly`
/// at many.
fn lose_power<D: Recording>(on: &str, life: &Life, few: Sample, many: Sample) {
    let mut chance = Chance::new(&format!("power loss, {on}"));
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    let cuts = cuts::choose(life, if is_long { many } else { few }, &mut chance);
    eprintln!("{on}: {} events, {} cuts", life.tape.end(), cuts.len());
    let begun = Instant::now();
    let mut failed = Vec::new();
    for (number, cut) in cuts.iter().enumerate() {
        let is_twice = is_long || cut.is_at_start() || number % ONCE_AND_TWICE == 0;
        let trial = || lose_power_at::<D>(life, cut, is_twice);
        if catch_unwind(AssertUnwindSafe(trial)).is_err() {
            let (_, doubt) = life.at(cut.position(life));
            failed.push(format!("BELAY_POWER={cut}, in {doubt:?}"));
            eprintln!("{on}: failed: {}", failed[failed.len() - 1]);
        }
        if failed.len() == FAILURES_MAX {
            break;
        }
        let done = number + 1;
        if done % CUTS_A_LINE == 0 || done == cuts.len() {
            eprintln!(
                "{on}: {done} of {} cuts, {:.0?}",
                cuts.len(),
                begun.elapsed()
            );
        }
    }
    assert!(failed.is_empty(), "{on}, as reported above: {failed:#?}");
}

/// Cuts the power at this point of the recorded lifecycle, and perhaps again, after everything has
/// been used.
fn lose_power_at<D: Recording>(life: &Life, cut: &Cut, is_twice: bool) {
    let position = cut.position(life);
    let (known, doubt) = life.at(position);
    let pair = start::<D>(life.tape.cut(position, cut.survival));
    pair.expect_no_trouble("after the power loss");
    let known = judge::judge(&pair, &known, doubt, "after the power loss");
    let again = is_twice.then(|| pair.drive().recorded().cut());
    judge::leave(&pair, known.clone());
    pair.end();
    if let Some(tree) = again {
        let pair = start::<D>(tree);
        pair.expect_no_trouble("after the second power loss");
        // After the second loss, an interrupted write remains in doubt.
        let doubt = doubt.filter(|act| matches!(act, Act::Write(_)));
        let known = judge::judge(&pair, &known, doubt, "after the second power loss");
        judge::leave(&pair, known);
        pair.end();
    }
}

fn start<D: Recording>(tree: Tree) -> Pair<D> {
    let test_dir = TestDir::new();
    let drive = D::mount(&test_dir, tree);
    Pair::on(test_dir, drive)
}
