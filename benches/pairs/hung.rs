//! Measures whether a faulty volume delays calls for other volumes: its filesystem is frozen, has
//! shut down, or waits for a disk that does not respond. Blocks with and without the fault
//! alternate. In both, another caller constantly reads the statistics of that volume, unless the
//! fault unpublishes it.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use belay_benches::{
    BenchDir, Call, Client, Limited, Ours, Program, Samples, Side as _, Volume, micros, ratio,
};
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};

/// The number of blocks with and without each fault.
const BLOCKS: usize = 8;
const OTHERS: usize = 4;
/// The number of rounds in a block, each with all other volumes.
const ROUNDS: usize = 25;
const SAMPLES_A_BLOCK: usize = OTHERS * ROUNDS;
const STORAGE_BYTES: u64 = 8 << 30;
/// The pause after a fault begins: the agent first waits a second for a hung call.
const SLOW: Duration = Duration::from_millis(1_200);
/// The maximum ratio of each call's percentiles with and without the fault.
const RATIO_MAX: f64 = 1.5;
/// The maximum time of a call during a fault, unless a call without the fault exceeds it, too.
const SLOWEST: Duration = Duration::from_millis(500);
const QUARTER: usize = 25;
const TAIL: usize = 99;
const ALL: usize = 100;

/// A script that freezes a filesystem, and thaws it when its input ends, even if this program was
/// killed.
const FREEZE: &str = r#"fsfreeze --freeze "$1" && echo frozen && cat; fsfreeze --unfreeze "$1""#;

/// The timed calls for a healthy volume. The first statistics after a publish check more.
const ROWS: [(&str, Call); 5] = [
    ("probe", Call::Probe),
    ("unpublish", Call::Unpublish),
    ("publish", Call::Publish),
    ("first stats", Call::Stats),
    ("stats", Call::Stats),
];

/// A fault of one volume.
#[derive(Clone, Copy)]
enum Trouble {
    Frozen,
    ShutDown,
    DiskHangs,
}

impl Trouble {
    const ALL: [Trouble; 3] = [Trouble::Frozen, Trouble::ShutDown, Trouble::DiskHangs];

    fn name(self) -> &'static str {
        match self {
            Trouble::Frozen => "frozen filesystem",
            Trouble::ShutDown => "filesystem shut down",
            Trouble::DiskHangs => "disk hangs, unstage too",
        }
    }

    /// Whether the volume's statistics can be read during the fault.
    fn is_published(self) -> bool {
        !matches!(self, Trouble::DiskHangs)
    }
}

/// The times of the calls for other volumes, without and with each fault.
pub(crate) struct Hung(Vec<(Trouble, Row)>);

struct Row {
    call: &'static str,
    without: Samples,
    with: Samples,
}

/// Measures belay-node with four healthy volumes and a faulty one.
///
/// # Errors
/// Fails if a call for the healthy volumes fails, or if the fault cannot be caused.
pub(crate) fn measure(bench_dir: &BenchDir) -> io::Result<Hung> {
    let storage = Storage::mount(bench_dir)?;
    let agent = Program::agent(bench_dir, "hung")?;
    let made = |name: &str, fs_type| Volume::formatted(bench_dir, &agent, name, fs_type);
    let site = Site {
        storage: &storage,
        agent: &agent,
        socket: bench_dir.path("hung.sock"),
        victim: made("hung-victim", "xfs")?,
        others: (0..OTHERS)
            .map(|n| made(&format!("hung-other-{n}"), "ext4"))
            .collect::<io::Result<_>>()?,
    };
    let mut all = Vec::new();
    {
        let _turn = bench_dir.turn();
        site.up(&site.victim)?;
        site.others.iter().try_for_each(|other| site.up(other))?;
    }
    for trouble in Trouble::ALL {
        let mut rows = ROWS.map(|(call, _)| Row {
            call,
            without: Samples::default(),
            with: Samples::default(),
        });
        for n in 0..2 * BLOCKS {
            // Lock, so that an interruption waits until the filesystem is thawed.
            let _turn = bench_dir.turn();
            match n % 2 {
                0 => site.block(trouble, |row, time| rows[row].without.push(time))?,
                _ => site.within(trouble, || {
                    site.block(trouble, |row, time| rows[row].with.push(time))
                })?,
            }
        }
        all.extend(rows.map(|row| (trouble, row)));
    }
    let _turn = bench_dir.turn();
    for volume in site.others.iter().chain([&site.victim]) {
        site.run(volume, &[Call::Unpublish, Call::Unstage])?;
    }
    Ok(Hung(all))
}

/// The agent under test, and its volumes.
struct Site<'a> {
    storage: &'a Storage,
    agent: &'a Program<'a>,
    socket: PathBuf,
    victim: Volume,
    others: Vec<Volume>,
}

impl Site<'_> {
    fn run(&self, volume: &Volume, calls: &[Call]) -> io::Result<()> {
        let mut ours = Ours::new(&self.agent.client, volume.clone());
        calls.iter().try_for_each(|call| ours.run(*call).map(drop))
    }

    fn up(&self, volume: &Volume) -> io::Result<()> {
        self.run(volume, &[Call::Stage, Call::Publish, Call::Stats])
    }

    /// Makes calls for the other volumes in turn, while the faulty volume's statistics are read.
    fn block(&self, trouble: Trouble, mut note: impl FnMut(usize, Duration)) -> io::Result<()> {
        let asking = trouble
            .is_published()
            .then(|| Asking::begin(&self.socket, &self.victim))
            .transpose()?;
        for _ in 0..ROUNDS {
            for other in &self.others {
                let mut ours = Ours::new(&self.agent.client, other.clone());
                for (row, (_, call)) in ROWS.iter().enumerate() {
                    note(row, ours.run(*call)?);
                }
            }
        }
        drop(asking);
        Ok(())
    }

    /// Causes the fault, runs `work`, and repairs the faulty volume.
    fn within(&self, trouble: Trouble, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match trouble {
            Trouble::Frozen => {
                let _frozen = Frozen::at(&self.victim.staging)?;
                work()
            }
            Trouble::ShutDown => {
                shut_down(&self.victim.target)?;
                work()?;
                self.run(&self.victim, &[Call::Unpublish, Call::Unstage])?;
                self.up(&self.victim)
            }
            Trouble::DiskHangs => {
                // Leave data that is not on the disk yet, so that the unmount must write it.
                fs::write(self.victim.target.join("late"), vec![1; 1 << 20])?;
                self.run(&self.victim, &[Call::Unpublish])?;
                let frozen = Frozen::at(&self.storage.point)?;
                let client = Client::new(&self.socket)?;
                let victim = self.victim.clone();
                let unstage =
                    thread::spawn(move || Ours::new(&client, victim).run(Call::Unstage).map(drop));
                self.agent.client.rest(SLOW);
                let worked = work();
                if unstage.is_finished() {
                    return Err(io::Error::other("the unstage does not wait for the disk"));
                }
                drop(frozen);
                unstage.join().map_err(|_| io::Error::other("a panic"))??;
                worked?;
                self.up(&self.victim)
            }
        }
    }
}

/// A caller that reads the statistics of a volume until this is dropped, and ignores errors.
struct Asking {
    is_over: Arc<AtomicBool>,
    caller: Option<thread::JoinHandle<()>>,
}

impl Asking {
    fn begin(socket: &Path, volume: &Volume) -> io::Result<Self> {
        let (client, volume) = (Client::new(socket)?, volume.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let caller = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                // A faulty volume may return an error.
                drop(Ours::new(&client, volume.clone()).run(Call::Stats));
            }
        });
        let caller = Some(caller);
        Ok(Self { is_over, caller })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        drop(self.caller.take().map(thread::JoinHandle::join));
    }
}

/// The filesystem with the volumes' files; unmounted when this is dropped.
struct Storage {
    point: PathBuf,
}

impl Storage {
    fn mount(bench_dir: &BenchDir) -> io::Result<Self> {
        let (image, point) = (bench_dir.path("storage"), bench_dir.directory("volumes")?);
        File::create_new(&image)?.set_len(STORAGE_BYTES)?;
        succeed(Command::new("mkfs.ext4").arg("-q").arg(&image))?;
        succeed(
            Command::new("mount")
                .args(["-o", "loop"])
                .args([&image, &point]),
        )?;
        Ok(Self { point })
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Err(errno) = rustix::mount::unmount(&self.point, UnmountFlags::NOFOLLOW) {
            eprintln!(
                "belay-benches: cannot unmount {}: {errno}",
                self.point.display()
            );
        }
    }
}

/// Keeps a filesystem frozen until this is dropped.
struct Frozen(Child);

impl Frozen {
    fn at(point: &Path) -> io::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", FREEZE, "sh"])
            .arg(point)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (mut line, output) = (String::new(), child.stdout.take());
        let frozen = Frozen(child);
        output.map_or(Ok(0), |output| BufReader::new(output).read_line(&mut line))?;
        match line.as_str() {
            "frozen\n" => Ok(frozen),
            _ => Err(io::Error::other(format!(
                "cannot freeze {}",
                point.display()
            ))),
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("belay-benches: fsfreeze: {error}");
        }
    }
}

fn shut_down(point: &Path) -> io::Result<()> {
    succeed(
        Command::new("xfs_io")
            .args(["-x", "-c", "shutdown"])
            .arg(point),
    )
}

fn succeed(command: &mut Command) -> io::Result<()> {
    let status = command.stdout(Stdio::null()).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{command:?}: {status}"))),
    }
}

impl Row {
    fn ratio(&self, percent: usize) -> f64 {
        ratio(
            self.with.percentile(percent),
            self.without.percentile(percent),
        )
    }

    /// Returns the difference of the calls without the fault from themselves: compares every other
    /// block with the other blocks.
    fn noise(&self, percent: usize) -> f64 {
        self.without.spread_of(SAMPLES_A_BLOCK, percent)
    }

    /// Returns the time of the slowest call during the fault, as a fraction of [`SLOWEST`]; `None`
    /// if a call without the fault is slower than [`SLOWEST`].
    fn slowest(&self) -> Option<f64> {
        let [without, with] = [&self.without, &self.with].map(|it| it.percentile(ALL));
        (without <= SLOWEST).then(|| ratio(with, SLOWEST))
    }
}

impl Hung {
    /// Returns the ratio of each call for both percentiles, and of the slowest call.
    pub(crate) fn limited(&self) -> impl Iterator<Item = Limited> {
        self.0.iter().flat_map(|(trouble, row)| {
            let name = |what: &str| format!("{}, {}, {what}", trouble.name(), row.call);
            let ratios = [("p25", QUARTER), ("p99", TAIL)].map(|(what, percent)| Limited {
                name: name(what),
                ratio: row.ratio(percent),
                limit: RATIO_MAX,
                noise: row.noise(percent),
            });
            let slowest = row.slowest().map(|ratio| Limited {
                name: name("slowest"),
                ratio,
                limit: 1.0,
                noise: 0.0,
            });
            ratios.into_iter().chain(slowest)
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let rows = self.0.iter().map(|(trouble, row)| {
            let both = [QUARTER, TAIL];
            let us = |samples: &Samples| both.map(|it| micros(samples.percentile(it)));
            let (ratio, spread) = (both.map(|it| row.ratio(it)), both.map(|it| row.noise(it)));
            json!({
                "trouble": trouble.name(),
                "call": row.call,
                "without_us": us(&row.without),
                "with_us": us(&row.with),
                "ratio": ratio,
                "spread": spread,
            })
        });
        json!({ "percentiles": [QUARTER, TAIL], "rows": rows.collect::<Vec<_>>() })
    }
}

impl fmt::Display for Hung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<44}{:>8}{:>8}{:>7}{:>8}{:>8}{:>8}{:>7}{:>8}",
            "other volumes, us", "p25", "with", "ratio", "A/A", "p99", "with", "ratio", "A/A"
        )?;
        for (trouble, row) in &self.0 {
            write!(f, "{:<26}{:<18}", trouble.name(), row.call)?;
            for percent in [QUARTER, TAIL] {
                write!(
                    f,
                    "{:>8.0}{:>8.0}{:>7.2}{:>6.1} %",
                    micros(row.without.percentile(percent)),
                    micros(row.with.percentile(percent)),
                    row.ratio(percent),
                    row.noise(percent) * 100.0
                )?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
