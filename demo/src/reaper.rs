//! The reaper: a process outside the namespaces, in its own session so that Ctrl-C does not reach
//! it. It creates the demo's directory, disk image and loop device, and removes them when the pipe
//! from the outer process is closed, for whatever reason. Does not know volumes.
//!
//! The protocol: lines of words separated by tabs. The reaper sends `ready DEVICE`, `failed WHY`,
//! or `refused WHY` if it could not even create the directory; answers `hold PID` with `held`; and
//! at the end of its input sends `cleared N` (loop devices that were still bound) or `left WHAT`.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use belay_bed::devices;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::demo_dir::{DemoDir, STATE_FS};

/// Size of the disk image; it is sparse.
const DISK_BYTES: u64 = 1 << 40;
/// How long a killed process may take to exit, with all its mounts.
const EXIT_SECONDS_MAX: i64 = 20;
/// How long releasing the loop devices may take.
const CLEAR_MAX: Duration = Duration::from_secs(20);
/// Pause between two checks of the loop devices: the kernel has no event for "unbound".
const CHECK_PAUSE: Duration = Duration::from_millis(20);

/// Runs the reaper for the demo in that directory, until everything is removed.
pub(crate) async fn run(directory: &Path) -> ExitCode {
    // Fails only for the leader of a process group, which Ctrl-C does not reach either.
    rustix::process::setsid().ok();
    let demo_dir = DemoDir::at(directory);
    if let Err(error) = demo_dir.make() {
        return last_word(&format!("refused\t{error}"), ExitCode::FAILURE);
    }
    let first = match set_up(&demo_dir) {
        Ok(disk) => format!("ready\t{}", disk.display()),
        Err(error) => format!("failed\t{error}"),
    };
    // Whether this is read or not, the end of the pipe comes next.
    send(&first);
    if let Some(process) = listen() {
        end(&process);
    }
    match clear(&demo_dir).await {
        Ok(count) => last_word(&format!("cleared\t{count}"), ExitCode::SUCCESS),
        Err(error) => last_word(&format!("left\t{error}"), ExitCode::FAILURE),
    }
}

fn set_up(demo_dir: &DemoDir) -> io::Result<PathBuf> {
    let image = demo_dir.image();
    std::fs::create_dir(demo_dir.state())?;
    File::create_new(&image)?.set_len(DISK_BYTES)?;
    // The children inherit our stdout, so that its end shows the outer process, even if we are
    // killed, that no process is working any longer.
    let held = || io::Result::Ok(Stdio::from(io::stdout().as_fd().try_clone_to_owned()?));
    let tool = format!("mkfs.{STATE_FS}");
    let mut mkfs = Command::new(&tool);
    // A small log: the default for this size would allocate half a gigabyte.
    mkfs.args(["-q", "-K", "-l", "size=64m"]).arg(&image);
    let output = mkfs.stdin(held()?).output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let text = format!("{tool} {}: {}", image.display(), said.trim());
        return Err(io::Error::other(text));
    }
    devices::bind(&image, &["--nooverlap"], held()?)
}

/// Handles requests until the pipe ends. Returns the last process that it was asked to hold.
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
        // A descriptor of the process, not its PID, which may be reused.
        held = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        send("held");
    }
    held
}

/// Kills the process if it still runs; the kernel then ends its namespaces with all processes.
fn end(process: &OwnedFd) {
    rustix::process::pidfd_send_signal(process, Signal::KILL).ok();
    let patience = Timespec {
        tv_sec: EXIT_SECONDS_MAX,
        tv_nsec: 0,
    };
    // In either case, clearing the loop devices is tried, and reports leftovers.
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&patience)).ok();
}

/// Releases every loop device of the demo and removes its directory. Returns how many were still
/// bound, not counting the disk.
///
/// # Errors
/// The leftovers, and why.
pub(crate) async fn clear(demo_dir: &DemoDir) -> io::Result<usize> {
    let mut seen: Vec<PathBuf> = Vec::new();
    let deadline = Instant::now() + CLEAR_MAX;
    loop {
        let all = devices::list()?;
        let disks = devices::bound_to(&all, &demo_dir.image())?;
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
        tokio::time::sleep(CHECK_PAUSE).await;
    }
    demo_dir.remove()?;
    Ok(seen.len())
}

/// Sends a line to the outer process, which may have exited.
fn send(line: &str) -> bool {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).is_ok()
}

/// Sends the last line, or writes it to stderr if the outer process has exited.
fn last_word(line: &str, code: ExitCode) -> ExitCode {
    if !send(line) {
        eprintln!("belay-demo: the reaper {}", line.replace('\t', " "));
    }
    code
}
