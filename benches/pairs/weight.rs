//! The agent's memory, its binary's size, and its start time.

use std::fmt;
use std::io;

use belay_benches::{BenchDir, Limited, Memory, Program, Samples, binary, micros};
use serde_json::{Value, json};

/// Maximum `VmRSS`, in KiB, of an agent that has not handled a volume yet. The threads that wait
/// for disks, and their buffers, add to it while they run.
const RESIDENT_KIB_MAX: u64 = 5 * 1024;
const PROBES: usize = 10_000;
const STARTS: usize = 40;

/// The figures of belay-node.
pub(crate) struct Weight {
    binary_bytes: u64,
    first_answer: Samples,
    /// The peak memory of an agent that has not handled a volume yet, in KiB.
    peak_before_volumes_kib: u64,
    memory: Vec<(String, Memory)>,
}

/// Starts agents and measures them.
///
/// # Errors
/// Fails if an agent does not start or respond.
pub(crate) fn weigh(bench_dir: &BenchDir) -> io::Result<Weight> {
    let mut first_answer = Samples::default();
    for n in 0..STARTS {
        let _turn = bench_dir.turn();
        first_answer.push(Program::agent(bench_dir, &format!("start-{n}"))?.first_answer);
    }
    let agent = Program::agent(bench_dir, "weight")?;
    let after_start = agent.memory()?;
    for _ in 0..PROBES {
        let _turn = bench_dir.turn();
        agent.client.probe()?;
    }
    let after_probes = agent.memory()?;
    Ok(Weight {
        binary_bytes: std::fs::metadata(binary("belay-node")?)?.len(),
        first_answer,
        peak_before_volumes_kib: after_probes.peak_kib,
        memory: vec![
            ("after start".to_owned(), after_start),
            (format!("after {PROBES} probes"), after_probes),
        ],
    })
}

impl Weight {
    /// Adds the memory of an agent with volumes.
    pub(crate) fn note(&mut self, when: String, memory: Memory) {
        self.memory.push((when, memory));
    }

    /// Returns the peak memory before any volume, as a fraction of its limit.
    pub(crate) fn limited(&self) -> Limited {
        Limited {
            name: "memory without volumes".to_owned(),
            ratio: self.peak_before_volumes_kib as f64 / RESIDENT_KIB_MAX as f64,
            limit: 1.0,
            noise: 0.0,
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        let memory = self.memory.iter().map(|(when, memory)| {
            json!({
                "when": when,
                "resident_kib": memory.resident_kib,
                "anonymous_kib": memory.anonymous_kib,
                "peak_kib": memory.peak_kib,
            })
        });
        json!({
            "binary_bytes": self.binary_bytes,
            "first_answer_p25_us": micros(self.first_answer.p25()),
            "first_answer_spread": self.first_answer.spread(),
            "resident_kib_max": RESIDENT_KIB_MAX,
            "memory": memory.collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<22}{:>10}{:>10}{:>10}",
            "memory, KiB", "VmRSS", "RssAnon", "VmHWM"
        )?;
        for (when, memory) in &self.memory {
            let Memory {
                resident_kib,
                anonymous_kib,
                peak_kib,
            } = memory;
            writeln!(
                f,
                "{when:<22}{resident_kib:>10}{anonymous_kib:>10}{peak_kib:>10}"
            )?;
        }
        writeln!(f, "{:<22}{RESIDENT_KIB_MAX:>10}", "limit without volumes")?;
        writeln!(
            f,
            "\nfrom the start to the first answered Probe: {:.0} us (p25 of {STARTS}, A/A {:.1} %)",
            micros(self.first_answer.p25()),
            self.first_answer.spread() * 100.0
        )?;
        writeln!(f, "binary: {} bytes", self.binary_bytes)
    }
}
