//! Many concurrent creates: their rate, their latency, and the memory that they take.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use belay_benches::{BenchDir, Limited, Memory, Program, micros};
use serde_json::{Value, json};

use crate::calls::fill;

const WIDTHS: [usize; 4] = [1, 16, 64, 100];
const CALLS: usize = 1_000;
/// The time after which the allocator should have returned unused memory to the kernel.
const REST: Duration = Duration::from_secs(15);

/// The memory limits of BUDGET.md, in KiB: during the most concurrent calls, and idle after them.
const RESIDENT_KIB_MAX: [u64; 2] = [40 << 10, 16 << 10];

/// The figures of one controller.
pub(crate) struct Wide {
    rows: Vec<Row>,
    idle: Memory,
    rested: Memory,
}

struct Row {
    width: usize,
    per_second: f64,
    median: Duration,
    p99: Duration,
    memory: Memory,
}

/// Calls one controller, with an increasing number of concurrent calls.
///
/// # Errors
/// Fails if the controller does not start, or if a call fails.
pub(crate) fn measure(bench_dir: &BenchDir) -> io::Result<Wide> {
    let controller = Program::controller(bench_dir, "wide")?;
    let idle = controller.memory()?;
    let kept = controller.client.keep()?;
    let mut rows = Vec::new();
    for width in WIDTHS {
        let _turn = bench_dir.turn();
        let start = Instant::now();
        let mut times = fill(&kept, &format!("wide-{width}"), width, CALLS)?;
        let took = start.elapsed();
        times.sort_unstable();
        rows.push(Row {
            width,
            per_second: CALLS as f64 / took.as_secs_f64(),
            median: times[CALLS / 2],
            p99: times[CALLS * 99 / 100],
            memory: controller.memory()?,
        });
    }
    kept.rest(REST);
    let rested = controller.memory()?;
    Ok(Wide { rows, idle, rested })
}

impl Wide {
    /// Returns the peak memory and the memory afterwards, as fractions of their limits.
    pub(crate) fn limited(&self) -> impl Iterator<Item = Limited> {
        let peaks = self.rows.iter().map(|row| row.memory.peak_kib);
        let peak = peaks.max().unwrap_or_default();
        let names = ["memory, peak", "memory, idle afterwards"];
        let resident = [peak, self.rested.resident_kib].into_iter();
        let all = names.into_iter().zip(resident).zip(RESIDENT_KIB_MAX);
        all.map(|((name, resident), limit)| Limited {
            name: name.to_owned(),
            ratio: resident as f64 / limit as f64,
            limit: 1.0,
            noise: 0.0,
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            json!({
                "width": row.width,
                "per_second": row.per_second,
                "median_us": micros(row.median),
                "p99_us": micros(row.p99),
                "resident_kib": row.memory.resident_kib,
                "peak_kib": row.memory.peak_kib,
            })
        });
        json!({
            "creates": rows.collect::<Vec<_>>(),
            "idle_kib": self.idle.resident_kib,
            "rested_kib": self.rested.resident_kib,
        })
    }
}

impl fmt::Display for Wide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<16}{:>10}{:>12}{:>12}{:>12}{:>12}",
            "creates at once", "a second", "median us", "p99 us", "VmRSS KiB", "VmHWM KiB"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<16}{:>10.0}{:>12.0}{:>12.0}{:>12}{:>12}",
                row.width,
                row.per_second,
                micros(row.median),
                micros(row.p99),
                row.memory.resident_kib,
                row.memory.peak_kib
            )?;
        }
        let Memory { resident_kib, .. } = self.idle;
        writeln!(f, "idle before them: {resident_kib} KiB")?;
        let Memory { resident_kib, .. } = self.rested;
        writeln!(f, "{} s after them: {resident_kib} KiB", REST.as_secs())
    }
}
