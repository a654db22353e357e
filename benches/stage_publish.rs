//! Measures the calls of a volume's lifecycle with criterion: through belay-node, and as bare
//! system calls. Only the call is timed, not its preparation. The volumes are files on loop
//! devices, a disk that the agent finds by its serial number, and a directory of an NFS server.
//!
//! criterion measures the two sides one after the other, so varying load may affect only one side.
//! For a ratio, use `pairs`.
//!
//! Disks are volumes if they have the serial numbers of `storage.rs`. `BELAY_BENCH_NFS` is the NFS
//! export, as `ADDRESS:/DIRECTORY`. Volumes that this machine lacks are left out, which the program
//! reports; `guest.sh` provides both in a guest.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use belay_benches::{
    Bare, BenchDir, Call, Echo, Ours, Program, Side, Storage, Volume, exit_code, total,
};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, SamplingMode};

/// The number of samples: a lifecycle takes milliseconds, most of them untimed, and criterion plans
/// by all of them. So a few samples must suffice.
const SAMPLES: usize = 20;
const MEASURE: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    exit_code(run())
}

fn run() -> io::Result<()> {
    let bench_dir = BenchDir::make()?;
    let echo = Echo::start(&bench_dir)?;
    let mut criterion = Criterion::default()
        .sample_size(SAMPLES)
        .warm_up_time(WARM_UP)
        .measurement_time(MEASURE)
        .configure_from_args();
    let mut measure = |kind: &str, agent: &Program<'_>, [ours, bare]: [Volume; 2]| {
        let calls = Call::ALL.into_iter().filter(|call| *call != Call::Probe);
        let calls: Vec<_> = calls.filter(|call| ours.has(*call)).collect();
        let mut ours = Ours::new(&agent.client, ours);
        let mut bare = Bare::new(bare, &echo);
        for call in calls {
            let mut group = criterion.benchmark_group(format!("{kind}/{}", call.name()));
            // Use the same number of calls in each sample: growing samples would take too long.
            group.sampling_mode(SamplingMode::Flat);
            bench(&mut group, &bench_dir, "belay-node", &mut ours, call);
            bench(&mut group, &bench_dir, "bare", &mut bare, call);
            group.finish();
        }
    };
    let agent = Program::agent(&bench_dir, "files")?;
    for fs_type in ["ext4", "xfs", "btrfs", "block"] {
        let id = |side: &str| format!("bench-{fs_type}-{side}");
        let volume = |side: &str| Volume::formatted(&bench_dir, &agent, &id(side), fs_type);
        measure(fs_type, &agent, [volume("ours")?, volume("bare")?]);
    }
    for (kind, driver, fs_type, storage) in [
        ("disk", "openstack", "ext4", Storage::disks()?),
        ("nfs", "nfs", "nfs", Storage::directories(&bench_dir)?),
    ] {
        let [ours, bare] = match storage {
            Ok(storage) => storage,
            Err(why) => {
                eprintln!("belay-benches: {kind} is left out: {why}");
                continue;
            }
        };
        let agent = Program::agent_of(&bench_dir, kind, driver)?;
        let volume = |side: &str, storage| {
            let id = format!("bench-{kind}-{side}");
            Volume::on(&bench_dir, &agent, &id, fs_type, storage)
        };
        let volumes = [volume("ours", ours)?, volume("bare", bare)?];
        measure(kind, &agent, volumes);
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
