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

/// The heads of the tables, and the entry for all stages.
const HEAD: &str = "| accident | stages | effect |";
const ALL: &str = "all";

#[test]
fn the_documented_table_has_every_cell_and_none_that_is_broken() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/accidents.md");
    let text = std::fs::read_to_string(path).expect("docs/accidents.md");
    // Stop before the tables of power losses.
    let (text, _) = text.split_once("\n## Power loss\n").expect("the section");
    let tables: Vec<&str> = text.split(HEAD).skip(1).collect();
    assert_eq!(tables.len(), Use::ALL.len(), "one table for each use");
    for (table, used_as) in tables.into_iter().zip(Use::ALL) {
        judge_table(table, used_as);
    }
}

fn judge_table(table: &str, used_as: Use) {
    let (mut names, mut documented) = (Vec::new(), Vec::new());
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [name, stages, effect] = cells[..] else {
            panic!("{row}");
        };
        if !name.is_empty() {
            names.push(name);
        }
        let stages = match stages {
            ALL => Moment::ALL.map(Moment::name).to_vec(),
            _ => stages.split(", ").collect(),
        };
        let name = *names.last().expect("the first row has a name");
        documented.extend(stages.into_iter().map(|stage| (name, stage, effect)));
    }
    let can_occur = |accident: &&Accident| {
        let mut moments = Moment::ALL.into_iter();
        moments.any(|moment| (accident.fits)(moment, used_as).is_ok())
    };
    let expected = ACCIDENTS.iter().filter(can_occur).map(|it| it.name);
    let expected: Vec<&str> = expected.collect();
    assert_eq!(names, expected, "the rows of the table");
    for accident in ACCIDENTS {
        for moment in Moment::ALL {
            let is_it = |(name, stage, _): &&(&str, &str, &str)| {
                (*name, *stage) == (accident.name, moment.name())
            };
            let effects: Vec<&str> = documented.iter().filter(is_it).map(|it| it.2).collect();
            let cell = format!("{}, {moment:?}: {effects:?}", accident.name);
            let is_possible = (accident.fits)(moment, used_as).is_ok();
            assert_eq!(effects.len(), usize::from(is_possible), "{cell}");
            let was_run = !["", "not run", "**broken**"].contains(effects.first().unwrap_or(&"–"));
            assert!(was_run, "{cell}");
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
    let counted = format!("{counted} and {impossible} cannot occur");
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
        writeln!(text, "{HEAD}\n|---|---|---|").expect("a string");
        for accident in ACCIDENTS {
            let mut name = format!(" {}", accident.name);
            for (effect, stages) in grouped(outcomes, accident, used_as) {
                writeln!(text, "|{name} | {stages} | {effect} |").expect("a string");
                name.clear();
            }
        }
    }
    std::fs::write(&path, text).expect("the tables");
    println!("the tables: {}", path.display());
}

/// Returns each effect of an accident with its stages.
fn grouped(outcomes: &[(Key, Outcome)], row: &Accident, table: Use) -> Vec<(String, String)> {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for moment in Moment::ALL {
        let is_it = |(accident, of, used_as): &Key| {
            accident.name == row.name && *of == moment && *used_as == table
        };
        let found = outcomes.iter().find(|(key, _)| is_it(key));
        let effect = match found.map(|(_, outcome)| outcome) {
            Some(Outcome::Held(seen)) => seen,
            Some(Outcome::Impossible(_)) => continue,
            Some(Outcome::Broken(_)) => "**broken**",
            None => "not run",
        };
        match groups.iter_mut().find(|(known, _)| known == effect) {
            Some((_, stages)) => stages.push(moment.name()),
            None => groups.push((effect.to_owned(), vec![moment.name()])),
        }
    }
    let named = |(effect, stages): (String, Vec<&str>)| match stages.len() == Moment::ALL.len() {
        true => (effect, ALL.to_owned()),
        false => (effect, stages.join(", ")),
    };
    groups.into_iter().map(named).collect()
}
