//! The process that the user starts: checks the requirements, starts the reaper and then the inner
//! process in its namespaces, and ensures that both exit. Mounts nothing itself.

use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::demo_dir::{BINARIES, DemoDir};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{DemoArgs, after, reaper};

/// Tools for the demo's set-up and the agent's mkfs, with their Debian packages.
const TOOLS: [(&str, &str); 5] = [
    ("unshare", "util-linux"),
    ("losetup", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("mkfs.btrfs", "btrfs-progs"),
];
/// How long the inner process may take to exit on request.
const LEAVE_MAX: Duration = Duration::from_secs(5);
/// Exit code after Ctrl-C, as shells have it (128 + SIGINT).
const INTERRUPTED: u8 = 130;

/// Runs the demo and leaves nothing behind.
///
/// # Errors
/// A requirement is missing, or the demo fails.
pub(crate) async fn run(args: &DemoArgs) -> Result<ExitCode, Failure> {
    let bin_dir = args.bin_dir()?;
    check_needs(&bin_dir)?;
    // From here on a signal is an event; by default it would end this process.
    let mut interrupt = Interrupt::listen()?;
    let mut reaper = Reaper::start().await?;
    let mut progress = Progress::new(args.verbose);
    let shown = show(args, &bin_dir, &mut reaper, &mut interrupt).await;
    let demo_dir = reaper.demo_dir.clone();
    match (shown, reaper.finish().await) {
        (Ok(code), Ok(cleared)) => {
            let found = after::left(demo_dir.path(), &cleared)?;
            progress.section("Left", &found);
            if code == ExitCode::SUCCESS && !args.keep {
                progress.section("Next", &after::next_steps());
            }
            Ok(code)
        }
        (Err(failed), Ok(cleared)) => {
            Err(Failure::Demo(format!("{failed}\n  cleaned up: {cleared}")))
        }
        (Ok(_), Err(left)) => Err(left),
        (Err(failed), Err(left)) => Err(Failure::Demo(format!("{failed}\n  {left}"))),
    }
}

fn check_needs(bin_dir: &Path) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::Demo(
            "the demo mounts filesystems and needs root: run it with sudo".to_owned(),
        ));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    for (tool, package) in TOOLS {
        if !directories
            .iter()
            .any(|directory| directory.join(tool).exists())
        {
            let text = format!("{tool} is not in PATH: install the package {package}");
            return Err(Failure::Demo(text));
        }
    }
    for binary in BINARIES {
        if !bin_dir.join(binary).exists() {
            let text = format!(
                "{}: does not exist: build it (cargo build --release), or set --bin-dir",
                bin_dir.join(binary).display()
            );
            return Err(Failure::Demo(text));
        }
    }
    Ok(())
}

/// Runs the inner process to its end, to Ctrl-C, or to the reaper's unexpected exit.
async fn show(
    args: &DemoArgs,
    bin_dir: &Path,
    reaper: &mut Reaper,
    interrupt: &mut Interrupt,
) -> Result<ExitCode, Failure> {
    let disk = reaper.ready().await?;
    let mut inner = start_inner(args, bin_dir, &reaper.demo_dir, &disk)?;
    // Closing it stops the inner process, also if this process is killed.
    let leash = inner.stdin.take();
    if let Some(pid) = inner.id() {
        reaper.hold(pid).await?;
    }
    tokio::select! {
        status = inner.wait() => verdict(status?),
        () = interrupt.wait() => {
            drop(leash);
            if tokio::time::timeout(LEAVE_MAX, inner.wait()).await.is_err() {
                inner.kill().await?;
            }
            let code = if args.keep { ExitCode::SUCCESS } else { ExitCode::from(INTERRUPTED) };
            Progress::new(args.verbose).line("\nEnding.");
            Ok(code)
        }
        status = reaper.child.wait() => {
            inner.kill().await?;
            Err(Failure::Demo(format!("the demo's reaper exited unexpectedly ({})", status?)))
        }
    }
}

/// The inner process reports its own errors, unless it was killed.
fn verdict(status: ExitStatus) -> Result<ExitCode, Failure> {
    match status.code() {
        Some(0) => Ok(ExitCode::SUCCESS),
        Some(1) => Err(Failure::Demo("the demo failed; see above".to_owned())),
        _ => Err(Failure::Demo(format!(
            "the demo's inner process exited unexpectedly ({status})"
        ))),
    }
}

/// `unshare` creates the namespaces, becomes the parent of their first process, and kills it when
/// it exits. It has its own process group, so that only this process receives Ctrl-C.
fn start_inner(
    args: &DemoArgs,
    bin_dir: &Path,
    demo_dir: &DemoDir,
    disk: &Path,
) -> Result<Child, Failure> {
    let mut unshare = Command::new("unshare");
    unshare
        .args([
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
        ])
        .args(["--mount-proc", "--"])
        .arg(std::env::current_exe()?)
        .args(["--rounds", &args.rounds.to_string(), "--bin-dir"])
        .arg(bin_dir)
        .arg("--inner")
        .arg(demo_dir.path())
        .arg("--disk")
        .arg(disk)
        .args(["--outer", &std::process::id().to_string()])
        .args(args.part.map(|part| format!("--part={}", part.name())))
        .args(args.keep.then_some("--keep"))
        .args(args.verbose.then_some("--verbose"))
        .args(args.only.map(|kind| format!("--only={}", kind.name())))
        .stdin(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    unshare
        .spawn()
        .map_err(|error| Failure::Demo(format!("unshare: {error}")))
}

/// This process's end of the protocol with the reaper.
struct Reaper {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    demo_dir: DemoDir,
    /// False if another program has a directory of that name.
    is_ours: bool,
}

impl Reaper {
    async fn start() -> Result<Self, Failure> {
        let demo_dir = DemoDir::choose(&std::env::temp_dir())?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("--reap")
            .arg(demo_dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take();
        let Some(stdout) = child.stdout.take() else {
            return Err(Failure::Demo("the reaper has no stdout".to_owned()));
        };
        let answers = BufReader::new(stdout).lines();
        Ok(Self {
            child,
            orders,
            answers,
            demo_dir,
            is_ours: true,
        })
    }

    async fn ready(&mut self) -> Result<PathBuf, Failure> {
        let answer = self.answer().await?;
        let why = match answer.split_once('\t') {
            Some(("ready", disk)) => return Ok(PathBuf::from(disk)),
            Some(("refused", why)) => {
                self.is_ours = false;
                why
            }
            Some((_failed, why)) => why,
            None => &answer,
        };
        let text = format!("cannot set up the demo's disk: {why}");
        Err(Failure::Demo(text))
    }

    async fn hold(&mut self, pid: u32) -> Result<(), Failure> {
        if let Some(orders) = &mut self.orders {
            orders
                .write_all(format!("hold\t{pid}\n").as_bytes())
                .await?;
        }
        self.answer().await.map(|_held| ())
    }

    async fn answer(&mut self) -> Result<String, Failure> {
        let line = self.answers.next_line().await?;
        line.ok_or_else(|| Failure::Demo("the demo's reaper exited unexpectedly".to_owned()))
    }

    /// Lets it clean up, and returns its report. If it was killed, cleans up here.
    async fn finish(mut self) -> Result<String, Failure> {
        drop(self.orders.take());
        let mut last = None;
        while let Some(line) = self.answers.next_line().await? {
            last = Some(line);
        }
        self.child.wait().await?;
        let last = last.unwrap_or_default();
        if let Some(left) = last.strip_prefix("left\t") {
            return Err(Failure::Demo(format!("could not clean up: {left}")));
        }
        let count = match (last.strip_prefix("cleared\t"), self.is_ours) {
            (Some(count), _) => count.parse().unwrap_or(0),
            (None, true) => reaper::clear(&self.demo_dir).await?,
            (None, false) => 0,
        };
        Ok(match count {
            0 => "every volume's loop device was already released".to_owned(),
            count => format!("{count} bound loop devices were released"),
        })
    }
}

/// Ctrl-C, SIGTERM, or the loss of the terminal.
struct Interrupt {
    signals: [Signal; 3],
}

impl Interrupt {
    fn listen() -> Result<Self, Failure> {
        let kinds = [
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        let [int, term, hup] = kinds.map(signal);
        Ok(Self {
            signals: [int?, term?, hup?],
        })
    }

    async fn wait(&mut self) {
        let [int, term, hup] = &mut self.signals;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
    }
}
