//! The process inside the namespaces, the first one there: mounts the state filesystem, runs the
//! two binaries and the lives. When it ends, everything in its namespaces ends.

use std::fs::File;
use std::io::Write;
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
use crate::failure::Failure;
use crate::kind::{Kind, Part, StateFs};
use crate::life::Lives;
use crate::place::{CONTROLLER, NODE, Place};
use crate::progress::Progress;
use crate::samples::Samples;
use crate::trouble::Trouble;
use crate::{DemoArgs, proof, summary};
use belay_ctl::Output;

/// How long to wait for the news that a binary died, after a call to it failed.
const OBITUARY: Duration = Duration::from_millis(300);

/// Plays the demo in the namespaces that it was started in.
///
/// # Errors
/// The demo failed; what and where is in the text, with the ends of both logs.
pub(crate) async fn run(args: &DemoArgs, folder: &Path, disk: &Path) -> Result<ExitCode, Failure> {
    let place = Place::at(folder);
    // The outer process decides what a signal means; kept registered, so that none ends this one.
    let _ignored = [
        signal(SignalKind::interrupt())?,
        signal(SignalKind::hangup())?,
    ];
    let mut now = "start".to_owned();
    let played = tokio::select! {
        played = play(args, &place, disk, &mut now) => played,
        () = leash_let_go()? => return Ok(ExitCode::SUCCESS),
    };
    played.map(|()| ExitCode::SUCCESS).map_err(|trouble| {
        let logs = Agents::log_tails(&place);
        Failure::Demo(format!("failed at: {now}\n  {trouble}\n{logs}"))
    })
}

/// Ends when the outer process lets go of the pipe that is our stdin, or is killed.
fn leash_let_go() -> Result<impl Future<Output = ()>, Failure> {
    let stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut leash = pipe::Receiver::from_file(stdin)?;
    Ok(async move {
        // Nothing is ever written to it: end of file and error mean the same here.
        leash.read_u8().await.ok();
    })
}

async fn play(
    args: &DemoArgs,
    place: &Place,
    disk: &Path,
    now: &mut String,
) -> Result<(), Trouble> {
    let progress = Progress::new(args.output);
    make_state(place, disk, args.state_fs)?;
    let bin_dir = args
        .bin_dir()
        .map_err(|error| Trouble::own("--bin-dir", std::io::Error::other(error)))?;
    let mut agents = Agents::start(&bin_dir, place).await?;
    introduce(&progress, place, disk, args.state_fs);

    let mut samples = Samples::default();
    let mut calls = Calls::connect(&place.socket(CONTROLLER), &place.socket(NODE)).await?;
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
    let mut lives = Lives {
        place,
        calls: &mut calls,
        samples: &mut samples,
        progress: &progress,
        kinds,
        copied,
        shares_no_blocks: args.state_fs == StateFs::Ext4,
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
    "summary".clone_into(now);
    summary::times(&progress, &samples, args.rounds, calls.repeated());
    summary::metrics(&progress, &agents)?;
    proof::nothing_is_left(place)?;
    if matches!(args.output, Output::Json) {
        let told = summary::json(&samples, args.rounds, calls.repeated(), args.state_fs);
        writeln!(std::io::stdout().lock(), "{told:#}")?;
    }
    if args.keep {
        summary::kept(&progress, place, args.outer);
        return Err(agents.ended().await);
    }
    "stopping the binaries".clone_into(now);
    drop(calls);
    agents.stop().await
}

/// A call that failed because its binary died is told as the death that it is.
async fn cause(trouble: Trouble, agents: &mut Agents) -> Trouble {
    match tokio::time::timeout(OBITUARY, agents.ended()).await {
        Ok(death) => Trouble::Ended(format!("{death}; {trouble}")),
        Err(_both_live) => trouble,
    }
}

/// The filesystem for all state, shared within the namespace as a kubelet's folder is.
fn make_state(place: &Place, disk: &Path, fs: StateFs) -> Result<(), Trouble> {
    let state = place.state();
    mount(fs.name(), disk, &state).map_err(|e| Trouble::own(state.display(), e))?;
    rustix::mount::mount_change(&state, MountPropagationFlags::SHARED)
        .map_err(|e| Trouble::own(state.display(), e))?;
    std::fs::create_dir(place.bare()).map_err(|e| Trouble::own(place.bare().display(), e))
}

fn introduce(progress: &Progress, place: &Place, disk: &Path, fs: StateFs) {
    let (folder, disk, fs) = (place.dir().display(), disk.display(), fs.name());
    progress.line(&format!(
        "Belay's two binaries run in mount and process namespaces of their own.\n  \
         folder {folder}, disk {disk} ({fs}, 1TiB, sparse)\n  \
         controller and node answer on {CONTROLLER}.sock and {NODE}.sock there"
    ));
}
