//! Measures whether a call costs more with many volumes.

use std::fmt;
use std::io;

use belay_benches::{BenchDir, Limited, Memory, Program, Samples, micros, ratio};
use serde_json::{Value, json};

use crate::calls::{CALLS, Life, fill};

/// The number of volumes of the small side: enough for a full page of ListVolumes.
const FEW: usize = 100;
const ROUNDS: usize = 200;
const FILL_WIDTH: usize = 16;
/// The limit of each call's ratio, as in BUDGET.md.
const RATIO_MAX: f64 = 1.5;

/// The times of each call, with few and with many volumes.
pub(crate) struct Flat {
    volumes: usize,
    rows: Vec<(&'static str, [Samples; 2])>,
    memory: [Memory; 2],
}

/// Fills two controllers, and calls them alternately.
///
/// # Errors
/// Fails if a controller does not start, or if a call fails.
pub(crate) fn measure(bench_dir: &BenchDir, volumes: usize) -> io::Result<Flat> {
    let controllers = [
        Program::controller(bench_dir, "few")?,
        Program::controller(bench_dir, "many")?,
    ];
    let kept = [controllers[0].client.keep()?, controllers[1].client.keep()?];
    for (kept, count) in kept.iter().zip([FEW, volumes]) {
        fill(kept, "filled", FILL_WIDTH, count)?;
    }
    let mut rows: Vec<_> = CALLS.map(|call| (call, <[Samples; 2]>::default())).into();
    let mut lives = [0, 1].map(|side| Life {
        kept: &kept[side],
        id: String::new(),
    });
    for round in 0..ROUNDS {
        let _turn = bench_dir.turn();
        let name = format!("life-{round}");
        for (call, samples) in &mut rows {
            // Each side is first in half of the rounds.
            for side in [round % 2, 1 - round % 2] {
                samples[side].push(lives[side].run(call, &name)?);
            }
        }
    }
    let memory = [controllers[0].memory()?, controllers[1].memory()?];
    Ok(Flat {
        volumes,
        rows,
        memory,
    })
}

impl Flat {
    /// Returns each call's cost with many volumes, as a multiple of its cost with few.
    pub(crate) fn limited(&self) -> impl Iterator<Item = Limited> {
        self.rows.iter().map(|(call, [few, many])| Limited {
            name: format!("{call}, {} volumes", self.volumes),
            ratio: ratio(many.p25(), few.p25()),
            limit: RATIO_MAX,
            noise: few.noise().max(many.noise()),
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let calls = self.rows.iter().map(|(call, [few, many])| {
            json!({
                "call": call,
                "few_p25_us": micros(few.p25()),
                "many_p25_us": micros(many.p25()),
                "ratio": ratio(many.p25(), few.p25()),
                "spread": few.spread().max(many.spread()),
            })
        });
        json!({
            "few": FEW,
            "many": self.volumes,
            "calls": calls.collect::<Vec<_>>(),
            "resident_kib": self.memory.map(|memory| memory.resident_kib),
        })
    }
}

impl fmt::Display for Flat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{} volumes", self.volumes);
        writeln!(
            f,
            "{title:<16}{FEW:>8} us{:>10} us{:>8}{:>8}",
            self.volumes, "ratio", "A/A"
        )?;
        for (call, [few, many]) in &self.rows {
            writeln!(
                f,
                "{call:<16}{:>11.1}{:>13.1}{:>8.2}{:>6.1} %",
                micros(few.p25()),
                micros(many.p25()),
                ratio(many.p25(), few.p25()),
                few.spread().max(many.spread()) * 100.0
            )?;
        }
        let [few, many] = self.memory.map(|memory| memory.resident_kib);
        writeln!(f, "{:<16}{few:>11}{many:>13}", "VmRSS, KiB")
    }
}
