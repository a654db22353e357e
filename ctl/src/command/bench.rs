//! `belayctl bench`: the latency of a read-only call, and the resources that the driver uses for
//! it. With several sockets, the calls alternate, so that other load on the machine affects all
//! drivers alike.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::call::{self, Call, Connection};
use crate::drivers;
use crate::failure::Failure;
use crate::machine::process;
use crate::render::{Answer, Cell, Rows};
use crate::target::{Target, socket};

const HELP: &str = "\
Calls go one after the other, on one connection per socket. CPU is the driver's
time per call, in user and kernel mode; the clock of the kernel is coarse, so
use many calls. Memory is resident.";

#[derive(Args)]
#[command(after_help = HELP)]
pub(crate) struct Bench {
    /// Method of CSI 1.13, e.g. Probe or NodeGetVolumeStats
    #[arg(default_value = "Probe")]
    method: String,
    /// The request as JSON; @FILE reads a file
    #[arg(value_name = "JSON", default_value = "{}", hide_default_value = true)]
    message: String,
    /// Calls per socket
    #[arg(long, short = 'n', default_value_t = 1000, value_name = "COUNT",
          value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: u32,
    /// Compare with the driver on this socket; may be repeated
    #[arg(long = "against", value_name = "SOCKET", value_parser = socket)]
    against: Vec<PathBuf>,
    /// Also measure calls that change something (they are repeated COUNT times)
    #[arg(long)]
    allow_changes: bool,
}

/// Prefixes of the names of read-only methods, without a leading `Controller` or `Node`.
const READS: [&str; 5] = ["Get", "List", "Probe", "Validate", "GroupControllerGet"];

/// The measurement of the driver on one socket.
struct Runner {
    socket: PathBuf,
    /// The name of the driver; set after the calls.
    driver: String,
    connection: Connection,
    pid: Option<u32>,
    times: Vec<Duration>,
    failed: u32,
}

impl Bench {
    /// Makes the calls, and returns the measurements.
    ///
    /// # Errors
    /// Fails if no driver responds, or if the method changes something and `--allow-changes` is not
    /// set.
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let call = Call::read(call::method(call::own()?, &self.method)?, &self.message)?;
        let name = call.method.name();
        let verb = name
            .trim_start_matches("Controller")
            .trim_start_matches("Node");
        if !self.allow_changes && !READS.iter().any(|read| verb.starts_with(read)) {
            let why = "changes something; use --allow-changes if that is intended";
            return Err(Failure::Usage(format!("{name} {why}")));
        }
        let first = target.socket(call::service(&call.method)).await?;
        let mut runners = Vec::new();
        for socket in [first].into_iter().chain(self.against) {
            runners.push(Runner::new(target, socket, self.count).await?);
        }
        let before: Vec<_> = runners
            .iter()
            .map(|runner| runner.pid.and_then(process::cpu))
            .collect();
        for _ in 0..self.count {
            for runner in &mut runners {
                runner.call(&call).await?;
            }
        }
        for runner in &mut runners {
            runner.times.sort_unstable();
            runner.driver = drivers::probe(&runner.socket).await.driver;
        }
        let mut rows = Vec::new();
        for (runner, before) in runners.into_iter().zip(before) {
            rows.push(runner.row(before));
        }
        Ok(Answer::Rows(Rows {
            narrow: 8,
            ..Rows::new("measured", &COLUMNS, rows)
        }))
    }
}

const COLUMNS: [&str; 11] = [
    "driver",
    "calls",
    "failed",
    "p50_us",
    "p99_us",
    "max_us",
    "cpu_us",
    "memory_bytes",
    "min_us",
    "p90_us",
    "socket",
];

impl Runner {
    async fn new(target: &Target, socket: PathBuf, count: u32) -> Result<Self, Failure> {
        Ok(Self {
            connection: Connection::open(&socket, target.timeout).await?,
            pid: process::of(&socket).await,
            times: Vec::with_capacity(count as usize),
            failed: 0,
            driver: String::new(),
            socket,
        })
    }

    async fn call(&mut self, call: &Call) -> Result<(), Failure> {
        let start = Instant::now();
        let answer = self.connection.unary(call).await;
        self.times.push(start.elapsed());
        match answer {
            Ok(_) => {}
            // Count an error of the driver separately, but include its latency.
            Err(Failure::Status(_) | Failure::Unserved(_)) => self.failed += 1,
            Err(other) => return Err(other),
        }
        Ok(())
    }

    fn row(self, before: Option<Duration>) -> Vec<Cell> {
        let at = |percent| micros(quantile(&self.times, f64::from(percent)));
        let calls = u32::try_from(self.times.len()).unwrap_or(u32::MAX).max(1);
        let cpu = self.pid.and_then(process::cpu).zip(before);
        let cpu = cpu.map(|(after, before)| micros(after.saturating_sub(before) / calls));
        let memory = self.pid.and_then(process::memory);
        vec![
            Cell::Text(self.driver),
            Cell::Number(calls.into()),
            Cell::Number(self.failed.into()),
            at(50),
            at(99),
            at(100),
            cpu.unwrap_or(Cell::Unknown),
            memory
                .and_then(|bytes| i64::try_from(bytes).ok())
                .map_or(Cell::Unknown, Cell::Bytes),
            at(0),
            at(90),
            Cell::Text(self.socket.display().to_string()),
        ]
    }
}

fn micros(time: Duration) -> Cell {
    Cell::Micros(i64::try_from(time.as_micros()).unwrap_or(i64::MAX))
}

/// Returns the smallest time that at least `percent` of the sorted times do not exceed.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "the command line allows ten million times at most, and no share is negative"
)]
fn quantile(sorted: &[Duration], percent: f64) -> Duration {
    // Rounding errors must not increase the rank: for 99 percent of 200 times, the rank is 198.
    let rank = (sorted.len() as f64 * percent / 100.0 - 1e-9).ceil() as usize;
    let last = sorted.len().saturating_sub(1);
    let index = rank.saturating_sub(1).min(last);
    sorted.get(index).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_that_were_measured() {
        let times: Vec<_> = (1..=200).map(Duration::from_micros).collect();
        let at = |percent| quantile(&times, percent).as_micros();
        assert_eq!([at(0.0), at(50.0), at(99.0), at(100.0)], [1, 100, 198, 200]);
        assert_eq!(quantile(&[], 50.0), Duration::ZERO);
    }
}
