//! belay-demo: runs full volume lifecycles through the two real programs, on real loop devices and
//! filesystems, in separate namespaces. The program has three roles: the outer process that the
//! user starts, the inner process in the namespaces, and the reaper, which cleans up after a killed
//! outer process.

mod data;
mod demo_dir;
mod inner;
mod life;
mod outer;
mod progress;
mod report;
mod screen;
mod steps;
mod trials;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::FalseyValueParser;

use crate::report::Kind;

/// Run full volume lifecycles through the two real programs (needs root).
///
/// It leaves nothing behind: it has its own mount and process namespaces, its own directory in
/// TMPDIR, and a separate process that releases its loop devices even if the demo is killed.
#[derive(Parser)]
#[command(name = "belay-demo", version)]
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
    /// Print every step
    #[arg(long, short, env = "VERBOSE", value_parser = FalseyValueParser::new())]
    verbose: bool,
    /// Role: the process inside the namespaces, with the demo's directory
    #[arg(long, hide = true, value_name = "DIR")]
    inner: Option<PathBuf>,
    /// PID of the outer process, for the inner role
    #[arg(long, hide = true, value_name = "PID", default_value_t = 0)]
    outer: u32,
    /// Role: the reaper, with the demo's directory
    #[arg(long, hide = true, value_name = "DIR", conflicts_with = "inner")]
    reap: Option<PathBuf>,
}

/// Runs the role that the flags select, on a single thread, since each role waits for one response
/// at a time.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let args = DemoArgs::parse();
    let result = match (&args.reap, &args.inner) {
        (Some(demo_dir), _) => outer::reap(demo_dir).await,
        (None, Some(demo_dir)) => inner::run(&args, demo_dir).await,
        (None, None) => outer::run(&args).await,
    };
    result.unwrap_or_else(|error| {
        eprintln!("belay-demo: {error:#}");
        ExitCode::FAILURE
    })
}

/// Returns the path of a program in the directory of the running program.
fn binary(name: &str) -> io::Result<PathBuf> {
    Ok(std::env::current_exe()?.with_file_name(name))
}
