//! The comparison: the lifecycle of a volume through belay-node, and of a similar volume by system
//! calls, in alternating samples. Probes are compared in the same way.

use std::fmt;
use std::io;
use std::time::Duration;

use belay_benches::{
    Bare, BenchDir, Call, Echo, Limited, Ours, Plot, Program, Row, Samples, Side, VOLUME_BYTES,
    Volume, head, micros,
};
use serde_json::{Value, json};

use crate::weight::Weight;

/// The number of consecutive Probes per lifecycle.
const PROBES_A_LIFE: usize = 5;
/// The number of publishes per lifecycle. The first is not counted, because on the bare side a
/// process has just run and left the caches cold.
const PUBLISHED_A_LIFE: usize = 3;

/// The times of all calls, and of losetup.
pub(crate) struct Comparison {
    lives: usize,
    rows: Vec<Row>,
    repeated: usize,
    attach: Samples,
    search: Samples,
}

/// Compares Probes, and the lifecycles of volumes with ext4 and xfs.
///
/// # Errors
/// Fails if a call fails.
pub(crate) fn compare(
    bench_dir: &BenchDir,
    agent: &Program<'_>,
    lives: usize,
    weight: &mut Weight,
) -> io::Result<Comparison> {
    let echo = Echo::start(bench_dir)?;
    let mut all = Comparison {
        lives,
        rows: probes(bench_dir, agent, &echo, lives * PROBES_A_LIFE)?,
        repeated: 0,
        attach: Samples::default(),
        search: Samples::default(),
    };
    for fs_type in ["ext4", "xfs"] {
        let volume =
            |side| Volume::formatted(bench_dir, agent, &format!("{fs_type}-{side}"), fs_type);
        let mut ours = Ours::new(&agent.client, volume("ours")?);
        let mut bare = Bare::new(volume("bare")?, &echo);
        let mut calls = Call::ALL.map(|call| Row::new(format!("{fs_type} {}", call.name())));
        for n in 0..lives {
            let _turn = bench_dir.turn();
            // The second side profits from the caches of the first, so the two alternate.
            if n % 2 == 0 {
                live(&mut ours, |call, time| calls[at(call)].ours.push(time))?;
            }
            live(&mut bare, |call, time| calls[at(call)].bare.push(time))?;
            if n % 2 == 1 {
                live(&mut ours, |call, time| calls[at(call)].ours.push(time))?;
            }
        }
        let probe = &calls[at(Call::Probe)].ours;
        let (empty_call, empty_noise) = (probe.p25(), probe.noise());
        for call in Call::ALL.into_iter().filter(|call| *call != Call::Probe) {
            let row = &mut calls[at(call)];
            row.empty_call = empty_call;
            row.empty_noise = empty_noise;
            row.limit = limit(fs_type, call);
        }
        weight.note(format!("after {lives} {fs_type} lives"), agent.memory()?);
        all.rows.extend(calls);
        all.repeated += ours.repeated;
        all.attach.extend(bare.attach);
        all.search.extend(bare.search);
    }
    Ok(all)
}

/// Runs one lifecycle. Passes the time of every call that counts to `note`. The Probes, the
/// baseline of the other calls, are made between them: consecutive Probes would be faster, with
/// warm caches.
///
/// # Errors
/// Fails if a call fails.
pub(crate) fn live(side: &mut impl Side, mut note: impl FnMut(Call, Duration)) -> io::Result<()> {
    note(Call::Stage, side.run(Call::Stage)?);
    for time in 0..PUBLISHED_A_LIFE {
        for call in [Call::Publish, Call::Probe, Call::Stats, Call::Unpublish] {
            // The kubelet reads statistics every minute, and the first response is slower.
            if call == Call::Stats {
                side.run(call)?;
            }
            let took = side.run(call)?;
            if time > 0 {
                note(call, took);
            }
        }
    }
    note(Call::Unstage, side.run(Call::Unstage)?);
    Ok(())
}

/// Returns the limit of a call as a multiple of its floor, as in BUDGET.md.
fn limit(fs_type: &str, call: Call) -> Option<f64> {
    match (fs_type, call) {
        (_, Call::Probe) => None,
        ("ext4", Call::Stage) => Some(2.5),
        (_, Call::Publish | Call::Unpublish) => Some(2.0),
        (_, Call::Stage | Call::Stats | Call::Unstage) => Some(1.5),
    }
}

/// Returns the index of a call in [`Call::ALL`].
pub(crate) fn at(call: Call) -> usize {
    Call::ALL
        .iter()
        .position(|c| *c == call)
        .unwrap_or_default()
}

/// Measures consecutive Probes, which are the best case.
fn probes(
    bench_dir: &BenchDir,
    agent: &Program<'_>,
    echo: &Echo,
    times: usize,
) -> io::Result<Vec<Row>> {
    let (mut on_kept, mut on_new) = (Row::new("probes, kept"), Row::new("probes in a row"));
    let kept = agent.client.keep()?;
    for _ in 0..times {
        let _turn = bench_dir.turn();
        on_kept.ours.push(kept.probe()?);
        on_kept.bare.push(echo.on_kept()?);
        on_new.ours.push(agent.client.probe()?);
        on_new.bare.push(echo.on_new()?);
    }
    Ok(vec![on_kept, on_new])
}

impl Comparison {
    /// Returns the ratios that have a limit.
    pub(crate) fn limited(&self) -> impl Iterator<Item = Limited> {
        self.rows.iter().filter_map(Row::limited)
    }

    /// Returns a picture of the calls on ext4.
    pub(crate) fn plot(&self) -> String {
        let (rows, fs_type) = (&self.rows, "ext4");
        Plot { rows, fs_type }.to_string()
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "lives": self.lives,
            "repeated": self.repeated,
            "rows": self.rows.iter().map(Row::to_json).collect::<Vec<_>>(),
            "losetup_p25_us": micros(self.attach.p25()),
            "losetup_search_p25_us": micros(self.search.p25()),
        })
    }
}

const LEGEND: &str = "\
ours: a new connection for every call, as the kubelet's; bare: system calls
█ the bare calls   ▒ a Probe made the same way   ░ what belay-node adds
floor: the bare calls and a Probe; A/A: a side against itself";

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (lives, gib) = (self.lives, VOLUME_BYTES >> 30);
        writeln!(
            f,
            "{lives} lives a filesystem, {gib} GiB on a loop device over tmpfs, p25"
        )?;
        writeln!(f, "{LEGEND}\n\n{}", head())?;
        for row in &self.rows {
            writeln!(f, "{row}")?;
        }
        let (attach, search) = (micros(self.attach.p25()), micros(self.search.p25()));
        writeln!(
            f,
            "\nthe bare stage begins with a bound loop device, ours binds it:"
        )?;
        writeln!(
            f,
            "losetup finds and binds one in {attach:.0} us, only finds one in {search:.0}"
        )?;
        writeln!(f, "calls ABORTED and retried: {}", self.repeated)
    }
}
