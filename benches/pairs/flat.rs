//! Measures whether a call costs more on a node with many mounts. Blocks of lifecycles with and
//! without the mounts alternate, because mounts cannot be added and removed between two samples.
//!
//! The unrelated mounts are binds of a separate private tmpfs: binds of one shared filesystem would
//! be peers, and the kernel would walk all of them at each bind.

use std::fmt;
use std::io;

use belay_benches::{BenchDir, Call, Limited, Ours, Program, Samples, Volume, micros, ratio};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use serde_json::{Value, json};

use crate::lives::{at, live};

/// The number of blocks of each kind.
const BLOCKS: usize = 6;
const LIVES_A_BLOCK: usize = 40;
const STARTS_A_BLOCK: usize = 8;
/// The limit of a ratio: more than noise, and less than any growth with the number of mounts.
const RATIO_MAX: f64 = 1.5;

/// The row for the start of the agent, which reads the mount table.
const START: &str = "start";

/// The times of the calls without and with this many unrelated mounts.
pub(crate) struct Flat {
    mounts: usize,
    rows: Vec<(&'static str, Samples, Samples)>,
}

/// Measures belay-node on ext4 with 0 and with `mounts` unrelated mounts.
///
/// # Errors
/// Fails if a call or a mount fails.
pub(crate) fn measure(bench_dir: &BenchDir, mounts: usize) -> io::Result<Flat> {
    let mut rows: Vec<_> = Call::ALL
        .map(|call| (call.name(), Samples::default(), Samples::default()))
        .into();
    rows.push((START, Samples::default(), Samples::default()));
    let volume = {
        let agent = Program::agent(bench_dir, &format!("flat-{mounts}"))?;
        Volume::formatted(bench_dir, &agent, &format!("flat-{mounts}"), "ext4")?
    };
    for n in 0..2 * BLOCKS {
        let _turn = bench_dir.turn();
        let is_full = n % 2 == 1;
        let _unrelated = is_full
            .then(|| Unrelated::mount(bench_dir, mounts))
            .transpose()?;
        let mut note = |row: usize, time| {
            let (_, without, with) = &mut rows[row];
            if is_full {
                with.push(time)
            } else {
                without.push(time)
            }
        };
        for start in 0..STARTS_A_BLOCK {
            let agent = Program::agent(bench_dir, &format!("flat-{mounts}-{n}-{start}"))?;
            note(Call::ALL.len(), agent.first_answer);
        }
        // Start a new agent each time: it reads all mounts only when it starts.
        let agent = Program::agent(bench_dir, &format!("flat-{mounts}-{n}"))?;
        let mut ours = Ours::new(&agent.client, volume.clone());
        live(&mut ours, |_, _| {})?;
        for _ in 0..LIVES_A_BLOCK {
            live(&mut ours, |call, time| note(at(call), time))?;
        }
    }
    Ok(Flat { mounts, rows })
}

/// Many mounts that belong to no volume; removed when this is dropped.
struct Unrelated<'a> {
    bench_dir: &'a BenchDir,
    mounts: usize,
}

impl<'a> Unrelated<'a> {
    fn mount(bench_dir: &'a BenchDir, mounts: usize) -> io::Result<Self> {
        let top = bench_dir.directory("unrelated")?;
        let options = Some(c"size=64m,mode=0700");
        rustix::mount::mount("unrelated", &top, "tmpfs", MountFlags::empty(), options)?;
        rustix::mount::mount_change(&top, MountPropagationFlags::PRIVATE)?;
        let mut made = Self {
            bench_dir,
            mounts: 0,
        };
        let source = bench_dir.directory("unrelated/source")?;
        for n in 0..mounts {
            rustix::mount::mount_bind(&source, bench_dir.directory(&format!("unrelated/{n}"))?)?;
            made.mounts += 1;
        }
        Ok(made)
    }

    fn umount(&self) -> io::Result<()> {
        for n in 0..self.mounts {
            let path = self.bench_dir.path(&format!("unrelated/{n}"));
            rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)?;
        }
        rustix::mount::unmount(self.bench_dir.path("unrelated"), UnmountFlags::NOFOLLOW)?;
        Ok(())
    }
}

impl Drop for Unrelated<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.umount() {
            eprintln!("belay-benches: cannot unmount the unrelated mounts: {error}");
        }
    }
}

impl Flat {
    /// Returns each call's cost with these mounts, as a multiple of its cost without them. The
    /// start has no limit.
    pub(crate) fn limited(&self) -> impl Iterator<Item = Limited> {
        let calls = self.rows.iter().filter(|(call, ..)| *call != START);
        calls.map(|(call, without, with)| Limited {
            name: format!("{call}, {} mounts", self.mounts),
            ratio: ratio(with.p25(), without.p25()),
            limit: RATIO_MAX,
            noise: spread(without, with),
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|(call, without, with)| {
            json!({
                "call": call,
                "without_p25_us": micros(without.p25()),
                "with_p25_us": micros(with.p25()),
                "ratio": ratio(with.p25(), without.p25()),
                "spread": spread(without, with),
            })
        });
        json!({ "mounts": self.mounts, "rows": rows.collect::<Vec<_>>() })
    }
}

impl fmt::Display for Flat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{} unrelated mounts", self.mounts);
        writeln!(
            f,
            "{title:<22}{:>10}{:>10}{:>8}{:>8}",
            "none us", "all us", "ratio", "A/A"
        )?;
        for (call, without, with) in &self.rows {
            writeln!(
                f,
                "{call:<22}{:>10.1}{:>10.1}{:>8.2}{:>6.1} %",
                micros(without.p25()),
                micros(with.p25()),
                ratio(with.p25(), without.p25()),
                spread(without, with) * 100.0
            )?;
        }
        Ok(())
    }
}

/// Returns the larger difference of the two sides from themselves, between blocks: lasting load
/// affects whole blocks.
fn spread(without: &Samples, with: &Samples) -> f64 {
    without
        .spread_of_blocks(BLOCKS)
        .max(with.spread_of_blocks(BLOCKS))
}
