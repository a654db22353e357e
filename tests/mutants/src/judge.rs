//! Runs the tests that reach (execute) the code of a mutant, with the mutant switched on.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// For each mutant, the numbers of the tests that reach the mutant.
pub(crate) type Reached = BTreeMap<u32, Vec<usize>>;

/// A test program.
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// The directory of the package, in which the program runs.
    pub(crate) directory: PathBuf,
    /// A directory for the program's output, and for the numbers of the mutants that a test
    /// reaches.
    pub(crate) scratch: PathBuf,
    /// A program that runs the test program, for example in a different environment; `None` to run
    /// the test program directly.
    pub(crate) runner: Option<PathBuf>,
    /// Whether to run the tests that are marked `#[ignore]`, instead of the tests without this
    /// attribute.
    pub(crate) ignored: bool,
}

/// A test that passes without a mutant.
pub(crate) struct Test {
    pub(crate) name: String,
    pub(crate) time: Duration,
}

impl Test {
    /// Returns the number of components at the end of `module` that the test's path does not share.
    pub(crate) fn distance(&self, module: &str) -> usize {
        let parts = module.split("::").zip(self.name.split("::"));
        let shared = parts.take_while(|(one, other)| one == other).count();
        module.split("::").count() - shared
    }
}

/// The result of the tests for a mutant.
pub(crate) enum Verdict {
    /// A test failed: the named test, or a different test that ran in the same process.
    Noticed(String),
    /// The tests did not end within their time limit. Contains the name of the first test.
    Endless(String),
    Missed,
    /// No test runs the mutated code.
    Unreached,
    /// The compiler rejects the mutant.
    Rejected,
    /// No time was left to run the tests of the mutant.
    Late,
}

/// The maximum total time of tests that one process runs.
const AT_ONCE: Duration = Duration::from_millis(500);
/// The time limit of tests is five times their usual time plus this duration, for a busy machine.
const GRACE: Duration = Duration::from_secs(20);

impl Program {
    /// Returns the program's tests, the fastest first, and the tests that reach each mutant. Both
    /// results are stored in `kept` for the next run.
    ///
    /// # Errors
    /// Fails if the program cannot be run.
    pub(crate) fn reached(&self, kept: &Path) -> Result<(Vec<Test>, Reached), String> {
        let mut runs = self.kept(kept).unwrap_or_default();
        if runs.is_empty() {
            runs = self.record()?;
            let lines = runs.iter().map(|(test, ids)| {
                let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
                format!(
                    "{}\t{}\t{}\n",
                    test.name,
                    test.time.as_millis(),
                    ids.join(" ")
                )
            });
            fs::write(kept, lines.collect::<String>()).map_err(|error| error.to_string())?;
        }
        runs.sort_by_key(|(test, _)| test.time);
        let mut tests = Vec::new();
        let mut by_mutant = Reached::new();
        for (number, (test, ids)) in runs.into_iter().enumerate() {
            for id in ids.into_iter().collect::<BTreeSet<u32>>() {
                by_mutant.entry(id).or_default().push(number);
            }
            tests.push(test);
        }
        Ok((tests, by_mutant))
    }

    /// Returns the results of an earlier run of the same program; `None` if there are none.
    fn kept(&self, path: &Path) -> Option<Vec<(Test, Vec<u32>)>> {
        let changed = |path: &Path| fs::metadata(path).ok()?.modified().ok();
        if changed(path)? < changed(&self.path)? {
            return None;
        }
        let text = fs::read_to_string(path).ok()?;
        let runs = text.lines().map(|line| {
            let [name, time, ids] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
            let time = Duration::from_millis(time.parse().ok()?);
            let ids = ids
                .split_whitespace()
                .filter_map(|id| id.parse().ok())
                .collect();
            Some((
                Test {
                    name: name.to_owned(),
                    time,
                },
                ids,
            ))
        });
        runs.collect()
    }

    /// Runs each test once without a mutant. Returns the tests that pass, and the mutants they
    /// reach.
    fn record(&self) -> Result<Vec<(Test, Vec<u32>)>, String> {
        let mut runs = Vec::new();
        for name in self.names()? {
            let record = self.scratch.join("reached");
            // Empty the record file: a test that reaches no mutant does not write the file.
            fs::write(&record, "").map_err(|error| error.to_string())?;
            let start = Instant::now();
            let names = [name.as_str()];
            let ended = self.run(&names, None, Duration::from_secs(300))?;
            let time = start.elapsed();
            if ended != Some(0) {
                eprintln!("mutants: {name} fails without a mutant and is left out");
                continue;
            }
            let ids = fs::read_to_string(&record).map_err(|error| error.to_string())?;
            let ids: Vec<u32> = ids.lines().filter_map(|id| id.parse().ok()).collect();
            runs.push((Test { name, time }, ids));
        }
        Ok(runs)
    }

    /// Runs these tests with the mutant switched on, in their order, until a test fails.
    ///
    /// # Errors
    /// Fails if the program cannot be run.
    pub(crate) fn judge(&self, id: u32, tests: &[&Test]) -> Result<Verdict, String> {
        if tests.is_empty() {
            return Ok(Verdict::Unreached);
        }
        let mut rest = tests;
        while !rest.is_empty() {
            let mut total = Duration::ZERO;
            let fit = rest.iter().take_while(|test| {
                total += test.time;
                total <= AT_ONCE
            });
            let count = fit.count().max(1);
            let (now, later) = rest.split_at(count);
            rest = later;
            let names: Vec<&str> = now.iter().map(|test| test.name.as_str()).collect();
            let limit = GRACE + now.iter().map(|test| test.time * 5).sum::<Duration>();
            match self.run(&names, Some(id), limit)? {
                Some(0) => {}
                Some(125..=127) => return Err(format!("{} does not start", self.path.display())),
                Some(124 | 137) => return Ok(Verdict::Endless(names[0].to_owned())),
                _ => {
                    return Ok(Verdict::Noticed(
                        self.failed().unwrap_or(names[0].to_owned()),
                    ));
                }
            }
        }
        Ok(Verdict::Missed)
    }

    fn names(&self) -> Result<Vec<String>, String> {
        let list = |flags: &[&str]| {
            let output = Command::new(&self.path)
                .args(["--list", "--format", "terse"])
                .args(flags)
                .current_dir(&self.directory)
                .output()
                .map_err(|error| format!("{}: {error}", self.path.display()))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
            Ok::<_, String>(names.map(str::to_owned).collect::<Vec<_>>())
        };
        let ignored = list(&["--ignored"])?;
        if self.ignored {
            return Ok(ignored);
        }
        let mut names = list(&[])?;
        names.retain(|name| !ignored.contains(name));
        Ok(names)
    }

    /// Runs these tests and returns the exit code; `None` if a signal ended the run.
    fn run(&self, names: &[&str], id: Option<u32>, limit: Duration) -> Result<Option<i32>, String> {
        let output = File::create(self.output()).map_err(|error| error.to_string())?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        // Run the tests under timeout(1), which also ends the processes that a test has started.
        let mut command = Command::new("timeout");
        command
            .arg("--kill-after=1")
            .arg(limit.as_secs().to_string())
            .args(&self.runner)
            .arg(&self.path)
            .args(["--exact", "-Z", "unstable-options", "--fail-fast"])
            .args(self.ignored.then_some("--ignored"))
            .args(names)
            .current_dir(&self.directory)
            // libtest accepts --fail-fast only with this environment variable, which does not
            // affect the tests.
            .env("RUSTC_BOOTSTRAP", "1")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        match id {
            Some(id) => command.env("BELAY_MUTANT", id.to_string()),
            None => command.env("BELAY_MUTANTS_REACHED", self.scratch.join("reached")),
        };
        let status = command
            .status()
            .map_err(|error| format!("timeout: {error}"))?;
        Ok(status.code())
    }

    fn output(&self) -> PathBuf {
        self.scratch.join("output")
    }

    /// Returns the test that failed in the last run.
    fn failed(&self) -> Option<String> {
        let text = fs::read(self.output()).ok()?;
        let text = String::from_utf8_lossy(&text);
        let line = text.lines().find(|line| line.ends_with("FAILED"))?;
        Some(line.strip_prefix("test ")?.split(' ').next()?.to_owned())
    }
}
