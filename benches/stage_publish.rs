//! Measures the calls of a volume's lifecycle with criterion: through belay-node, and as bare
//! system calls. Only the call is timed, not its preparation.
//!
//! criterion measures the two sides one after the other, so varying load may affect only one side.
//! For a ratio, use `pairs`.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use belay_benches::{Bare, BenchDir, Call, Echo, Ours, Program, Side, Volume, exit_code, total};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode};

/// The number of samples: a lifecycle takes milliseconds, most of them untimed, but criterion plans
/// by timed work. So a few samples in a short time must suffice.
const SAMPLES: usize = 20;
const MEASURE: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> io::Result<()> {
    let bench_dir = BenchDir::make()?;
    let agent = Program::agent(&bench_dir, "stage_publish")?;
    let echo = Echo::start(&bench_dir)?;
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(WARM_UP)
        .measurement_time(MEASURE)
        .configure_from_args();
    for fs_type in ["ext4", "xfs"] {
        let volume = |side: &str| {
            Volume::formatted(
                &bench_dir,
                &agent,
                &format!("bench-{fs_type}-{side}"),
                fs_type,
            )
        };
        let mut ours = Ours::new(&agent.client, volume("ours")?);
        let mut bare = Bare::new(volume("bare")?, &echo);
        for call in Call::ALL.into_iter().filter(|call| *call != Call::Probe) {
            let mut group = criterion.benchmark_group(format!("{fs_type}/{}", call.name()));
            // Use the same number of calls in each sample: growing samples would take too long.
            group.sampling_mode(SamplingMode::Flat);
            bench(&mut group, &bench_dir, "belay-node", &mut ours, call);
            bench(&mut group, &bench_dir, "bare", &mut bare, call);
            group.finish();
        }
    }
    criterion.final_summary();
    Ok(())
}

fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    bench_dir: &BenchDir,
    name: &str,
    side: &mut impl Side,
    call: Call,
) {
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            let _turn = bench_dir.turn();
            total(side, call, times).unwrap_or_else(|error| bench_dir.abort(&error))
        });
    });
}
