//! The first process in the namespaces: mounts the state filesystem, runs the two programs and the
//! lifecycles. When it exits, everything in its namespaces ends.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;
use std::slice;
use std::time::Duration;

use belay_bed::mounts::mount;
use clap::ValueEnum;
use rustix::mount::MountPropagationFlags;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};

use crate::agents::Agents;
use crate::calls::Calls;
use crate::demo_dir::{CONTROLLER, DemoDir, NODE, STATE_FS};
use crate::failure::Failure;
use crate::kind::{Kind, Part};
use crate::life::Lives;
use crate::progress::Progress;
use crate::report::Report;
use crate::trouble::Trouble;
use crate::{DemoArgs, proof, summary};

/// After a failed call, how long to wait for the exit of the program.
const EXIT_REPORT: Duration = Duration::from_millis(300);

/// Runs the demo in the namespaces that it was started in.
///
/// # Errors
/// The demo failed; the text says what and where, and has the ends of both logs.
pub(crate) async fn run(
    args: &DemoArgs,
    directory: &Path,
    disk: &Path,
) -> Result<ExitCode, Failure> {
    let demo_dir = DemoDir::at(directory);
    // The outer process handles signals; this one must ignore them.
    let _ignored = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    ];
    let mut now = "start".to_owned();
    let played = tokio::select! {
        played = play(args, &demo_dir, disk, &mut now) => played,
        () = leash_let_go()? => return Ok(ExitCode::SUCCESS),
    };
    played.map(|()| ExitCode::SUCCESS).map_err(|trouble| {
        let logs = Agents::log_tails(&demo_dir);
        Failure::Demo(format!("failed at: {now}\n  {trouble}\n{logs}"))
    })
}

/// Returns when the outer process closes the pipe that is our stdin, or is killed.
fn leash_let_go() -> Result<impl Future<Output = ()>, Failure> {
    let stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut leash = pipe::Receiver::from_file(stdin)?;
    Ok(async move {
        // Nothing is written to it: end of file and error mean the same.
        leash.read_u8().await.ok();
    })
}

async fn play(
    args: &DemoArgs,
    demo_dir: &DemoDir,
    disk: &Path,
    now: &mut String,
) -> Result<(), Trouble> {
    let mut progress = Progress::new(args.verbose);
    make_state(demo_dir, disk)?;
    let bin_dir = args
        .bin_dir()
        .map_err(|error| Trouble::own("--bin-dir", std::io::Error::other(error)))?;
    let mut agents = Agents::start(&bin_dir, demo_dir).await?;
    introduce(&mut progress, demo_dir, disk);

    let mut calls = Calls::connect(&demo_dir.socket(CONTROLLER), &demo_dir.socket(NODE)).await?;
    let only = args.only.as_ref().map(slice::from_ref);
    let (mut kinds, mut copied) = (
        only.unwrap_or(Kind::value_variants()),
        only.unwrap_or(&[Kind::Xfs]),
    );
    match args.part {
        Some(Part::Lives) => copied = &[],
        Some(Part::Copies) => kinds = &[],
        None => {}
    }
    let mut report = Report::new(args.rounds, kinds);
    let mut lives = Lives {
        demo_dir,
        calls: &mut calls,
        report: &mut report,
        progress: &mut progress,
        kinds,
        copied,
        rounds: args.rounds,
        now,
    };
    let lived = tokio::select! {
        biased;
        trouble = agents.ended() => Err(trouble),
        lived = lives.all() => lived,
    };
    if let Err(trouble) = lived {
        return Err(cause(trouble, &mut agents).await);
    }
    // Before the agent is killed: its memory after all these calls.
    summary::weigh(lives.progress, &agents, lives.report)?;
    if let Err(trouble) = lives.killed(&mut agents).await {
        return Err(cause(trouble, &mut agents).await);
    }
    "summary".clone_into(now);
    proof::nothing_is_left(demo_dir)?;
    progress.finish(&report);
    if args.keep {
        summary::kept(&mut progress, &bin_dir, demo_dir, args.outer);
        return Err(agents.ended().await);
    }
    "stopping the programs".clone_into(now);
    drop(calls);
    agents.stop().await
}

/// If a call failed because its program exited, reports the exit.
async fn cause(trouble: Trouble, agents: &mut Agents) -> Trouble {
    match tokio::time::timeout(EXIT_REPORT, agents.ended()).await {
        Ok(exit) => Trouble::Ended(format!("{exit}; {trouble}")),
        Err(_both_live) => trouble,
    }
}

/// The filesystem for all state, a shared mount within the namespace like a kubelet's directory.
fn make_state(demo_dir: &DemoDir, disk: &Path) -> Result<(), Trouble> {
    let state = demo_dir.state();
    mount(STATE_FS, disk, &state).map_err(|e| Trouble::own(state.display(), e))?;
    rustix::mount::mount_change(&state, MountPropagationFlags::SHARED)
        .map_err(|e| Trouble::own(state.display(), e))?;
    std::fs::create_dir(demo_dir.bare()).map_err(|e| Trouble::own(demo_dir.bare().display(), e))
}

fn introduce(progress: &mut Progress, demo_dir: &DemoDir, disk: &Path) {
    let (directory, disk) = (demo_dir.path().display(), disk.display());
    progress.detail(&format!(
        "Belay's two programs run in separate mount and process namespaces.\n  \
         directory {directory}, disk {disk} ({STATE_FS}, 1TiB, sparse)\n  \
         controller and node listen on {CONTROLLER}.sock and {NODE}.sock there"
    ));
}
