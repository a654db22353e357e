//! Loop devices for the bare side, by `losetup`: the ioctls would need unsafe code. Never timed as
//! part of a call.

use std::io;
use std::os::unix::process::CommandExt;
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
    let list = losetup(&["--list", "--noheadings", "--output", "NAME,BACK-MAJ:MIN"])?;
    for (device, number) in list.lines().filter_map(parse) {
        if number == filesystem {
            detach(Path::new(device))?;
        }
    }
    Ok(())
}

/// A device and the number of the filesystem that its file is on; none once it was let go.
fn parse(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?))
}

/// All that [`attach`] does but the binding: finds a free device.
pub(crate) fn search() -> io::Result<()> {
    losetup(&["--find"]).map(|_| ())
}

fn losetup(arguments: &[&str]) -> io::Result<String> {
    // A group of its own: what Ctrl-C breaks off would be bound, and nobody would know to what.
    let mut command = Command::new("losetup");
    command
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0);
    let output = command.output()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_read_with_its_filesystem_however_it_is_padded() {
        assert_eq!(
            parse("/dev/loop0        0:39"),
            Some(("/dev/loop0", "0:39"))
        );
        assert_eq!(
            parse("/dev/loop11   254:0  "),
            Some(("/dev/loop11", "254:0"))
        );
        assert_eq!(parse("/dev/loop0"), None);
    }
}
