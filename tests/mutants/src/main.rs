//! Runs the tests against all mutants of cargo-mutants with a single build. In this program, only
//! the names of the stages (groups of tests that run together) are specific to Belay.
//!
//! `belay-mutants build LIST TREE OUT CARGO-ARGUMENT...` writes all mutants of the list into the
//! tree, each behind a switch, and builds its tests.
//!
//! `belay-mutants judge OUT PACKAGE TARGET STAGE [NUMBER...]` runs, for each mutant that no test
//! has noticed yet, the tests of the target (`lib`, or the name of an integration test) that reach
//! it. With `record` instead of `judge`, the program only prints which tests reach which mutants.
//!
//! After the time in BELAY_MUTANTS_UNTIL, in seconds since 1970, the remaining mutants are only
//! listed as late.
//!
//! `belay-mutants alone LIST TREE OUT PACKAGE CARGO-ARGUMENT...` builds the mutants that no switch
//! can select, one after the other.
//!
//! `belay-mutants sample SEED COUNT` prints the given number of lines of its input, and
//! `belay-mutants verdicts OUT` prints the verdicts of all stages.

mod compile;
mod judge;
mod list;
mod places;
mod report;
mod weave;

use judge::{Program, Verdict};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// The names of the stages, which are also the names of the files with verdicts in OUT.
const STAGES: [&str; 12] = [
    "unit",
    "slow",
    "alone",
    "process",
    "cloud",
    "openstack_twin",
    "digitalocean_twin",
    "civo_twin",
    "create_key",
    "nfs",
    "mounts",
    "mounts_of_programs",
];

/// The prefix of the stages whose tests need root.
const GUEST: &str = "mounts";

/// Tests that take longer than this run in the second stage.
const SLOW: Duration = Duration::from_millis(500);
/// Tests of a program that take longer than this are omitted: some tests wait until a cloud's rate
/// limit is reset.
const LONG: Duration = Duration::from_secs(30);
/// The time limit of a build with one mutant, which takes one or two minutes; a mutant that causes
/// an endless loop in a constant would never finish.
const BUILD_SECONDS: u32 = 900;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["build", list, tree, out, ..] => build(
            Path::new(list),
            Path::new(tree),
            Path::new(out),
            &arguments[4..],
        ),
        ["alone", list, tree, out, package, ..] => {
            let [list, tree, out] = [list, tree, out].map(Path::new);
            judge_alone(list, tree, out, package, &arguments[5..])
        }
        ["sample", seed, count] => sample(seed, count),
        ["verdicts", out] => report::verdicts(Path::new(out)).and_then(|lines| print(&lines)),
        ["record", out, package, target, stage] => record(Path::new(out), package, target, stage),
        ["judge", out, package, target, stage, ids @ ..] => {
            judge(Path::new(out), package, target, stage, ids)
        }
        _ => Err(
            "usage: build LIST TREE OUT CARGO-ARGUMENT...; judge OUT PACKAGE TARGET STAGE"
                .to_owned(),
        ),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn save(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn build(list: &Path, tree: &Path, out: &Path, cargo: &[String]) -> Result<(), String> {
    let mut mutants = list::read(&text(list)?)?;
    compile::without_calls(tree, &mut mutants)?;
    let built = compile::compile(tree, &mutants, cargo)?;
    let mut names = [String::new(), String::new(), String::new()];
    for mutant in &mutants {
        let kind = match mutant.id {
            id if built.rejected.contains(&id) => 1,
            id if built.left.contains(&id) => 2,
            _ => 0,
        };
        names[kind].push_str(&format!("{}\t{}\n", mutant.id, mutant.name));
    }
    for (name, text) in ["woven", "rejected", "left"].iter().zip(&names) {
        save(&out.join(name), text)?;
    }
    save(&out.join("programs"), &lines(&built.programs))
}

fn lines(programs: &[[String; 4]]) -> String {
    programs
        .iter()
        .map(|program| program.join("\t") + "\n")
        .collect()
}

/// Appends a line to OUT/STAGE for each mutant of the package: number, verdict, test, milliseconds,
/// name.
fn judge(out: &Path, package: &str, target: &str, stage: &str, ids: &[&str]) -> Result<(), String> {
    let program = program(out, package, target, stage)?;
    let (tests, by_mutant) = program.reached(&reached(out, package, target, stage))?;
    eprintln!(
        "mutants: {} tests of {package} {target} reach {}",
        tests.len(),
        by_mutant.len()
    );
    let mut verdicts = Verdicts::of(out, stage)?;
    for (id, name) in mutants(out, "woven", package)? {
        let is_wanted = ids.is_empty() || ids.contains(&id.to_string().as_str());
        if verdicts.is_known(id) || !is_wanted {
            continue;
        }
        let numbers = by_mutant.get(&id).map_or(&[][..], Vec::as_slice);
        let reaching = numbers.iter().map(|number| &tests[*number]);
        // For most mutants, a fast test fails within milliseconds; run the slow tests only for the
        // other mutants.
        let reaching: Vec<_> = match stage {
            "unit" => reaching.filter(|test| test.time < SLOW).collect(),
            "slow" => reaching.filter(|test| test.time >= SLOW).collect(),
            _ if stage.starts_with(GUEST) => reaching.collect(),
            _ => reaching.filter(|test| test.time < LONG).collect(),
        };
        let start = Instant::now();
        let verdict = match is_late() {
            true => Verdict::Late,
            false => program.judge(id, &reaching)?,
        };
        verdicts.add(id, &verdict, start, &name)?;
    }
    Ok(())
}

/// Returns the path of the file that records which tests reach which mutants.
fn reached(out: &Path, package: &str, target: &str, stage: &str) -> PathBuf {
    let kind = if stage.starts_with(GUEST) {
        "-ignored"
    } else {
        ""
    };
    out.join(format!("reached-{package}-{target}{kind}"))
}

/// Prints which tests reach which mutants. This is used in a guest (a virtual machine), whose files
/// are lost when the guest ends.
fn record(out: &Path, package: &str, target: &str, stage: &str) -> Result<(), String> {
    let kept = std::env::temp_dir().join("reached-by-tests");
    program(out, package, target, stage)?.reached(&kept)?;
    print(&text(&kept)?)
}

fn sample(seed: &str, count: &str) -> Result<(), String> {
    let mut lines = String::new();
    let read = std::io::stdin().read_to_string(&mut lines);
    read.map_err(|error| error.to_string())?;
    let count = count.parse().map_err(|_| format!("no number: {count}"))?;
    print(&report::sample(&lines, seed, count))
}

fn print(text: &str) -> Result<(), String> {
    let mut output = std::io::stdout().lock();
    let written = output.write_all(text.as_bytes());
    written.map_err(|error| error.to_string())
}

/// Whether the time limit of the whole run has passed.
fn is_late() -> bool {
    let until = std::env::var("BELAY_MUTANTS_UNTIL").ok();
    let until = until.and_then(|until| until.parse().ok());
    let until =
        until.and_then(|until| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(until)));
    until.is_some_and(|until| SystemTime::now() > until)
}

/// Builds each mutant that no switch can select, and runs all tests of the library with it.
fn judge_alone(
    list: &Path,
    tree: &Path,
    out: &Path,
    package: &str,
    cargo: &[String],
) -> Result<(), String> {
    let all = list::read(&text(list)?)?;
    let (mut tests, _) =
        program(out, package, "lib", "unit")?.reached(&reached(out, package, "lib", "unit"))?;
    let mut verdicts = Verdicts::of(out, "alone")?;
    for (id, name) in mutants(out, "left", package)? {
        let mutant = all.iter().find(|mutant| mutant.id == id);
        let Some(mutant) = mutant.filter(|_| !verdicts.is_known(id)) else {
            continue;
        };
        let start = Instant::now();
        if is_late() {
            verdicts.add(id, &Verdict::Late, start, &name)?;
            continue;
        }
        // Read the file from the checkout: an earlier run may have left its mutant in the tree.
        let source = text(Path::new(&mutant.file))?;
        let file = tree.join(&mutant.file);
        save(
            &file,
            &mutant.apply(&source).ok_or("a position after the end")?,
        )?;
        let messages = compile::build(tree, cargo, BUILD_SECONDS);
        save(&file, &source)?;
        let Some(messages) = messages? else {
            // The build timed out: the compiler evaluates a constant endlessly.
            verdicts.add(id, &Verdict::Rejected, start, &name)?;
            continue;
        };
        let verdict = if messages.iter().any(compile::is_error) {
            Verdict::Rejected
        } else {
            let programs: Vec<_> = messages.iter().filter_map(compile::program).collect();
            save(&out.join("programs-alone"), &lines(&programs))?;
            // Run the tests in the module of the mutant first.
            let module = mutant.file.split_once("/src/").map_or("", |(_, file)| file);
            let module = module.trim_end_matches(".rs").replace('/', "::");
            tests.sort_by_key(|test| (test.distance(&module), test.time));
            // Run only the fast tests: the slow tests of all layers together would take minutes for
            // each mutant.
            let fast: Vec<_> = tests.iter().filter(|test| test.time < SLOW).collect();
            program(out, package, "lib", "alone")?.judge(0, &fast)?
        };
        verdicts.add(id, &verdict, start, &name)?;
    }
    Ok(())
}

/// Returns the mutants of the package from a list file in the directory OUT.
fn mutants(out: &Path, list: &str, package: &str) -> Result<Vec<(u32, String)>, String> {
    let list = text(&out.join(list))?;
    let entries = list.lines().filter_map(|line| {
        let (id, name) = line.split_once('\t')?;
        Some((id.parse().ok()?, name.to_owned()))
    });
    Ok(entries
        .filter(|(_, name): &(u32, String)| name.starts_with(&format!("{package}/")))
        .collect())
}

fn program(out: &Path, package: &str, target: &str, stage: &str) -> Result<Program, String> {
    let list = if stage == "alone" {
        "programs-alone"
    } else {
        "programs"
    };
    let programs = text(&out.join(list))?;
    let mut programs = programs
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>());
    let of_target = programs.find(|words| words.get(..2) == Some(&[package, target]));
    let Some([_, _, path, directory]) = of_target.as_deref() else {
        return Err(format!("no program of {package} {target}"));
    };
    Ok(Program {
        path: path.into(),
        directory: directory.into(),
        scratch: std::env::temp_dir(),
        runner: std::env::var_os("BELAY_MUTANTS_RUNNER").map(Into::into),
        ignored: stage.starts_with(GUEST),
    })
}

/// The verdicts of a stage, and the mutants for which this stage needs no further test.
struct Verdicts {
    file: File,
    known: BTreeSet<u32>,
}

impl Verdicts {
    fn of(out: &Path, stage: &str) -> Result<Self, String> {
        let mut known = BTreeSet::new();
        for other in STAGES {
            let verdicts = fs::read_to_string(out.join(other)).unwrap_or_default();
            for line in verdicts.lines() {
                let words: Vec<&str> = line.split('\t').collect();
                let [id, verdict, ..] = words.as_slice() else {
                    continue;
                };
                let is_final = other == stage && *verdict != "late";
                if is_final || ["noticed", "endless"].contains(verdict) {
                    known.extend(id.parse::<u32>());
                }
            }
        }
        let file = File::options()
            .append(true)
            .create(true)
            .open(out.join(stage));
        Ok(Self {
            file: file.map_err(|error| error.to_string())?,
            known,
        })
    }

    /// Whether the mutant needs no further test.
    fn is_known(&self, id: u32) -> bool {
        self.known.contains(&id)
    }

    fn add(
        &mut self,
        id: u32,
        verdict: &Verdict,
        start: Instant,
        name: &str,
    ) -> Result<(), String> {
        let (verdict, test) = match verdict {
            Verdict::Noticed(test) => ("noticed", test.as_str()),
            Verdict::Endless(test) => ("endless", test.as_str()),
            Verdict::Missed => ("missed", ""),
            Verdict::Unreached => ("unreached", ""),
            Verdict::Rejected => ("rejected", ""),
            Verdict::Late => ("late", ""),
        };
        let time = start.elapsed().as_millis();
        let line = format!("{id}\t{verdict}\t{test}\t{time}\t{name}\n");
        // Print the verdict, too: a guest's file is lost when the guest ends.
        print(&line)?;
        self.file
            .write_all(line.as_bytes())
            .map_err(|error| error.to_string())
    }
}
