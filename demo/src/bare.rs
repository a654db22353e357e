//! Measures the kernel's own time: makes the timed calls as bare system calls on a similar device,
//! in each of Belay's rounds, as benches/BUDGET.md defines.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::Result;
use belay_bed::{devices, floor, patience};

use crate::data;
use crate::demo_dir::{BARE, mkfs};
use crate::report::{Kind, PUBLISH, Report, STAGE_AGAIN, Side, UNPUBLISH, UNSTAGE};

/// Measures stage, publish, unpublish and unstage of a formatted filesystem.
///
/// # Errors
/// Fails if a system call or a tool fails.
pub(crate) fn live(demo_dir: &Path, kind: Kind, bytes: i64, report: &mut Report) -> Result<()> {
    let [file, staging, target] =
        ["disk", "staging", "target"].map(|name| demo_dir.join(BARE).join(name));
    let mut time = |step, work: &dyn Fn() -> io::Result<()>| {
        let started = Instant::now();
        work()?;
        report.add(kind, step, Side::Kernel, started.elapsed());
        io::Result::Ok(())
    };
    File::create_new(&file)?.set_len(bytes.cast_unsigned())?;
    fs::create_dir(&staging)?;
    for is_first in [true, false] {
        let device = devices::bind(&file, &["--nooverlap"], Stdio::null())?;
        let stage = || floor::stage(kind.name(), &device, &staging);
        if is_first {
            let options: &[&str] = match kind {
                Kind::Ext4 => &["-q", "-F", "-E", "nodiscard"],
                _ => &["-q", "-f", "-K"],
            };
            mkfs(kind.name(), options, &device)?;
            stage()?;
        } else {
            time(STAGE_AGAIN, &stage)?;
        }
        // The kernel defers this until the last user closes the device: the umount releases it, as
        // with the agent.
        devices::detach(&device)?;
        time(PUBLISH, &|| floor::publish(kind.name(), &staging, &target))?;
        // Write the same data as in Belay's rounds, since an umount flushes dirty pages.
        if is_first {
            data::write(kind, &target, 1)?;
        } else {
            data::compare(kind, &target, 1)?;
        }
        time(UNPUBLISH, &|| floor::unpublish(kind.name(), &target))?;
        time(UNSTAGE, &|| floor::unstage(&staging))?;
        // Another process, such as udev, may have the device open.
        patience::until(&format!("{} is free", device.display()), || {
            let bound = devices::list().and_then(|all| devices::bound_to(&all, &file));
            bound.is_ok_and(|bound| bound.is_empty())
        });
    }
    fs::remove_dir(&staging)?;
    Ok(fs::remove_file(&file)?)
}
