//! belay-demo: full volume lifecycles through the two real programs, on real loop devices and
//! filesystems, in separate namespaces. Three roles of one binary: the outer process that the user
//! starts, the inner one in the namespaces, and the reaper that cleans up after both.

mod after;
mod agents;
mod bare;
mod calls;
mod copies;
mod demo_dir;
mod failure;
mod grow;
mod inner;
mod killed;
mod kind;
mod life;
mod outer;
mod pattern;
mod progress;
mod proof;
mod reaper;
mod refusals;
mod report;
mod samples;
mod screen;
mod summary;
mod trouble;
mod writer;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::FalseyValueParser;

use crate::failure::Failure;
use crate::kind::{Kind, Part};

const EXAMPLES: &str = "\
Examples:
  sudo belay-demo
  sudo ROUNDS=20 belay-demo
  sudo KEEP=1 belay-demo      keeps the programs running, for manual calls

It leaves nothing behind: it has its own mount and process namespaces, its own directory in
TMPDIR, and a separate process that releases its loop devices even if the demo is killed.";

/// Run full volume lifecycles through the two real programs (needs root).
#[derive(Parser)]
#[command(name = "belay-demo", version, after_help = EXAMPLES)]
struct DemoArgs {
    /// Lifecycles per kind of volume; the times are medians
    #[arg(long, env = "ROUNDS", default_value_t = 5, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Keep everything running at the end, until Ctrl-C
    #[arg(long, env = "KEEP", value_parser = FalseyValueParser::new())]
    keep: bool,
    /// Only this kind of volume [default: all, and snapshots and clones of xfs]
    #[arg(long, value_enum, value_name = "KIND")]
    only: Option<Kind>,
    /// Only this part [default: both]
    #[arg(long, value_enum, value_name = "PART")]
    part: Option<Part>,
    /// Print every step and the programs' metrics
    #[arg(long, short, env = "VERBOSE", value_parser = FalseyValueParser::new())]
    verbose: bool,
    /// Directory of belay-controller and belay-node [default: that of belay-demo]
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
    /// Role: the process inside the namespaces, with the demo's directory
    #[arg(long, hide = true, value_name = "DIR", requires = "disk")]
    inner: Option<PathBuf>,
    /// The loop device of the state filesystem, for the inner role
    #[arg(long, hide = true, value_name = "DEVICE")]
    disk: Option<PathBuf>,
    /// PID of the outer process, for the inner role
    #[arg(long, hide = true, value_name = "PID", default_value_t = 0)]
    outer: u32,
    /// Role: the reaper, with the directory to create
    #[arg(long, hide = true, value_name = "DIR", conflicts_with = "inner")]
    reap: Option<PathBuf>,
}

fn main() -> ExitCode {
    match start(&DemoArgs::parse()) {
        Ok(code) => code,
        Err(failure) if failure.is_closed_pipe() => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("belay-demo: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the role that the flags select. One thread is enough: it waits for one response at a time.
fn start(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match (&args.reap, &args.inner, &args.disk) {
            (Some(directory), ..) => Ok(reaper::run(directory).await),
            (None, Some(directory), Some(disk)) => inner::run(args, directory, disk).await,
            _ => outer::run(args).await,
        }
    })
}

impl DemoArgs {
    /// Directory of belay-controller and belay-node.
    fn bin_dir(&self) -> Result<PathBuf, Failure> {
        if let Some(directory) = &self.bin_dir {
            return Ok(directory.clone());
        }
        let mut directory = std::env::current_exe()?;
        directory.pop();
        Ok(directory)
    }
}
