//! Loop devices for the bare side, by `losetup`: the ioctls would need unsafe code. Never timed as
//! part of a call.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Binds a free loop device to `file`.
pub(crate) fn attach(file: &Path) -> io::Result<PathBuf> {
    let device = losetup(&["--find", "--show", &file.to_string_lossy()])?;
    Ok(PathBuf::from(device.trim()))
}

/// Lets go of a device: at once, or when its last user does.
pub(crate) fn detach(device: &Path) -> io::Result<()> {
    losetup(&["--detach", &device.to_string_lossy()]).map(|_| ())
}

/// Lets go of every device whose file is on the filesystem with this number, `major:minor`.
pub(crate) fn detach_all_on(filesystem: &str) -> io::Result<()> {
    let columns = "NAME,BACK-MAJ:MIN";
    let list = losetup(&["--list", "--raw", "--noheadings", "--output", columns])?;
    for line in list.lines() {
        if let Some((device, number)) = line.split_once(' ')
            && number.trim() == filesystem
        {
            detach(Path::new(device))?;
        }
    }
    Ok(())
}

/// The program doing nothing: what starting it costs.
pub(crate) fn idle() -> io::Result<()> {
    losetup(&["--version"]).map(|_| ())
}

fn losetup(arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("losetup")
        .args(arguments)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!(
            "losetup {}: {}",
            arguments.join(" "),
            said.trim()
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
