//! The reaper: a process outside the namespaces, in a session of its own so that Ctrl-C does not
//! reach it. It makes the demo's folder, disk image and loop device, and clears them when the pipe
//! from the outer process ends, for whatever reason. Knows nothing of volumes.
//!
//! The conversation, in lines of words between tabs. It says `ready DEVICE`, `failed WHY`, or
//! `refused WHY` if it could not even make the folder; answers `hold PID` with `held`; and at the
//! end of its input says `cleared N` (loop devices that were still bound) or `left WHAT`.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use belay_bed::devices;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::kind::StateFs;
use crate::place::Place;

/// Size of the disk image; it is sparse.
const DISK_BYTES: u64 = 1 << 40;
/// How long a killed process may take to end, with all its mounts.
const DEATH_SECONDS_MAX: i64 = 20;
/// How long loop devices may take to come free.
const CLEAR_MAX: Duration = Duration::from_secs(20);
/// Pause between two looks at the loop devices: the kernel has no event for "now unbound".
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Plays the reaper for the demo in that folder, until everything is cleared.
pub(crate) async fn run(folder: &Path, state: StateFs) -> ExitCode {
    // Fails only for a leader of a process group, which then is out of reach of Ctrl-C as well.
    rustix::process::setsid().ok();
    let place = Place::at(folder);
    if let Err(error) = place.make() {
        return last_word(&format!("refused\t{error}"), ExitCode::FAILURE);
    }
    let first = match set_up(&place, state) {
        Ok(disk) => format!("ready\t{}", disk.display()),
        Err(error) => format!("failed\t{error}"),
    };
    // Whether anybody hears it or not, the end of the pipe comes next.
    tell(&first);
    if let Some(process) = listen() {
        end(&process);
    }
    match clear(&place).await {
        Ok(count) => last_word(&format!("cleared\t{count}"), ExitCode::SUCCESS),
        Err(error) => last_word(&format!("left\t{error}"), ExitCode::FAILURE),
    }
}

fn set_up(place: &Place, state: StateFs) -> io::Result<PathBuf> {
    let image = place.image();
    std::fs::create_dir(place.state())?;
    File::create_new(&image)?.set_len(DISK_BYTES)?;
    // The children hold our stdout, so that its end tells the outer process, even if we are killed,
    // that nobody is at work any more.
    let held = || io::Result::Ok(Stdio::from(io::stdout().as_fd().try_clone_to_owned()?));
    // A small log: the default for this size would allocate half a gigabyte. And few inodes, since
    // the kernel zeroes the tables of an ext4 while it is in use.
    let (tool, options): (_, &[&str]) = match state {
        StateFs::Xfs => ("mkfs.xfs", &["-q", "-K", "-l", "size=64m"]),
        StateFs::Ext4 => {
            let fast = "nodiscard,lazy_journal_init=1";
            (
                "mkfs.ext4",
                &["-q", "-F", "-E", fast, "-J", "size=64", "-N", "65536"],
            )
        }
    };
    let mut mkfs = Command::new(tool);
    mkfs.args(options).arg(&image);
    let output = mkfs.stdin(held()?).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let text = format!("{tool} {}: {}", image.display(), said.trim());
        return Err(io::Error::other(text));
    }
    devices::bind(&image, &["--nooverlap"], held()?)
}

/// Follows orders until the pipe ends; the last process that it was told to hold.
fn listen() -> Option<OwnedFd> {
    let mut held = None;
    for line in io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let pid = line
            .strip_prefix("hold\t")
            .and_then(|text| text.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        // A descriptor of the process, not its number, which may be reused by then.
        held = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        tell("held");
    }
    held
}

/// Kills the process if it still lives; the kernel then ends its namespaces with all inside.
fn end(process: &OwnedFd) {
    rustix::process::pidfd_send_signal(process, Signal::KILL).ok();
    let patience = Timespec {
        tv_sec: DEATH_SECONDS_MAX,
        tv_nsec: 0,
    };
    // Whether it ended in time or not: clearing the loops is tried, and reports what is left.
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)).ok();
}

/// Releases every loop device of the demo and removes its folder. Says how many were still bound
/// beside the disk itself.
///
/// # Errors
/// What is left, and why.
pub(crate) async fn clear(place: &Place) -> io::Result<usize> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let deadline = Instant::now() + CLEAR_MAX;
    loop {
        let all = devices::list()?;
        let disks = devices::bound_to(&all, &place.image())?;
        let nested = devices::bound_on(&all, &disks);
        if disks.is_empty() {
            break;
        }
        let all_ours: Vec<_> = nested.iter().chain(&disks).collect();
        if Instant::now() > deadline {
            let names: Vec<_> = all_ours
                .iter()
                .map(|l| l.device.to_string_lossy())
                .collect();
            return Err(io::Error::other(format!(
                "{}: still in use",
                names.join(", ")
            )));
        }
        for ours in all_ours {
            devices::release(ours)?;
        }
        for new in nested.into_iter().map(|l| l.device) {
            if !seen.contains(&new) {
                seen.push(new);
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    place.remove()?;
    Ok(seen.len())
}

/// Says a line to the outer process, which may be gone.
fn tell(line: &str) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

/// The end of the conversation. If nobody listens any more, stderr is told.
fn last_word(line: &str, code: ExitCode) -> ExitCode {
    if !tell(line) {
        eprintln!("belay-demo: the reaper {}", line.replace('\t', " "));
    }
    code
}
