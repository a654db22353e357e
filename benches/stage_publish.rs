//! The calls of a volume's life under criterion: by belay-node, and beside each the bare system
//! calls. Only the call is timed, not what makes it possible once more.
//!
//! criterion measures one function after the other, so load that comes and goes is in one and not
//! in the other: for a ratio see `pairs`.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use belay_benches::{Agent, Bare, Call, Echo, Ours, Place, Side, Volume, exit_code, total};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode};

/// A life takes milliseconds, most of them not timed, and criterion plans by what is timed: so
/// there are few samples in a short time.
const SAMPLES: usize = 20;
const MEASURE: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> io::Result<()> {
    let place = Place::make()?;
    let agent = Agent::start(&place, "stage_publish")?;
    let echo = Echo::start(&place)?;
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(WARM_UP)
        .measurement_time(MEASURE)
        .configure_from_args();
    for fs_type in ["ext4", "xfs"] {
        let volume = |side: &str| {
            Volume::formatted(&place, &agent, &format!("bench-{fs_type}-{side}"), fs_type)
        };
        let mut ours = Ours::new(&agent.client, volume("ours")?);
        let mut bare = Bare::new(volume("bare")?, &echo);
        for call in Call::ALL.into_iter().filter(|call| *call != Call::Probe) {
            let mut group = criterion.benchmark_group(format!("{fs_type}/{}", call.name()));
            // As many calls in each sample: what grows from sample to sample takes too long here.
            group.sampling_mode(SamplingMode::Flat);
            bench(&mut group, &place, "belay-node", &mut ours, call);
            bench(&mut group, &place, "bare", &mut bare, call);
            group.finish();
        }
    }
    criterion.final_summary();
    Ok(())
}

fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    place: &Place,
    name: &str,
    side: &mut impl Side,
    call: Call,
) {
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|times| {
            let _turn = place.turn();
            total(side, call, times).unwrap_or_else(|error| place.give_up(&error))
        });
    });
}
