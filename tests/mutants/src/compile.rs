//! Builds the tests with all mutants, and removes the mutants that the compiler rejects.

use crate::list::Mutant;
use crate::places::{CALL, Places};
use crate::weave::{Mark, Woven, weave};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The source of the module that reads the switch, which selects a mutant at run time. This module
/// is added to each crate with mutants.
const SWITCH: &str = include_str!("../switch.rs");

/// The result of a build with all mutants.
#[derive(Default)]
pub(crate) struct Built {
    /// Mutants that do not compile, such as `Default::default()` for a type without `Default`.
    pub(crate) rejected: BTreeSet<u32>,
    /// Mutants that no runtime switch can select.
    pub(crate) left: BTreeSet<u32>,
    /// For each test program: package, target, path, and the package's directory.
    pub(crate) programs: Vec<[String; 4]>,
}

impl Built {
    /// Reads the names of the mutants that earlier builds have removed, since every build that
    /// finds compiler errors takes minutes. A mutant with the same name stays removed, even if it
    /// would compile now.
    fn read(&mut self, kept: &Path, mutants: &[Mutant]) {
        let text = fs::read_to_string(kept).unwrap_or_default();
        let ids: BTreeMap<&str, u32> = mutants
            .iter()
            .map(|mutant| (mutant.name.as_str(), mutant.id))
            .collect();
        for (name, kind) in text.lines().filter_map(|line| line.rsplit_once('\t')) {
            match ids.get(name) {
                Some(id) if kind == "rejected" => drop(self.rejected.insert(*id)),
                Some(id) => drop(self.left.insert(*id)),
                None => {}
            }
        }
    }

    fn write(&self, kept: &Path, mutants: &[Mutant]) -> Result<(), String> {
        let lines = mutants.iter().filter_map(|mutant| {
            let kind = match mutant.id {
                id if self.rejected.contains(&id) => "rejected",
                id if self.left.contains(&id) => "left",
                _ => return None,
            };
            Some(format!("{}\t{kind}\n", mutant.name))
        });
        write(kept, &lines.collect::<String>())
    }
}

/// Error codes due to the mutant itself: its type is wrong or lacks a trait, or a function that it
/// calls does not exist, is private or takes other arguments.
const OF_MUTANTS: [&str; 11] = [
    "E0061", "E0277", "E0282", "E0283", "E0308", "E0369", "E0433", "E0599", "E0600", "E0614",
    "E0624",
];

/// Maximum length of a deleted call in the mutant's name, in characters.
const NAME_MAX: usize = 80;
/// The exit code of timeout(1) if the time limit was exceeded.
const TIMED_OUT: i32 = 124;

/// Adds mutants in which one statement `call()?;` of a file is deleted, such as a sync or a check.
/// cargo-mutants does not create these mutants.
///
/// # Errors
/// Fails if a file is not Rust.
pub(crate) fn without_calls(tree: &Path, mutants: &mut Vec<Mutant>) -> Result<(), String> {
    let files: BTreeSet<String> = mutants.iter().map(|mutant| mutant.file.clone()).collect();
    for file in files {
        let source = read(&tree.join(&file))?;
        for range in Places::of(&source)?.calls {
            let words: Vec<&str> = source[range.clone()].split_whitespace().collect();
            let text: String = words.join(" ").chars().take(NAME_MAX).collect();
            let (start, end) = (position(&source, range.start), position(&source, range.end));
            mutants.push(Mutant {
                id: u32::try_from(mutants.len() + 1).map_err(|error| error.to_string())?,
                name: format!("{file}:{}:{}: delete {text}", start.0, start.1),
                file: file.clone(),
                genre: CALL.to_owned(),
                replacement: String::new(),
                returns: String::new(),
                start,
                end,
            });
        }
    }
    Ok(())
}

/// Returns the line and column of a byte, both from 1.
fn position(source: &str, at: usize) -> (usize, usize) {
    let before = &source[..at];
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// Writes the mutants into the tree and builds the tests there.
///
/// # Errors
/// Fails if a file cannot be read or written, or if the build fails for a reason other than a
/// mutant.
pub(crate) fn compile(tree: &Path, mutants: &[Mutant], cargo: &[String]) -> Result<Built, String> {
    let mut files: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        files.entry(&mutant.file).or_default().push(mutant);
    }
    let mut sources = BTreeMap::new();
    for file in files.keys() {
        sources.insert(*file, read(&tree.join(file))?);
    }
    let mut built = Built::default();
    // A main.rs is the root of a separate crate, to which no switch module is added.
    let of_programs = mutants
        .iter()
        .filter(|mutant| mutant.file.ends_with("/main.rs"));
    built.left.extend(of_programs.map(|mutant| mutant.id));
    let kept = tree.with_extension("taken-out");
    built.read(&kept, mutants);
    add_switches(tree, &mut sources)?;
    loop {
        let mut woven = BTreeMap::new();
        for (file, source) in &sources {
            let of_file = files.get(file).map_or(&[][..], Vec::as_slice);
            let kept: Vec<&Mutant> = of_file
                .iter()
                .copied()
                .filter(|mutant| !built.rejected.contains(&mutant.id))
                .filter(|mutant| !built.left.contains(&mutant.id))
                .collect();
            let new = weave(source, &kept).map_err(|error| format!("{file}: {error}"))?;
            write(&tree.join(file), &new.text)?;
            built.left.extend(&new.left);
            built.rejected.extend(&new.rejected);
            woven.insert(*file, new);
        }
        let messages = build(tree, cargo, 0)?.unwrap_or_default();
        let errors: Vec<&Value> = messages
            .iter()
            .filter(|message| is_error(message))
            .collect();
        if errors.is_empty() {
            built.programs = messages.iter().filter_map(program).collect();
            return Ok(built);
        }
        let before = built.rejected.len() + built.left.len();
        let mut unexplained = Vec::new();
        for error in errors {
            if !take_out(error, &woven, &mut built) {
                unexplained.push(error["message"]["rendered"].as_str().unwrap_or_default());
            }
        }
        built.write(&kept, mutants)?;
        let out = built.rejected.len() + built.left.len();
        eprintln!(
            "mutants: {} rejected, {} left",
            built.rejected.len(),
            built.left.len()
        );
        if out == before {
            return Err(format!("the build fails:\n{}", unexplained.join("\n")));
        }
    }
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Writes a file, unless it already has this text: cargo rebuilds after every write.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Adds the module of the switch to each crate with mutants.
fn add_switches(tree: &Path, sources: &mut BTreeMap<&str, String>) -> Result<(), String> {
    let crates: BTreeSet<&str> = sources
        .keys()
        .filter_map(|file| Some(file.split_once("/src/")?.0))
        .collect();
    for name in crates {
        let lib = format!("{name}/src/lib.rs");
        let declaration = "\nmod mutant_switch;\n";
        write(&tree.join(format!("{name}/src/mutant_switch.rs")), SWITCH)?;
        match sources.get_mut(lib.as_str()) {
            Some(source) => source.push_str(declaration),
            None => {
                let source = read(&tree.join(&lib))?;
                if !source.contains(declaration) {
                    write(&tree.join(&lib), &(source + declaration))?;
                }
            }
        }
    }
    Ok(())
}

/// Builds the tests within `limit` seconds (0: without a limit), and returns cargo's messages;
/// `None` if the build took longer.
pub(crate) fn build(
    tree: &Path,
    cargo: &[String],
    limit: u32,
) -> Result<Option<Vec<Value>>, String> {
    let output = Command::new("timeout")
        .args([&limit.to_string(), "cargo", "test"])
        .args(["--no-run", "--message-format=json", "--quiet"])
        .args(cargo)
        .current_dir(tree)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    if output.status.code() == Some(TIMED_OUT) {
        return Ok(None);
    }
    if !output.status.success() && !messages.iter().any(is_error) {
        return Err(format!("cargo ended with {}", output.status));
    }
    Ok(Some(messages))
}

pub(crate) fn is_error(message: &Value) -> bool {
    message["reason"] == "compiler-message"
        && message["message"]["level"] == "error"
        && message["message"]["spans"]
            .as_array()
            .is_some_and(|spans| !spans.is_empty())
}

/// Returns the test program that a message of cargo reports as built; `None` for other messages.
pub(crate) fn program(message: &Value) -> Option<[String; 4]> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?;
    let target = &message["target"];
    let name = if target["kind"][0] == "lib" {
        "lib"
    } else {
        target["name"].as_str()?
    };
    Some([
        directory.file_name()?.to_str()?.to_owned(),
        name.to_owned(),
        message["executable"].as_str()?.to_owned(),
        directory.to_str()?.to_owned(),
    ])
}

/// Removes the mutants that caused the compiler error. Returns whether any mutant caused the error.
fn take_out(error: &Value, woven: &BTreeMap<&str, Woven>, built: &mut Built) -> bool {
    let message = &error["message"];
    let code = message["code"]["code"].as_str().unwrap_or_default();
    let mut found = false;
    let spans = message["spans"].as_array().into_iter().flatten();
    for span in spans.filter(|span| span["is_primary"] == true) {
        for mark in blamed(span, woven) {
            found = true;
            if mark.own && OF_MUTANTS.contains(&code) {
                built.rejected.insert(mark.id);
            } else {
                eprintln!("mutants: {} is left: {code}", mark.id);
                built.left.insert(mark.id);
            }
        }
    }
    found
}

/// Returns the mutants at the position of an error. If the position is in an expanded macro,
/// returns the mutants at the call of the macro.
fn blamed<'a>(span: &Value, woven: &'a BTreeMap<&str, Woven>) -> Vec<&'a Mark> {
    let here = || {
        let woven = woven.get(span["file_name"].as_str()?)?;
        let byte = |end: &str| usize::try_from(span[end].as_u64()?).ok();
        let (start, end) = (byte("byte_start")?, byte("byte_end")?);
        let around = |mark: &&Mark| mark.range.start <= start && end <= mark.range.end;
        // Select the smallest range around the error, and all mutants of that range.
        let size = |mark: &&Mark| (!mark.own, mark.range.len());
        let around: Vec<&Mark> = woven.marks.iter().filter(around).collect();
        let least = around.iter().map(size).min()?;
        Some(
            around
                .into_iter()
                .filter(|mark| size(mark) == least)
                .collect::<Vec<_>>(),
        )
    };
    match here() {
        Some(marks) => marks,
        None if span["expansion"].is_object() => blamed(&span["expansion"]["span"], woven),
        None => Vec::new(),
    }
}
