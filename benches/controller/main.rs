//! Measures belay-controller with the backend `local`: each call with few and with many volumes, in
//! alternating samples; then many concurrent calls; and the memory. Fails if a limit is exceeded.
//!
//! `BELAY_BENCH_VOLUMES` is the number of volumes (10,000), `BELAY_BENCH_OUTPUT=json` prints JSON.

#![expect(clippy::print_stdout, reason = "the program prints its figures")]

mod calls;
mod flat;
mod wide;

use std::io;
use std::process::ExitCode;

use belay_benches::{BenchDir, Limited, Machine, exit_code, judge, load};
use serde_json::json;

/// Minimum number of volumes, since fewer are not representative of many.
const VOLUMES_MIN: usize = 1_000;

fn main() -> ExitCode {
    // cargo passes `--bench` only for benches: a test run must not measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    exit_code(run())
}

fn run() -> io::Result<()> {
    let volumes = volumes()?;
    let bench_dir = BenchDir::make()?;
    let mut machine = Machine::look()?;
    let flat = flat::measure(&bench_dir, volumes)?;
    let wide = wide::measure(&bench_dir)?;
    machine.load_after = load()?;
    if std::env::var_os("BELAY_BENCH_OUTPUT").is_some_and(|value| value == "json") {
        let all = json!({
            "machine": machine.to_json(),
            "flat": flat.to_json(),
            "wide": wide.to_json(),
        });
        println!("{all:#}");
    } else {
        println!("\n{machine}\n\n{flat}\n{wide}");
    }
    let all: Vec<Limited> = flat.limited().chain(wide.limited()).collect();
    judge(&all)
}

fn volumes() -> io::Result<usize> {
    let Ok(text) = std::env::var("BELAY_BENCH_VOLUMES") else {
        return Ok(10_000);
    };
    let number = text.parse().ok().filter(|n| *n >= VOLUMES_MIN);
    number.ok_or_else(|| {
        let why = format!("BELAY_BENCH_VOLUMES: {text:?} is not a number from {VOLUMES_MIN}");
        io::Error::other(why)
    })
}
