//! Measures `Probe` with criterion: belay-node on a new connection and on a connection that is kept
//! open, compared with one byte in each direction over the same kind of socket.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use belay_benches::{BenchDir, Echo, Program, exit_code};
use criterion::Criterion;

/// Samples per bench; with more, criterion takes seconds.
const SAMPLES: usize = 50;
const MEASURE: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> io::Result<()> {
    let bench_dir = BenchDir::make()?;
    let agent = Program::agent(&bench_dir, "probe")?;
    let kept = agent.client.keep()?;
    let echo = Echo::start(&bench_dir)?;
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(WARM_UP)
        .measurement_time(MEASURE)
        .configure_from_args();
    bench(
        &mut criterion,
        &bench_dir,
        "new connection/belay-node",
        || agent.client.probe(),
    );
    bench(&mut criterion, &bench_dir, "new connection/bare", || {
        echo.on_new()
    });
    bench(
        &mut criterion,
        &bench_dir,
        "kept connection/belay-node",
        || kept.probe(),
    );
    bench(&mut criterion, &bench_dir, "kept connection/bare", || {
        echo.on_kept()
    });
    criterion.final_summary();
    Ok(())
}

fn bench(
    criterion: &mut Criterion,
    bench_dir: &BenchDir,
    name: &str,
    mut call: impl FnMut() -> io::Result<Duration>,
) {
    criterion.bench_function(&format!("probe/{name}"), |bencher| {
        bencher.iter_custom(|times| {
            let _turn = bench_dir.turn();
            let sum: io::Result<Duration> = (0..times).map(|_| call()).sum();
            sum.unwrap_or_else(|error| bench_dir.abort(&error))
        });
    });
}
