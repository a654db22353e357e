//! A filesystem whose server stops answering: a FUSE server of one file, in this process. Until it
//! is silenced it answers all requests (include/uapi/linux/fuse.h); from then on whatever asks it
//! waits in the kernel.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use rustix::mount::{UnmountFlags, unmount};

use super::patience::pause;
use super::place::Place;

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

/// Longer than a test waits for anything.
const SILENT_MAX: Duration = Duration::from_secs(90);

const ENOENT: i32 = 2;
const ENOSYS: i32 = 38;

/// Bytes of `struct fuse_in_header`.
const HEAD_BYTES: usize = 40;
/// The number of the folder (`FUSE_ROOT_ID`), and that of the file in it.
const ROOT: u64 = 1;
const FILE: u64 = 2;
const FILE_BYTES: u64 = 1 << 20;

/// The mounted filesystem. Unmounted when dropped, and what waits for it goes on with an error.
pub(crate) struct Fuse {
    point: PathBuf,
    is_silent: Arc<AtomicBool>,
    /// Its number in fusectl.
    connection: u32,
    /// Dropped with it.
    end: Option<Sender<()>>,
}

impl Fuse {
    /// Mounts it in the place, with a file of that name in it.
    pub(crate) fn mount(place: &Place, file: &str) -> Self {
        let point = place.folder("fuse");
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .expect("/dev/fuse");
        let mut server = device.try_clone().expect("dup");
        let is_silent = Arc::new(AtomicBool::new(false));
        let (silent, name) = (Arc::clone(&is_silent), file.to_owned());
        std::thread::spawn(move || serve(&mut server, &name, &silent));
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other";
        let mounted = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", options, "belay-test"])
            .arg(&point)
            .stdin(Stdio::from(device))
            .status()
            .expect("mount of util-linux");
        assert!(mounted.success(), "mount -t fuse: {mounted}");
        let connection = rustix::fs::stat(&point).expect("stat").st_dev;
        Fuse {
            point,
            is_silent,
            connection: rustix::fs::minor(connection),
            end: None,
        }
    }

    /// Where it is mounted.
    pub(crate) fn point(&self) -> &Path {
        &self.point
    }

    /// From now on it answers nothing. In a test that fails it comes to an end all the same, since
    /// a process that waits for it cannot even be killed.
    pub(crate) fn silence(&mut self) {
        self.is_silent.store(true, Ordering::SeqCst);
        let (end, ended) = mpsc::channel();
        let connection = self.connection;
        std::thread::spawn(move || {
            if ended.recv_timeout(SILENT_MAX) == Err(RecvTimeoutError::Timeout) {
                abort(connection);
            }
        });
        self.end = Some(end);
    }
}

/// Ends the connection, so that nobody waits for it any more, whoever has it open.
fn abort(connection: u32) {
    let control = PathBuf::from("/sys/fs/fuse/connections");
    let abort = control.join(connection.to_string()).join("abort");
    if !abort.exists() {
        let fusectl = ["-t", "fusectl", "none"];
        // It may be mounted already, by another test.
        drop(Command::new("mount").args(fusectl).arg(&control).output());
    }
    drop(fs::write(&abort, "1"));
}

impl Drop for Fuse {
    fn drop(&mut self) {
        abort(self.connection);
        if let Err(error) = unmount(&self.point, UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.point.display());
        }
    }
}

fn serve(device: &mut File, name: &str, is_silent: &AtomicBool) {
    let mut request = vec![0; 1 << 18];
    loop {
        let length = match device.read(&mut request) {
            Ok(length) => length,
            // Not mounted yet.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                pause();
                continue;
            }
            // Not mounted any more.
            Err(_) => return,
        };
        let request = &request[..length];
        let (kind, unique) = (u32_at(request, 4), u64_at(request, 8));
        if is_silent.load(Ordering::SeqCst) {
            continue;
        }
        let answer = match kind {
            FORGET | INTERRUPT | BATCH_FORGET => continue,
            INIT => Ok(init()),
            LOOKUP if request[HEAD_BYTES..].starts_with(name.as_bytes()) => {
                // Nothing may be remembered: every name and every size is asked for again.
                let mut entry = words(&[FILE, 0, 0, 0, 0]);
                entry.extend(attributes(FILE));
                Ok(entry)
            }
            LOOKUP => Err(ENOENT),
            GETATTR => {
                let mut attr = words(&[0, 0]);
                attr.extend(attributes(u64_at(request, 16)));
                Ok(attr)
            }
            OPEN | OPENDIR => Ok(words(&[1, 0])),
            READ => {
                let length = usize::try_from(u32_at(request, HEAD_BYTES + 16)).expect("small");
                Ok(vec![0; length])
            }
            STATFS => Ok(vec![0; 80]),
            RELEASE | RELEASEDIR | FLUSH => Ok(Vec::new()),
            _ => Err(ENOSYS),
        };
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(errno) => (-errno, Vec::new()),
        };
        let length = u32::try_from(16 + body.len()).expect("small");
        let mut answer = length.to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(unique.to_ne_bytes());
        answer.extend(body);
        // Who asked may have been interrupted.
        drop(device.write(&answer));
    }
}

/// `struct fuse_init_out` of version 7.31: nothing beyond the least is wanted.
fn init() -> Vec<u8> {
    let mut out = Vec::new();
    for word in [7_u32, 31, 1 << 16, 0] {
        out.extend(word.to_ne_bytes());
    }
    for half in [12_u16, 9] {
        out.extend(half.to_ne_bytes());
    }
    // The largest write, and the granularity of times.
    for word in [1_u32 << 16, 1] {
        out.extend(word.to_ne_bytes());
    }
    out.resize(64, 0);
    out
}

/// `struct fuse_attr`.
fn attributes(ino: u64) -> Vec<u8> {
    let (mode, bytes) = match ino {
        ROOT => (0o040_755_u32, 4096),
        _ => (0o100_644, FILE_BYTES),
    };
    let mut attr = words(&[ino, bytes, bytes / 512, 0, 0, 0]);
    // Parts of a second, three times, then the mode, links, owner, group, device and block size.
    for word in [0_u32, 0, 0, mode, 1, 0, 0, 0, 4096, 0] {
        attr.extend(word.to_ne_bytes());
    }
    attr
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
