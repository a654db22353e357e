//! Lists, binds and releases loop devices with `losetup`. For volumes, belay-node binds devices
//! without any tool.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::patience::pause;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Maximum time for which another process may keep a released device open, in seconds.
const RELEASE_SECONDS_MAX: i64 = 20;

/// Maximum number of free devices that other processes may take first.
const TAKEN_MAX: u32 = 100;

/// A bound loop device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The path of the device node, `/dev/loopN`.
    pub device: PathBuf,
    /// The number of the device.
    number: DeviceNumber,
    /// The inode of the file behind the device.
    inode: u64,
    /// The number of the device with the file's filesystem. sysfs shows the file's path only as in
    /// the mount namespace that bound the device, so this number identifies the file.
    below: DeviceNumber,
}

/// The major and minor number of a device.
type DeviceNumber = (u32, u32);

impl Loop {
    /// Whether the device's file is on the filesystem with this number, the `st_dev` of stat(2).
    #[must_use]
    pub fn is_on(&self, filesystem: u64) -> bool {
        let number = (rustix::fs::major(filesystem), rustix::fs::minor(filesystem));
        self.below == number
    }
}

/// Returns all bound loop devices of the machine.
///
/// # Errors
/// Fails if `losetup` is missing or fails, or if its output cannot be parsed.
pub fn list() -> io::Result<Vec<Loop>> {
    // Do not use --raw, which escapes the blanks with which these columns are padded.
    let columns = "NAME,MAJ:MIN,BACK-INO,BACK-MAJ:MIN";
    let text = losetup(&["--list", "--noheadings", "--output", columns])?;
    let unreadable = |line| io::Error::other(format!("cannot read losetup's line {line:?}"));
    // A line has fewer columns if its device was released while the list was made.
    let whole = text
        .lines()
        .filter(|line| line.split_whitespace().count() == 4);
    whole
        .map(|line| parse(line).ok_or_else(|| unreadable(line)))
        .collect()
}

/// Parses a line of `losetup`; `None` if it is incomplete.
fn parse(line: &str) -> Option<Loop> {
    let mut words = line.split_whitespace();
    Some(Loop {
        device: PathBuf::from(words.next()?),
        number: device_number(words.next()?)?,
        inode: words.next()?.parse().ok()?,
        below: device_number(words.next()?)?,
    })
}

/// Parses `major:minor`.
fn device_number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the devices in `loops` that are bound to `file`.
///
/// # Errors
/// Fails if the file cannot be inspected. A missing file is bound to no device.
pub fn bound_to(loops: &[Loop], file: &Path) -> io::Result<Vec<Loop>> {
    let meta = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        meta => meta?,
    };
    let is_of_file = |l: &&Loop| l.inode == meta.ino() && l.is_on(meta.dev());
    Ok(loops.iter().filter(is_of_file).cloned().collect())
}

/// Returns the devices in `loops` whose files are on a filesystem on one of `disks`.
pub fn bound_on(loops: &[Loop], disks: &[Loop]) -> Vec<Loop> {
    loops
        .iter()
        .filter(|l| disks.iter().any(|disk| disk.number == l.below))
        .cloned()
        .collect()
}

/// Binds a free loop device to `file`. `flags` are additional flags of `losetup`, which has `stdin`
/// open while it runs.
///
/// # Errors
/// Returns the message of `losetup`.
pub fn bind(file: &Path, flags: &[&str], stdin: Stdio) -> io::Result<PathBuf> {
    let mut command = command(&["--find", "--show"]);
    let device = run(command.args(flags).arg(file).stdin(stdin))?;
    Ok(PathBuf::from(device.trim()))
}

/// Binds a free loop device to `file`, again if another process binds or releases the device
/// between the search and the ioctl.
///
/// # Errors
/// Returns the last message of `losetup`.
pub fn bind_again(file: &Path) -> io::Result<PathBuf> {
    for _ in 0..TAKEN_MAX {
        if let Ok(device) = bind(file, &[], Stdio::null()) {
            return Ok(device);
        }
        pause();
    }
    bind(file, &[], Stdio::null())
}

/// Returns the free device with the lowest number, without binding it.
///
/// # Errors
/// Returns the message of `losetup`.
pub fn free() -> io::Result<PathBuf> {
    Ok(PathBuf::from(losetup(&["--find"])?.trim()))
}

/// Releases a device: at once, or when its last user closes it.
///
/// # Errors
/// Returns the message of `losetup`.
pub fn detach(device: &Path) -> io::Result<()> {
    run(command(&["--detach"]).arg(device)).map(drop)
}

/// Releases a loop device, unless its number now belongs to another device. While the device is
/// open here, the kernel cannot reuse the number.
///
/// # Errors
/// Returns the message of `losetup`, or the error of open(2).
pub fn release(ours: &Loop) -> io::Result<()> {
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let hold = OpenOptions::new()
        .read(true)
        .custom_flags(nonblocking)
        .open(&ours.device)?;
    if list()?.contains(ours) {
        detach(&ours.device)?;
    }
    drop(hold);
    Ok(())
}

/// Releases the device that `file` is bound to, and waits until it is unbound, which also closes
/// the file. The device stays bound while another process, such as the `losetup` of another demo,
/// has it open.
///
/// # Errors
/// Fails if the file is bound to no device, or if the device stays open.
pub fn release_and_wait(file: &Path) -> io::Result<()> {
    let watch = inotify::init(CreateFlags::CLOEXEC)?;
    inotify::add_watch(&watch, file, WatchFlags::CLOSE_WRITE)?;
    let unbound = || io::Error::other(format!("{}: no loop device has it", file.display()));
    let all = bound_to(&list()?, file)?;
    let ours = all.first().ok_or_else(unbound)?;
    release(ours)?;
    let patience = Timespec {
        tv_sec: RELEASE_SECONDS_MAX,
        tv_nsec: 0,
    };
    match poll(&mut [PollFd::new(&watch, PollFlags::IN)], Some(&patience))? {
        0 => Err(io::Error::other(format!(
            "{}: another process keeps it open",
            ours.device.display()
        ))),
        _ => Ok(()),
    }
}

fn losetup(arguments: &[&str]) -> io::Result<String> {
    run(&mut command(arguments))
}

/// Creates a command with its own process group: if Ctrl-C interrupted losetup, a device could stay
/// bound.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new("losetup");
    command
        .args(arguments)
        .stdin(Stdio::null())
        .process_group(0);
    command
}

fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let arguments: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn bound(line: &str) -> Loop {
        parse(line).unwrap()
    }

    #[test]
    fn lines_of_losetup_are_read_with_and_without_padding() {
        let expected = Loop {
            device: PathBuf::from("/dev/loop7"),
            number: (7, 7),
            inode: 131,
            below: (254, 0),
        };
        assert_eq!(parse("/dev/loop7 7:7 131 254:0"), Some(expected.clone()));
        assert_eq!(parse("/dev/loop7   7:7     131   254:0  "), Some(expected));
        for unreadable in [
            "/dev/loop7 7:7",
            r"/dev/loop7 \x207:7 131 254:0",
            "/dev/loop7 7:7 x 254:0",
        ] {
            assert_eq!(parse(unreadable), None, "{unreadable}");
        }
    }

    #[test]
    fn a_nested_loop_is_found_by_the_disk_below_it_and_a_stranger_is_not() {
        let disk = bound("/dev/loop0 7:0 9 254:0");
        let nested = bound("/dev/loop1 7:1 131 7:0");
        let stranger = bound("/dev/loop2 7:2 131 254:0");
        let loops = [disk.clone(), nested.clone(), stranger];
        assert_eq!(bound_on(&loops, &[disk]), [nested]);
        assert_eq!(bound_on(&loops, &[]), []);
    }

    #[test]
    #[ignore = "needs root: make test"]
    fn a_release_ends_when_no_process_has_the_device_open() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("disk");
        fs::File::create(&file).unwrap().set_len(1 << 20).unwrap();
        let device = bind(&file, &[], Stdio::null()).unwrap();
        let name = device.file_name().unwrap();
        let kernel = Path::new("/sys/block").join(name).join("loop");
        let other = fs::File::open(&device).unwrap();
        let is_closed = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                // Once the detach is requested, the kernel waits for this last close.
                while fs::read_to_string(kernel.join("autoclear")).unwrap() == "0\n" {
                    std::thread::yield_now();
                }
                // These calls take long enough for a release that does not wait.
                for _ in 0..20 {
                    list().unwrap();
                }
                is_closed.store(true, Ordering::SeqCst);
                drop(other);
            });
            release_and_wait(&file).unwrap();
            assert!(is_closed.load(Ordering::SeqCst), "it did not wait");
        });
        let bound = bound_to(&list().unwrap(), &file).unwrap();
        assert_eq!(bound, []);
        let error = release_and_wait(&file).unwrap_err().to_string();
        assert!(error.ends_with("no loop device has it"), "{error}");
    }

    #[test]
    fn a_file_that_does_not_exist_has_no_loop() {
        let loops = [bound("/dev/loop0 7:0 9 254:0")];
        assert_eq!(
            bound_to(&loops, Path::new("/nonexistent/disk")).unwrap(),
            []
        );
    }
}
