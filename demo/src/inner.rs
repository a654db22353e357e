//! The first process in the namespaces: mounts the state filesystem and runs the two programs and
//! the lifecycles. At its exit, everything in its namespaces ends.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use belay_bed::mounts::mount;
use belay_bed::scrape::{self, status};
use belay_ctl::size;
use belay_proto::dial::dial;
use clap::ValueEnum;
use rustix::mount::MountPropagationFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::agents::{Agents, log_tails};
use crate::demo_dir::{
    BARE, CONTROLLER, NODE, STATE, STATE_FS, disk, has_no_volume_in_use, socket,
};
use crate::progress::Progress;
use crate::report::{Kind, Report};
use crate::steps::Steps;
use crate::{DemoArgs, screen};

/// The time to wait for a program's exit after a failed call.
const EXIT_REPORT: Duration = Duration::from_millis(300);
/// The pause between two checks whether the programs that `--keep` keeps are still running.
const WATCH_PAUSE: Duration = Duration::from_millis(100);
/// The limit of the node agent's resident memory, in KiB (benches/BUDGET.md).
const NODE_RESIDENT_KIB_MAX: u64 = 5 * 1024;
/// The metric that counts the node agent's child processes, one mkfs each.
const FORMATS: &str = "belay_formats_total";

/// Runs the demo in the current namespaces.
///
/// # Errors
/// Fails if the demo fails; the error contains the step, the cause and the ends of both logs.
pub(crate) async fn run(args: &DemoArgs, demo_dir: &Path) -> Result<ExitCode> {
    // The outer process ends the demo by closing this pipe, also if it is killed.
    let stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut leash = pipe::Receiver::from_file(stdin)?;
    let played = tokio::select! {
        // The pipe carries no data: end of file and error mean the same.
        _ = leash.read_u8() => Ok(()),
        played = play(args, demo_dir) => played,
    };
    played.map_err(|error| anyhow!("failed at: {error:#}\n{}", log_tails(demo_dir)))?;
    Ok(ExitCode::SUCCESS)
}

async fn play(args: &DemoArgs, demo_dir: &Path) -> Result<()> {
    make_state(demo_dir).context("start")?;
    let bin_dir = args.bin_dir()?;
    let mut agents = Agents::start(&bin_dir, demo_dir).context("start")?;
    let only = args.only.as_ref().map(std::slice::from_ref);
    let (kinds, copied) = (
        only.unwrap_or(Kind::value_variants()),
        only.unwrap_or(&[Kind::Xfs]),
    );
    let mut steps = Steps {
        demo_dir,
        controller: dial(&socket(demo_dir, CONTROLLER)).await?,
        report: Report::new(args.rounds, kinds),
        progress: Progress::new(args.verbose),
        now: String::new(),
    };
    steps.progress.detail(&format!(
        "Belay's two programs run in separate mount and process namespaces.\n  \
         directory {}, disk {} ({STATE_FS}, 1TiB, sparse)\n  \
         controller and node listen on {CONTROLLER}.sock and {NODE}.sock there",
        demo_dir.display(),
        disk(demo_dir)?.display()
    ));
    if let Err(error) = all(&mut steps, copied, &mut agents).await {
        // If a call failed because its program exited, report the exit.
        tokio::time::sleep(EXIT_REPORT).await;
        let exit = agents.both_run().err();
        let exit = exit.map_or(String::new(), |exit| format!("{exit}; "));
        return Err(anyhow!("{}\n  {exit}{error:#}", steps.now));
    }
    steps.progress.finish(&steps.report);
    if args.keep {
        let lines = kept(&bin_dir, demo_dir, args.outer);
        // Do not cut these lines, even if the paths are long.
        for line in screen::section("Kept", &lines) {
            steps.progress.line(&line);
        }
        loop {
            agents.both_run()?;
            tokio::time::sleep(WATCH_PAUSE).await;
        }
    }
    Ok(())
}

/// Runs the lifecycles of every kind, then copies, refusals and kills.
async fn all(steps: &mut Steps<'_>, copied: &[Kind], agents: &mut Agents) -> Result<()> {
    for kind in steps.report.kinds.clone() {
        steps.rounds(kind).await?;
    }
    for &kind in copied {
        steps.copies(kind).await?;
    }
    steps.foreign_byte_is_refused().await?;
    steps.second_writer_is_refused().await?;
    // Measure the agent's memory after all these calls, before it is killed.
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

/// Records memory, threads and child processes of both programs.
///
/// # Errors
/// Fails if a program does not respond, if the node agent exceeds its memory limit, or if it ran
/// mkfs more often than blank volumes were staged.
fn weigh(report: &mut Report, agents: &Agents) -> Result<()> {
    let mut weights = Vec::new();
    for agent in [&agents.node, &agents.controller] {
        let pid = agent.process.id();
        let threads = match status(pid, "Threads")? {
            1 => "1 thread".to_owned(),
            threads => format!("{threads} threads"),
        };
        let (name, resident) = (agent.name, status(pid, "VmRSS")?);
        weights.push(format!("{name} {}, {threads}", size::show(resident << 10)));
        // Debug builds of the programs are several times as large.
        ensure!(
            cfg!(debug_assertions) || name != NODE || resident <= NODE_RESIDENT_KIB_MAX,
            "{NODE} has {resident} KiB resident, over its limit of {NODE_RESIDENT_KIB_MAX}; see \
             benches/BUDGET.md"
        );
    }
    report.fact("Weight", &weights.join("; "));
    let (_, page) = scrape::get(agents.node.http, "/metrics")?;
    let samples = page.lines().filter_map(scrape::sample);
    let formats: f64 = samples
        .filter_map(|(name, _, value)| (name == FORMATS).then_some(value))
        .sum();
    let blank = report.blank_stages;
    ensure!(
        formats.to_string() == blank.to_string(),
        "{blank} volumes were blank, and {NODE} formatted {formats}"
    );
    let text = format!("processes started: {blank} mkfs, one for each blank filesystem");
    report.fact("Weight", &text);
    Ok(())
}

/// Returns the commands for using the kept programs.
fn kept(bin_dir: &Path, demo_dir: &Path, outer: u32) -> [String; 12] {
    [
        "both programs run until Ctrl-C; in another shell:".to_owned(),
        format!("PATH=$PATH:{}", bin_dir.display()),
        format!("cd {}", demo_dir.display()),
        format!("controller=$PWD/{CONTROLLER}.sock node=$PWD/{NODE}.sock"),
        "belayctl --endpoint $controller volume create mine --size 1GiB".to_owned(),
        "belayctl --endpoint $controller volume list".to_owned(),
        "belayctl --endpoint $node node info".to_owned(),
        "tail *.log".to_owned(),
        "their namespaces:".to_owned(),
        "nsenter --mount --pid --target \\".to_owned(),
        format!("    $(pgrep --parent $(pgrep --parent {outer} unshare))"),
        format!("to stop: Ctrl-C here, or kill {outer}"),
    ]
}
