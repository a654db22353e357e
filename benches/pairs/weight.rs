//! What the agent weighs: pages, bytes on disk, and the time until it answers.

use std::fmt;
use std::io;

use belay_benches::{Agent, Memory, Place, binary};
use serde_json::{Value, json};

use crate::samples::{Samples, micros};

/// `VmRSS` that an agent may have that has not yet had a volume. The threads that wait for disks,
/// and what they read, come on top, for as long as they are wanted.
const RESIDENT_KIB_MAX: u64 = 5 * 1024;
const PROBES: usize = 10_000;
const STARTS: usize = 40;

/// Figures of one binary.
pub(crate) struct Weight {
    binary_bytes: u64,
    first_answer: Samples,
    after_start: Memory,
    after_probes: Memory,
    pub(crate) after_lives: Memory,
}

/// Starts agents and looks at them.
///
/// # Errors
/// When one does not start or answer.
pub(crate) fn weigh(place: &Place) -> io::Result<Weight> {
    let mut first_answer = Samples::default();
    for n in 0..STARTS {
        let _turn = place.turn();
        first_answer.push(Agent::start(place, &format!("start-{n}"))?.first_answer);
    }
    let agent = Agent::start(place, "weight")?;
    let after_start = agent.memory()?;
    for _ in 0..PROBES {
        let _turn = place.turn();
        agent.client.probe()?;
    }
    let after_probes = agent.memory()?;
    Ok(Weight {
        binary_bytes: std::fs::metadata(binary()?)?.len(),
        first_answer,
        after_start,
        after_probes,
        after_lives: after_probes,
    })
}

impl Weight {
    fn rows(&self) -> [(&'static str, Memory); 3] {
        [
            ("after start", self.after_start),
            ("after 10,000 probes", self.after_probes),
            ("after all lives", self.after_lives),
        ]
    }

    pub(crate) fn is_within_budget(&self) -> bool {
        self.after_start.peak_kib.max(self.after_probes.peak_kib) <= RESIDENT_KIB_MAX
    }

    pub(crate) fn to_json(&self) -> Value {
        let memory = self.rows().map(|(when, memory)| {
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
            "memory": memory,
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
        for (when, memory) in self.rows() {
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
        let verdict = if self.is_within_budget() {
            "kept"
        } else {
            "BROKEN"
        };
        writeln!(
            f,
            "{:<22}{RESIDENT_KIB_MAX:>10}{verdict:>20}",
            "budget of the first two"
        )?;
        writeln!(
            f,
            "\nfrom the start to the first answered Probe: {:.0} us (p25 of {STARTS}, A/A {:.1} %)",
            micros(self.first_answer.p25()),
            self.first_answer.spread() * 100.0
        )?;
        writeln!(f, "binary: {} bytes", self.binary_bytes)
    }
}
