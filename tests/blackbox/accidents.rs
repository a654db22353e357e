//! Faults caused by operators and the kernel ("accidents"), at every moment of a volume's
//! lifecycle: a file is truncated, replaced or opened by another process, a disk is full, hung or
//! gone, a program is killed or frozen.
//!
//! Each cell of the table runs with the real programs and is judged by the same rules (`judge.rs`):
//! no byte is lost or shown to another volume without an alarm, no success is reported that is not
//! true, every other volume works, and the volume works again once the accident has ended.

mod cell;
mod collector;
mod data;
mod judge;
mod memory;
mod moment;
mod scene;
mod strikes;
mod table;

use std::fmt::Write as _;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;

use cell::Cell;
use moment::{Moment, Use};
use scene::Scene;
use table::{ACCIDENTS, Accident};

/// The number of cells of which each push runs one. It has no divisor in common with the number of
/// moments, so that all rows and columns are covered.
const SAMPLE: usize = 6;

/// The result of a cell.
enum Outcome {
    /// The cell was run, and no rule was broken. Contains the observations.
    Held(String),
    /// The cell is impossible, for this reason.
    Impossible(&'static str),
    /// A rule was broken.
    Broken(String),
}

/// The key of a cell in the table.
type Key = (&'static Accident, Moment, Use);

#[test]
#[ignore = "needs root: make test"]
fn no_accident_at_any_moment_loses_data_or_passes_for_success() {
    let is_whole = std::env::var_os("BELAY_NIGHTLY").is_some();
    let wanted = std::env::var("BELAY_ACCIDENTS").ok();
    let (mut scene, mut outcomes) = (None, Vec::new());
    for (number, (accident, moment, used_as)) in cells().into_iter().enumerate() {
        let name = format!("{}/{}/{}", accident.name, moment.name(), used_as.name());
        let is_chosen = match &wanted {
            Some(part) => name.contains(part.as_str()),
            None => is_whole || is_sampled(number),
        };
        if !is_chosen {
            continue;
        }
        let outcome = run(&mut scene, accident, moment, used_as);
        let (verdict, text) = match &outcome {
            Outcome::Held(seen) => ("held", seen.as_str()),
            Outcome::Impossible(why) => ("impossible", *why),
            Outcome::Broken(why) => ("BROKEN", why.as_str()),
        };
        println!("{verdict:<10} {name:<45} {text}");
        outcomes.push(((accident, moment, used_as), outcome));
    }
    if let Some(scene) = scene {
        scene.end();
    }
    if is_whole && wanted.is_none() {
        write_tables(&outcomes);
    }
    let broken = |(_, outcome): &&(Key, Outcome)| matches!(outcome, Outcome::Broken(_));
    let broken = outcomes.iter().filter(broken).count();
    assert!(!outcomes.is_empty(), "no cell was run");
    assert_eq!(broken, 0, "cells with a broken rule, see above");
}

fn is_sampled(number: usize) -> bool {
    number.is_multiple_of(SAMPLE)
}

#[test]
fn the_sample_has_a_cell_of_each_row_and_of_each_column() {
    let cells = cells().into_iter().enumerate();
    let sample: Vec<Key> = cells
        .filter_map(|(number, cell)| is_sampled(number).then_some(cell))
        .collect();
    for used_as in Use::ALL {
        let of_use = || sample.iter().filter(|(_, _, of)| *of == used_as);
        for row in ACCIDENTS {
            let is_met = of_use().any(|(accident, ..)| accident.name == row.name);
            assert!(is_met, "{}, {used_as:?}", row.name);
        }
        for column in Moment::ALL {
            let is_met = of_use().any(|(_, moment, _)| *moment == column);
            assert!(is_met, "{column:?}, {used_as:?}");
        }
    }
}

/// The entry of an impossible cell in the documented table.
const IMPOSSIBLE: &str = "–";

#[test]
fn the_documented_table_has_every_cell_and_none_that_is_broken() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/accidents.md");
    let text = std::fs::read_to_string(path).expect("docs/accidents.md");
    // Stop before the tables of power losses.
    let lines = text.lines().take_while(|line| *line != "## Power loss");
    let rows = lines.filter(|line| line.starts_with("| "));
    let rows: Vec<Vec<&str>> = rows
        .map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let tables: Vec<&[Vec<&str>]> = rows.chunks(ACCIDENTS.len() + 1).collect();
    assert_eq!(tables.len(), Use::ALL.len(), "one table for each use");
    for (table, used_as) in tables.into_iter().zip(Use::ALL) {
        judge_table(table, used_as);
    }
}

fn judge_table(rows: &[Vec<&str>], used_as: Use) {
    let moments = Moment::ALL.map(Moment::name);
    assert_eq!(rows[0][1..], moments, "the head of the table");
    let names: Vec<&str> = rows[1..].iter().map(|row| row[0]).collect();
    let expected: Vec<&str> = ACCIDENTS.iter().map(|accident| accident.name).collect();
    assert_eq!(names, expected, "the rows of the table");
    for (row, accident) in rows[1..].iter().zip(ACCIDENTS) {
        for (cell, moment) in row[1..].iter().zip(Moment::ALL) {
            let is_impossible = (accident.fits)(moment, used_as).is_err();
            assert_eq!(*cell == IMPOSSIBLE, is_impossible, "{}, {moment:?}", row[0]);
            let was_run = !["", "not run", "**broken**"].contains(cell);
            assert!(was_run, "{}, {moment:?}: {cell:?}", row[0]);
        }
    }
}

/// The section of docs/accidents.md about impossible cells.
const REASONS: &str = "## Combinations that cannot occur";

#[test]
fn the_reasons_of_impossible_cells_and_their_number_are_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/accidents.md");
    let text = std::fs::read_to_string(path).expect("docs/accidents.md");
    let (_, section) = text.split_once(REASONS).expect("the section");
    let (section, _) = section.split_once("\n## ").expect("another section");
    let mut impossible = 0;
    for (accident, moment, used_as) in cells() {
        let Err(why) = (accident.fits)(moment, used_as) else {
            continue;
        };
        impossible += 1;
        let mut rows = section.lines().filter(|row| row.starts_with("| "));
        let is_there = rows.any(|row| row.contains(accident.name) && row.contains(why));
        assert!(
            is_there,
            "{}, {moment:?}, {used_as:?}: {why}",
            accident.name
        );
    }
    let all = cells().len();
    let counted = format!("{all} combinations, of which {} are run", all - impossible);
    let counted = format!("{counted} and {impossible} (`–`) cannot occur");
    assert!(section.contains(&counted), "{counted}");
}

fn cells() -> Vec<Key> {
    let mut cells = Vec::new();
    for used_as in Use::ALL {
        for accident in ACCIDENTS {
            cells.extend(Moment::ALL.map(|moment| (accident, moment, used_as)));
        }
    }
    cells
}

/// Runs a cell. After a broken rule, a scene proves nothing more, so the next cell gets a new one.
fn run(scene: &mut Option<Scene>, accident: &Accident, moment: Moment, used_as: Use) -> Outcome {
    if let Err(why) = (accident.fits)(moment, used_as) {
        return Outcome::Impossible(why);
    }
    let filesystem = accident.filesystem.unwrap_or(moment.filesystem());
    if let Some(other) = scene.take_if(|scene| scene.filesystem() != filesystem) {
        other.end();
    }
    let taken = scene.take().unwrap_or_else(|| Scene::new(filesystem));
    let mut cell = Cell::new(taken, moment, used_as);
    let done = panic::catch_unwind(AssertUnwindSafe(|| cell.run(accident)));
    match done {
        Ok(seen) => {
            *scene = Some(cell.into_scene());
            Outcome::Held(seen)
        }
        Err(panic) => {
            let why = panic.downcast_ref::<String>().cloned();
            let why = why.or_else(|| panic.downcast_ref::<&str>().map(|why| (*why).to_owned()));
            let words = cell.last_words();
            // The cell may be in any state; remove its leftovers.
            drop(panic::catch_unwind(AssertUnwindSafe(|| {
                cell.abandon(accident)
            })));
            let why = why.unwrap_or_default();
            if std::env::var_os("BELAY_ACCIDENTS").is_some() {
                println!("{words}");
            }
            Outcome::Broken(why)
        }
    }
}

/// Prints the tables of docs/accidents.md, to be copied there after a change.
fn write_tables(outcomes: &[(Key, Outcome)]) {
    let directory = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| PathBuf::from("../target"));
    let path = directory.join("accidents.md");
    let mut text = String::new();
    for used_as in Use::ALL {
        writeln!(text, "\n## {}\n", used_as.title()).expect("a string");
        let head = Moment::ALL.map(Moment::name).join(" | ");
        writeln!(text, "| accident | {head} |").expect("a string");
        writeln!(text, "|---|{}", "---|".repeat(Moment::ALL.len())).expect("a string");
        for accident in ACCIDENTS {
            let words = Moment::ALL.map(|moment| word(outcomes, accident, moment, used_as));
            writeln!(text, "| {} | {} |", accident.name, words.join(" | ")).expect("a string");
        }
    }
    std::fs::write(&path, text).expect("the tables");
    println!("the tables: {}", path.display());
}

fn word(outcomes: &[(Key, Outcome)], row: &Accident, column: Moment, table: Use) -> String {
    let is_it = |(accident, moment, used_as): &Key| {
        accident.name == row.name && *moment == column && *used_as == table
    };
    let found = outcomes.iter().find(|(key, _)| is_it(key));
    match found.map(|(_, outcome)| outcome) {
        Some(Outcome::Held(seen)) => seen.clone(),
        Some(Outcome::Impossible(_)) => IMPOSSIBLE.to_owned(),
        Some(Outcome::Broken(_)) => "**broken**".to_owned(),
        None => "not run".to_owned(),
    }
}
