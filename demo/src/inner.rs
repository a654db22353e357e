//! The first process in the demo's namespaces. This process mounts the state filesystem, and runs
//! the two programs and the lifecycles of volumes. When it exits, the kernel kills all processes
//! and removes all mounts in the namespaces.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use belay_bed::mounts::mount;
use belay_bed::programs::{Running, server};
use belay_bed::scrape::{self, status};
use belay_ctl::size;
use belay_proto::dial::dial;
use clap::ValueEnum;
use rustix::mount::MountPropagationFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::demo_dir::{
    BARE, BINARIES, CONTROLLER, CONTROLLER_STATE, NODE, STATE, STATE_FS, VOLUMES, disk,
    has_no_volume_in_use, log, socket,
};
use crate::progress::Progress;
use crate::report::{Kind, Report};
use crate::steps::Steps;
use crate::{DemoArgs, binary, screen};

/// The `--node-id` of both programs.
const NODE_ID: &str = "demo-node";

/// Maximum number of log lines in a failure report.
const LOG_LINES_MAX: usize = 12;

/// The time to wait for a program's exit after a failed call.
const EXIT_REPORT: Duration = Duration::from_millis(300);
/// The pause between two checks whether the programs are still running, while `--keep` keeps them.
const WATCH_PAUSE: Duration = Duration::from_millis(100);
/// The limit of the node agent's resident memory, in KiB (benches/BUDGET.md).
const NODE_RESIDENT_KIB_MAX: u64 = 5 * 1024;
/// The metric that counts the node agent's child processes, each of which runs mkfs.
const FORMATS: &str = "belay_formats_total";

/// Runs the demo in the current namespaces.
///
/// # Errors
/// Fails if the demo fails; the error contains the step, the cause and the ends of both logs.
pub(crate) async fn run(args: &DemoArgs, demo_dir: &Path) -> Result<ExitCode> {
    // The outer process ends the demo by closing this pipe; the kernel closes the pipe if the outer
    // process is killed.
    let stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut leash = pipe::Receiver::from_file(stdin)?;
    let played = tokio::select! {
        // The pipe carries no data: end of file and an error both mean that the outer process has
        // closed the pipe.
        _ = leash.read_u8() => Ok(()),
        played = play(args, demo_dir) => played,
    };
    let played = played.map(|()| ExitCode::SUCCESS);
    played.map_err(|error| anyhow!("failed at: {error:#}\n{}", log_tails(demo_dir)))
}

async fn play(args: &DemoArgs, demo_dir: &Path) -> Result<()> {
    make_state(demo_dir).context("start")?;
    let mut agents = Agents::start(demo_dir).context("start")?;
    let (kinds, copied) = match args.only.as_slice() {
        [] => (Kind::value_variants(), &[Kind::Xfs][..]),
        only => (only, only),
    };
    let mut steps = Steps {
        demo_dir,
        controller: dial(&socket(demo_dir, CONTROLLER)).await?,
        report: Report::new(args.rounds, kinds),
        progress: Progress::new(args.verbose),
        now: String::new(),
    };
    if let Err(error) = all(&mut steps, copied, &mut agents).await {
        // If a call failed because the called program exited, report the exit.
        tokio::time::sleep(EXIT_REPORT).await;
        let exit = agents.both_run().err();
        let exit = exit.map_or(String::new(), |exit| format!("{exit}; "));
        bail!("{}\n  {exit}{error:#}", steps.now);
    }
    steps.progress.finish(&steps.report);
    if args.keep {
        // Do not cut these lines, even if the paths are long.
        for line in screen::section("Kept", &kept(demo_dir, args.outer)?) {
            steps.progress.line(&line);
        }
        loop {
            agents.both_run()?;
            tokio::time::sleep(WATCH_PAUSE).await;
        }
    }
    Ok(())
}

/// Runs the lifecycles of every kind of volume, and then the trials with copies, refused calls and
/// a killed node agent.
async fn all(steps: &mut Steps<'_>, copied: &[Kind], agents: &mut Agents) -> Result<()> {
    for kind in steps.report.kinds.clone() {
        steps.rounds(kind).await?;
    }
    for &kind in copied {
        steps.copies(kind).await?;
    }
    steps.foreign_byte_is_refused().await?;
    steps.second_writer_is_refused().await?;
    // Measure the memory of the node agent after all these calls, before the agent is killed.
    weigh(&mut steps.report, agents)?;
    steps.killed(agents).await?;
    has_no_volume_in_use(steps.demo_dir)
}

/// Mounts the filesystem for all state with shared propagation, like a kubelet's directory.
fn make_state(demo_dir: &Path) -> Result<()> {
    let state = demo_dir.join(STATE);
    mount(STATE_FS, &disk(demo_dir)?, &state).with_context(|| state.display().to_string())?;
    rustix::mount::mount_change(&state, MountPropagationFlags::SHARED)?;
    Ok(std::fs::create_dir(demo_dir.join(BARE))?)
}

/// Records the memory and threads of both programs, and the number of mkfs processes.
///
/// # Errors
/// Fails if a program does not respond, if the node agent exceeds its memory limit, or if it ran
/// mkfs more often than blank volumes were staged.
fn weigh(report: &mut Report, agents: &Agents) -> Result<()> {
    let mut weights = Vec::new();
    for agent in [&agents.node, &agents.controller] {
        let pid = agent.process.id();
        let (threads, resident) = (status(pid, "Threads")?, status(pid, "VmRSS")?);
        let (name, shown) = (agent.name, size::show(resident << 10));
        weights.push(format!("{name} {shown}, {threads} threads"));
        // Debug builds of the programs use several times as much memory.
        let is_release = !cfg!(debug_assertions);
        let is_heavy = is_release && name == NODE && resident > NODE_RESIDENT_KIB_MAX;
        ensure!(!is_heavy, "{name} has {shown}: see benches/BUDGET.md");
    }
    report.fact("Memory", &weights.join("; "));
    let (_, page) = scrape::get(agents.node.http, "/metrics")?;
    let samples = page.lines().filter_map(scrape::sample);
    let formats = samples.filter(|(name, ..)| *name == FORMATS);
    let formats = formats.map(|(.., value)| value).sum::<f64>().to_string();
    let blank = report.blank_stages.to_string();
    ensure!(formats == blank, "{blank} blank volumes, {formats} formats");
    let text = format!("processes started: {blank} mkfs, one for each blank filesystem");
    report.fact("Memory", &text);
    Ok(())
}

/// Returns the commands for using the kept programs.
fn kept(demo_dir: &Path, outer: u32) -> Result<Vec<String>> {
    let (bin, demo_dir) = (binary("")?, demo_dir.display());
    let text = format!(
        "both programs run until Ctrl-C; in another shell:
PATH=$PATH:{}
cd {demo_dir}
controller=$PWD/{CONTROLLER}.sock node=$PWD/{NODE}.sock
belayctl --endpoint $controller volume create mine --size 1GiB
belayctl --endpoint $controller volume list
belayctl --endpoint $node node info
tail *.log
their namespaces:
nsenter --mount --pid --target \\
    $(pgrep --parent $(pgrep --parent {outer} unshare))
to stop: Ctrl-C here, or kill {outer}",
        bin.display()
    );
    Ok(text.lines().map(str::to_owned).collect())
}

/// The running controller and node agent.
pub(crate) struct Agents {
    controller: Agent,
    pub(crate) node: Agent,
}

/// The controller or the node agent. The process of the program is running, unless the demo has
/// killed the process.
pub(crate) struct Agent {
    name: &'static str,
    command: Command,
    socket: PathBuf,
    process: Running,
    /// The address of the program's `/metrics`.
    http: SocketAddr,
}

impl Agents {
    /// Starts both programs, and returns once they listen on their sockets.
    ///
    /// # Errors
    /// Fails if a program cannot be started, or exits.
    fn start(demo_dir: &Path) -> Result<Self> {
        let state = demo_dir.join(CONTROLLER_STATE);
        std::fs::create_dir_all(&state)?;
        Ok(Self {
            controller: Agent::start(CONTROLLER, demo_dir, "--state-dir", &state)?,
            node: Agent::start(NODE, demo_dir, "--loop-dir", &demo_dir.join(VOLUMES))?,
        })
    }

    /// Checks that both programs are still running.
    ///
    /// # Errors
    /// Fails if a program has exited; the error contains its exit status.
    fn both_run(&mut self) -> Result<()> {
        for agent in [&mut self.controller, &mut self.node] {
            if let Some(status) = agent.process.try_wait()? {
                bail!("{} exited: {status}", agent.name);
            }
        }
        Ok(())
    }
}

impl Agent {
    fn start(name: &'static str, demo_dir: &Path, flag: &str, value: &Path) -> Result<Self> {
        let log = File::create(log(demo_dir, name))?;
        let http = scrape::free_port()?;
        let socket = socket(demo_dir, name);
        let mut command = server(&[], &binary(name)?, &socket);
        command
            .args(["--node-id", NODE_ID, "--http-endpoint", &http.to_string()])
            .arg(flag)
            .arg(value)
            // Set only what the flags need: the caller's BELAY_* and CSI_ENDPOINT must have no
            // effect.
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(Self {
            process: Running::serving(&mut command, &socket).context(name)?,
            name,
            command,
            socket,
            http,
        })
    }

    /// Kills the program by SIGKILL, which prevents any cleanup.
    ///
    /// # Errors
    /// Fails if a system call fails.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait().map(drop)
    }

    /// Starts the program again, as its DaemonSet would.
    ///
    /// # Errors
    /// Fails if the program cannot be started, or exits.
    pub(crate) fn start_again(&mut self) -> io::Result<()> {
        self.process = Running::serving(&mut self.command, &self.socket)?;
        Ok(())
    }
}

/// Returns the last lines of both logs, for a failure report.
fn log_tails(demo_dir: &Path) -> String {
    let tail = |name| {
        let log = std::fs::read_to_string(log(demo_dir, name)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES_MAX)..].join("\n  ");
        format!("last lines of {name}'s log:\n  {last}\n")
    };
    BINARIES.map(tail).concat()
}
