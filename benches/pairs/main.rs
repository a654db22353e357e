//! Compares belay-node with the bare system calls, in alternating samples, so that other load on
//! the machine affects both. Then measures 64 concurrent calls, the agent's memory and size, and
//! whether a call costs more next to a faulty volume, or on a node with many mounts. Fails if a
//! limit is exceeded.
//!
//! `BELAY_BENCH_LIVES` is the number of lifecycles per filesystem (400), `BELAY_BENCH_OUTPUT=json`
//! prints JSON, `BELAY_BENCH_SVG=FILE` writes a picture of the calls on ext4, `BELAY_NIGHTLY=1`
//! uses 10,000 mounts.

#![expect(clippy::print_stdout, reason = "the program prints its figures")]

mod flat;
mod hung;
mod lives;
mod weight;
mod wide;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use belay_benches::{BenchDir, Limited, Machine, Program, SAMPLES_MIN, exit_code, judge, load};
use serde_json::json;

use crate::flat::Flat;
use crate::hung::Hung;
use crate::lives::Comparison;
use crate::weight::Weight;
use crate::wide::Wide;

/// The settings of a run, from the environment.
struct Plan {
    lives: usize,
    mounts: &'static [usize],
    is_json: bool,
    svg: Option<OsString>,
}

impl Plan {
    fn read() -> io::Result<Self> {
        let is_nightly = std::env::var_os("BELAY_NIGHTLY").is_some_and(|value| value == "1");
        let lives = match std::env::var("BELAY_BENCH_LIVES") {
            Ok(text) => text
                .parse()
                .ok()
                .filter(|n| *n >= SAMPLES_MIN)
                .ok_or_else(|| {
                    let why = format!(
                        "BELAY_BENCH_LIVES: {text:?} is not a number from {}",
                        SAMPLES_MIN
                    );
                    io::Error::other(why)
                })?,
            Err(_) => 400,
        };
        Ok(Self {
            lives,
            mounts: if is_nightly {
                &[1_000, 10_000]
            } else {
                &[1_000]
            },
            is_json: std::env::var_os("BELAY_BENCH_OUTPUT").is_some_and(|value| value == "json"),
            svg: std::env::var_os("BELAY_BENCH_SVG"),
        })
    }
}

/// All figures of a run.
struct Report {
    machine: Machine,
    weight: Weight,
    comparison: Comparison,
    wide: Wide,
    hung: Hung,
    flat: Vec<Flat>,
}

impl Report {
    fn limited(&self) -> Vec<Limited> {
        let mut all: Vec<_> = self.comparison.limited().collect();
        all.extend(self.wide.limited());
        all.extend(self.hung.limited());
        all.extend(self.flat.iter().flat_map(Flat::limited));
        all.push(self.weight.limited());
        all
    }
}

fn main() -> ExitCode {
    // cargo passes `--bench` only for benches: a test run must not measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    exit_code(Plan::read().and_then(|plan| {
        let report = run(&plan)?;
        print(&report, &plan);
        if let Some(file) = &plan.svg {
            std::fs::write(file, report.comparison.plot())?;
        }
        judge(&report.limited())
    }))
}

fn run(plan: &Plan) -> io::Result<Report> {
    let bench_dir = BenchDir::make()?;
    let mut machine = Machine::look()?;
    let mut weight = weight::weigh(&bench_dir)?;
    let agent = Program::agent(&bench_dir, "pairs")?;
    let comparison = lives::compare(&bench_dir, &agent, plan.lives, &mut weight)?;
    drop(agent);
    let wide = wide::measure(&bench_dir)?;
    let hung = hung::measure(&bench_dir)?;
    let flat = plan
        .mounts
        .iter()
        .map(|n| flat::measure(&bench_dir, *n))
        .collect::<io::Result<_>>()?;
    machine.load_after = load()?;
    Ok(Report {
        machine,
        weight,
        comparison,
        wide,
        hung,
        flat,
    })
}

fn print(report: &Report, plan: &Plan) {
    if plan.is_json {
        let all = json!({
            "machine": report.machine.to_json(),
            "weight": report.weight.to_json(),
            "calls": report.comparison.to_json(),
            "wide": report.wide.to_json(),
            "hung": report.hung.to_json(),
            "flat": report.flat.iter().map(Flat::to_json).collect::<Vec<_>>(),
        });
        println!("{all:#}");
    } else {
        println!("\n{}\n", report.machine);
        println!("{}", report.comparison);
        println!("{}", report.wide);
        println!("{}", report.hung);
        println!("{}", report.weight);
        for flat in &report.flat {
            println!("{flat}");
        }
    }
}
