//! The process that the user starts: checks the requirements, creates the disk, runs the inner
//! process in its namespaces, cleans up, and reports leftovers. If this process is killed, the
//! reaper cleans up.

use std::io::{PipeWriter, Read};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::io::{FdFlags, fcntl_setfd};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use crate::demo_dir::{self, BINARIES, make_disk};
use crate::progress::Progress;
use crate::{DemoArgs, binary};

/// Commands for the directory in which `make demo` was run, with descriptions.
pub(crate) const NEXT: [&str; 4] = [
    "make demo ROUNDS=50      quieter times; VERBOSE=1 prints every step",
    "make demo KEEP=1         keep both programs running, to call them",
    "make cluster             a single-node Kubernetes with Belay in it",
    "less docs/quickstart.md  install Belay in a cluster",
];
/// Maximum time for the inner process to exit on request.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// The exit code after Ctrl-C, as shells set it (128 + SIGINT).
const INTERRUPTED: u8 = 130;

/// Runs the demo and removes everything that it created.
///
/// # Errors
/// Fails if a requirement is missing, or if the demo fails.
pub(crate) async fn run(args: &DemoArgs) -> Result<ExitCode> {
    check_needs()?;
    // From here on, signals are handled; by default they would end this process. SIGHUP still ends
    // this process, as SIGKILL does, and the reaper then cleans up.
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    let interrupt = async move { tokio::select!(_ = int.recv() => {}, _ = term.recv() => {}) };
    let demo_dir = demo_dir::create(&std::env::temp_dir())?;
    let (mut reaper, lifeline) = start_reaper(&demo_dir)?;
    let shown = show(args, &demo_dir, &mut reaper, interrupt).await;
    let cleared = demo_dir::clear(&demo_dir).await;
    drop(lifeline);
    let ended = timeout(LEAVE_MAX, reaper.wait()).await;
    let cleared = match cleared.context("could not clean up")? {
        0 => "every volume's loop device was already released".to_owned(),
        count => format!("{count} bound loop devices were released"),
    };
    let code = shown.map_err(|error| anyhow!("{error:#}\n  cleaned up: {cleared}"))?;
    // The demo's directory is removed, so no mount is left in the directory. The reaper has exited,
    // so no process of the demo is left.
    ended.context("left behind: a process of the demo")??;
    let mut progress = Progress::new(args.verbose);
    let nothing = "0 mounts, 0 loop devices, 0 processes, 0 files".to_owned();
    progress.section("Left", &[nothing, cleared]);
    if code == ExitCode::SUCCESS && !args.keep {
        progress.section("Next", &NEXT.map(str::to_owned));
    }
    Ok(code)
}

fn check_needs() -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "the demo needs root: run it with sudo");
    for name in BINARIES {
        let path = binary(name)?;
        let build = "does not exist: build it (cargo build --release)";
        ensure!(path.exists(), "{}: {build}", path.display());
    }
    Ok(())
}

/// Starts the reaper, and returns the end of a pipe that this process and all its later child
/// processes keep open. The reaper reads end of file from the pipe when all these processes have
/// exited, for any reason.
fn start_reaper(demo_dir: &Path) -> Result<(Child, PipeWriter)> {
    let (input, lifeline) = std::io::pipe()?;
    let reaper = Command::new(std::env::current_exe()?)
        .arg("--reap")
        .arg(demo_dir)
        .stdin(input)
        .spawn()?;
    fcntl_setfd(&lifeline, FdFlags::empty())?;
    Ok((reaper, lifeline))
}

/// Runs the role of the reaper: waits until all processes of the demo have exited, and removes
/// leftovers, which only exist if the outer process was killed. Ctrl-C does not reach the reaper.
///
/// # Errors
/// Fails if a file or device could not be removed; the error names it.
pub(crate) async fn reap(demo_dir: &Path) -> Result<ExitCode> {
    // setsid(2) fails only for the leader of a process group, which Ctrl-C does not reach either.
    rustix::process::setsid().ok();
    // The pipe carries no data: end of file and an error both mean that the processes have exited.
    std::io::stdin().read_to_end(&mut Vec::new()).ok();
    demo_dir::clear(demo_dir).await.context("the reaper")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the inner process until it exits, until Ctrl-C, or until the reaper exits unexpectedly.
async fn show(
    args: &DemoArgs,
    demo_dir: &Path,
    reaper: &mut Child,
    interrupt: impl Future<Output = ()>,
) -> Result<ExitCode> {
    make_disk(demo_dir).context("cannot set up the demo's disk")?;
    let mut inner = start_inner(demo_dir).context("unshare")?;
    // Closing the pipe stops the inner process. If this process is killed, the kernel closes the
    // pipe.
    let leash = inner.stdin.take();
    tokio::select! {
        status = inner.wait() => {
            let status = status?;
            match status.code() {
                Some(0) => Ok(ExitCode::SUCCESS),
                // The inner process reports its own errors, unless it was killed.
                Some(1) => bail!("the demo failed; see above"),
                _ => bail!("the demo's inner process exited unexpectedly ({status})"),
            }
        }
        () = interrupt => {
            drop(leash);
            if timeout(LEAVE_MAX, inner.wait()).await.is_err() {
                inner.kill().await?;
            }
            Progress::new(args.verbose).line("\nEnding.");
            Ok(if args.keep { ExitCode::SUCCESS } else { ExitCode::from(INTERRUPTED) })
        }
        status = reaper.wait() => {
            inner.kill().await?;
            bail!("the demo's reaper exited unexpectedly ({})", status?)
        }
    }
}

/// Starts the inner process with the arguments of this process. The program `unshare` creates the
/// namespaces, starts the first process in them, and kills that process when `unshare` itself
/// exits. The inner process has a separate process group, so that only this process receives the
/// SIGINT of Ctrl-C.
fn start_inner(demo_dir: &Path) -> Result<Child> {
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--mount", "--propagation", "private", "--pid", "--fork"])
        .args(["--kill-child", "--mount-proc", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .args([Path::new("--inner"), demo_dir])
        .args(["--outer", &std::process::id().to_string()])
        .stdin(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    Ok(unshare.spawn()?)
}
