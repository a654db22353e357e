//! `Probe` under criterion: belay-node on a new connection and on a kept one, beside one byte there
//! and back over the same kind of socket.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use belay_benches::{Agent, Echo, Place, exit_code};
use criterion::Criterion;

/// Samples of a bench; with so many, criterion asks for seconds.
const SAMPLES: usize = 50;
const MEASURE: Duration = Duration::from_secs(2);
const WARM_UP: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> io::Result<()> {
    let place = Place::make()?;
    let agent = Agent::start(&place, "probe")?;
    let kept = agent.client.keep()?;
    let echo = Echo::start(&place)?;
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(WARM_UP)
        .measurement_time(MEASURE)
        .configure_from_args();
    bench(&mut criterion, &place, "new connection/belay-node", || {
        agent.client.probe()
    });
    bench(&mut criterion, &place, "new connection/bare", || {
        echo.on_new()
    });
    bench(&mut criterion, &place, "kept connection/belay-node", || {
        kept.probe()
    });
    bench(&mut criterion, &place, "kept connection/bare", || {
        echo.on_kept()
    });
    criterion.final_summary();
    Ok(())
}

fn bench(
    criterion: &mut Criterion,
    place: &Place,
    name: &str,
    mut call: impl FnMut() -> io::Result<Duration>,
) {
    criterion.bench_function(&format!("probe/{name}"), |bencher| {
        bencher.iter_custom(|times| {
            let _turn = place.turn();
            let sum: io::Result<Duration> = (0..times).map(|_| call()).sum();
            sum.unwrap_or_else(|error| place.give_up(&error))
        });
    });
}
