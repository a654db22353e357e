//! The kernel's own time: the calls whose time the screen divides, by bare system calls on a
//! similar device, measured in every round of Belay's, by the definitions of benches/BUDGET.md. No
//! RPC, no checks.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belay_bed::{devices, floor};

use crate::demo_dir::DemoDir;
use crate::kind::{Kind, Scene};
use crate::proof;
use crate::samples::{Samples, Step, Who};
use crate::trouble::Trouble;

/// How long another process may keep a device open that is released.
const FREE_MAX: Duration = Duration::from_secs(20);

/// Stage, publish, unpublish and unstage of a formatted volume.
///
/// # Errors
/// A system call or a tool fails.
pub(crate) fn live(
    demo_dir: &DemoDir,
    kind: Kind,
    bytes: i64,
    samples: &mut Samples,
) -> Result<(), Trouble> {
    measure(&demo_dir.bare(), kind, bytes, samples)
        .map_err(|error| Trouble::own(format!("bare system calls, {}", kind.name()), error))
}

fn measure(directory: &Path, kind: Kind, bytes: i64, samples: &mut Samples) -> io::Result<()> {
    let [file, staging, target] = ["disk", "staging", "target"].map(|name| directory.join(name));
    let mut time = |step, work: &dyn Fn() -> io::Result<()>| {
        let started = Instant::now();
        work()?;
        samples.add(Scene::Life(kind), step, Who::Kernel, started.elapsed());
        io::Result::Ok(())
    };
    File::create_new(&file)?.set_len(bytes.cast_unsigned())?;
    match kind {
        Kind::Block => drop(File::create(&staging)?),
        Kind::Ext4 | Kind::Xfs | Kind::Btrfs => fs::create_dir(&staging)?,
    }
    for is_first in [true, false] {
        let device = devices::bind(&file, &["--nooverlap"], Stdio::null())?;
        if is_first {
            mkfs(kind, &device)?;
            floor::stage(kind.name(), &device, &staging)?;
        } else {
            time(Step::StageAgain, &|| {
                floor::stage(kind.name(), &device, &staging)
            })?;
        }
        if !kind.is_block() {
            // Its last user releases the device: so the umount frees it, as with the agent.
            devices::detach(&device)?;
        }
        time(Step::Publish, &|| {
            floor::publish(kind.name(), &staging, &target)
        })?;
        // The same data as in Belay's rounds, since an umount writes what is left of it.
        match is_first {
            true => proof::write(kind, &target, 1),
            false => proof::compare(kind, &target, 1),
        }
        .map_err(io::Error::other)?;
        time(Step::Unpublish, &|| floor::unpublish(kind.name(), &target))?;
        time(Step::Unstage, &|| floor::unstage(&staging))?;
        match kind.is_block() {
            true => devices::release_and_wait(&file)?,
            false => wait_until_free(&file)?,
        }
    }
    match kind.is_block() {
        true => fs::remove_file(&staging)?,
        false => fs::remove_dir(&staging)?,
    }
    fs::remove_file(&file)
}

fn mkfs(kind: Kind, device: &Path) -> io::Result<()> {
    let (tool, options): (_, &[&str]) = match kind {
        Kind::Block => return Ok(()),
        Kind::Ext4 => ("mkfs.ext4", &["-q", "-F", "-E", "nodiscard"]),
        Kind::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"]),
        Kind::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"]),
    };
    let mut mkfs = Command::new(tool);
    let output = mkfs
        .args(options)
        .arg(device)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{tool}: {}", said.trim())));
    }
    Ok(())
}

/// Waits until the device of `file` is free: the last umount releases it, but another process, such
/// as udev, may have it open.
fn wait_until_free(file: &Path) -> io::Result<()> {
    let deadline = Instant::now() + FREE_MAX;
    while !devices::bound_to(&devices::list()?, file)?.is_empty() {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("{}: still bound", file.display())));
        }
        std::thread::yield_now();
    }
    Ok(())
}
