//! Many concurrent calls: 64 callers, each on a new connection as the kubelet's calls are, and each
//! for its own volume. Their floor is the same number of concurrent Probes, in alternating rounds.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use belay_bed::requests;
use belay_benches::{
    BenchDir, Call, Limited, Memory, Ours, Program, Samples, Side as _, Volume, micros, ratio,
    with_deadline,
};
use belay_proto::csi::v1 as csi;
use csi::identity_client::IdentityClient;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use serde_json::{Value, json};
use tonic::Status;
use tonic::transport::Channel;

use crate::lives::at;

const WIDTH: usize = 64;
const ROUNDS: usize = 48;
/// The calls of each round; Probe is the first and the last equally often.
const CALLS: [Call; 4] = [Call::Probe, Call::Stats, Call::Unpublish, Call::Publish];
const MEDIAN: usize = 50;
const TAIL: usize = 99;
/// The maximum time of a statistics call as a multiple of a Probe, for each percentile.
const STATS_MAX: f64 = 2.0;

/// The times of each call, and the memory.
pub(crate) struct Wide {
    calls: [Samples; Call::ALL.len()],
    staged: Memory,
    after: Memory,
}

/// Measures an agent with 64 ext4 volumes.
///
/// # Errors
/// Fails if a call fails.
pub(crate) fn measure(bench_dir: &BenchDir) -> io::Result<Wide> {
    let agent = Program::agent(bench_dir, "wide")?;
    let volumes = (0..WIDTH).map(|n| Volume::formatted(bench_dir, &agent, &wide(n), "ext4"));
    let volumes: Arc<[Volume]> = volumes.collect::<io::Result<_>>()?;
    let one_by_one = |calls: &[Call]| {
        volumes.iter().try_for_each(|volume| {
            let _turn = bench_dir.turn();
            let mut ours = Ours::new(&agent.client, volume.clone());
            calls.iter().try_for_each(|call| ours.run(*call).map(drop))
        })
    };
    one_by_one(&[Call::Stage, Call::Publish])?;
    let staged = agent.memory()?;
    let mut calls = <[Samples; Call::ALL.len()]>::default();
    for round in 0..ROUNDS {
        // Do not measure the first statistics after a publish, which need a separate thread.
        one_by_one(&[Call::Stats])?;
        let mut order = CALLS;
        order.rotate_left(round % 2);
        for call in order {
            let _turn = bench_dir.turn();
            let volumes = Arc::clone(&volumes);
            let times = agent.client.at_once(WIDTH, 0..WIDTH, move |channel, n| {
                make(channel, call, volumes[n].clone())
            })?;
            calls[at(call)].extend(times);
        }
    }
    let after = agent.memory()?;
    one_by_one(&[Call::Unpublish, Call::Unstage])?;
    Ok(Wide {
        calls,
        staged,
        after,
    })
}

fn wide(n: usize) -> String {
    format!("wide-{n}")
}

async fn make(channel: Channel, call: Call, volume: Volume) -> Result<(), Status> {
    let id = volume.id.as_str();
    let mut node = NodeClient::new(channel.clone());
    match call {
        Call::Publish => {
            let capability = requests::capability(volume.fs_type, Mode::SingleNodeWriter);
            let (none, staging) = (HashMap::new(), &volume.staging);
            let request = requests::publish(id, none, staging, &volume.target, capability);
            node.node_publish_volume(with_deadline(request))
                .await
                .map(drop)
        }
        Call::Stats => {
            let request = requests::stats(id, &volume.target, Path::new(""));
            node.node_get_volume_stats(with_deadline(request))
                .await
                .map(drop)
        }
        Call::Unpublish => {
            let request = requests::unpublish(id, &volume.target);
            node.node_unpublish_volume(with_deadline(request))
                .await
                .map(drop)
        }
        Call::Probe | Call::Stage | Call::Unstage => IdentityClient::new(channel)
            .probe(with_deadline(csi::ProbeRequest {}))
            .await
            .map(drop),
    }
}

/// A line of the table.
struct Line {
    call: Call,
    median_us: f64,
    tail_us: f64,
    /// Both percentiles as multiples of a Probe.
    of_probe: [f64; 2],
    /// The larger difference of the two calls from themselves: every other round compared with the
    /// others.
    noise: [f64; 2],
}

impl Wide {
    fn lines(&self) -> impl Iterator<Item = Line> {
        let probe = &self.calls[at(Call::Probe)];
        CALLS.into_iter().map(move |call| {
            let own = &self.calls[at(call)];
            let of = |percent| ratio(own.percentile(percent), probe.percentile(percent));
            let noise = |percent| {
                let between = |samples: &Samples| samples.spread_of(WIDTH, percent);
                between(own).max(between(probe))
            };
            Line {
                call,
                median_us: micros(own.percentile(MEDIAN)),
                tail_us: micros(own.percentile(TAIL)),
                of_probe: [of(MEDIAN), of(TAIL)],
                noise: [noise(MEDIAN), noise(TAIL)],
            }
        })
    }

    /// Returns the ratios of statistics for both percentiles.
    pub(crate) fn limited(&self) -> impl Iterator<Item = Limited> {
        let stats = self.lines().filter(|line| line.call == Call::Stats);
        stats.flat_map(|line| {
            let names = ["p50", "p99"].map(|name| format!("stats at {WIDTH} wide, {name}"));
            let all = names.into_iter().zip(line.of_probe).zip(line.noise);
            all.map(|((name, ratio), noise)| Limited {
                name,
                ratio,
                limit: STATS_MAX,
                noise,
            })
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let calls = self.lines().map(|line| {
            json!({
                "call": line.call.name(),
                "p50_us": line.median_us,
                "p99_us": line.tail_us,
                "of_probe": line.of_probe,
                "spread": line.noise,
            })
        });
        json!({
            "width": WIDTH,
            "calls": calls.collect::<Vec<_>>(),
            "staged_kib": self.staged.resident_kib,
            "after_kib": self.after.resident_kib,
            "peak_kib": self.after.peak_kib,
        })
    }
}

impl fmt::Display for Wide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{WIDTH} at once, ext4");
        writeln!(
            f,
            "{title:<22}{:>10}{:>10}{:>8}{:>8}{:>14}{:>8}",
            "p50 us", "p99 us", "x Probe", "A/A", "p99 x Probe", "A/A"
        )?;
        for line in self.lines() {
            let ([median, tail], noise) = (line.of_probe, line.noise.map(|it| it * 100.0));
            writeln!(
                f,
                "{:<22}{:>10.0}{:>10.0}{median:>8.2}{:>6.1} %{tail:>14.2}{:>6.1} %",
                line.call.name(),
                line.median_us,
                line.tail_us,
                noise[0],
                noise[1]
            )?;
        }
        writeln!(
            f,
            "VmRSS with {WIDTH} volumes staged and published: {} KiB; after these calls: {}",
            self.staged.resident_kib, self.after.resident_kib
        )
    }
}
