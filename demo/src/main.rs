//! belay-demo: volumes live their lives through the two real binaries, on real loop devices
//! and filesystems, in namespaces of their own. Three roles of one binary: the outer process that
//! the user starts, the inner one in the namespaces, and the reaper that clears up after both.

mod agents;
mod bare;
mod calls;
mod copies;
mod failure;
mod inner;
mod kind;
mod life;
mod outer;
mod pattern;
mod place;
mod progress;
mod proof;
mod reaper;
mod samples;
mod scrape;
mod single_writer;
mod summary;
mod trouble;

use std::path::PathBuf;
use std::process::ExitCode;

use belay_ctl::Output;
use clap::Parser;
use clap::builder::FalseyValueParser;

use crate::failure::Failure;
use crate::kind::{Kind, Part, StateFs};

const EXAMPLES: &str = "\
Examples:
  sudo belay-demo
  sudo ROUNDS=20 belay-demo
  sudo KEEP=1 belay-demo      leaves the binaries running, to talk to them by hand
  sudo belay-demo --state-fs ext4      snapshots and clones where blocks cannot be shared
  sudo belay-demo -o json >times.json  the tables for machines; the story goes to stderr

Nothing of it remains afterwards: it has its own mount and process namespaces, a folder of its own
beneath TMPDIR, and a reaper that clears its loop devices even if the demo is killed.";

/// Watch volumes live their life through the two real binaries (needs root).
#[derive(Parser)]
#[command(name = "belay-demo", version, after_help = EXAMPLES)]
struct DemoArgs {
    /// Lives per kind of volume; the table shows the middle one
    #[arg(long, env = "ROUNDS", default_value_t = 5, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Leave everything running at the end, until Ctrl-C
    #[arg(long, env = "KEEP", value_parser = FalseyValueParser::new())]
    keep: bool,
    /// One kind of volume instead of all; snapshots are shown of that kind, else of xfs
    #[arg(long, value_enum, value_name = "KIND")]
    only: Option<Kind>,
    /// One part instead of both
    #[arg(long, value_enum, value_name = "PART")]
    part: Option<Part>,
    /// Filesystem that the controller's state directory is on
    #[arg(long, value_enum, value_name = "FILESYSTEM", default_value_t = StateFs::Xfs)]
    state_fs: StateFs,
    /// How to print the times
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
    /// Folder of belay-controller and belay-node [default: the folder of belay-demo]
    #[arg(long, value_name = "FOLDER")]
    bin_dir: Option<PathBuf>,
    /// Role: the process inside the namespaces, given the demo's folder
    #[arg(long, hide = true, value_name = "FOLDER", requires = "disk")]
    inner: Option<PathBuf>,
    /// The loop device beneath the state filesystem, for the inner role
    #[arg(long, hide = true, value_name = "DEVICE")]
    disk: Option<PathBuf>,
    /// The outer process, for the inner role to name
    #[arg(long, hide = true, value_name = "PID", default_value_t = 0)]
    outer: u32,
    /// Role: the reaper, given the name of the folder to make
    #[arg(long, hide = true, value_name = "FOLDER", conflicts_with = "inner")]
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

/// Plays the role that the flags name. One thread is enough: it waits for one answer at a time.
fn start(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match (&args.reap, &args.inner, &args.disk) {
            (Some(folder), ..) => Ok(reaper::run(folder, args.state_fs).await),
            (None, Some(folder), Some(disk)) => inner::run(args, folder, disk).await,
            _ => outer::run(args).await,
        }
    })
}

impl DemoArgs {
    /// Where belay-controller and belay-node are expected.
    fn bin_dir(&self) -> Result<PathBuf, Failure> {
        if let Some(folder) = &self.bin_dir {
            return Ok(folder.clone());
        }
        let mut folder = std::env::current_exe()?;
        folder.pop();
        Ok(folder)
    }
}
