//! The folder that everything of one run lives in: a tmpfs in a mount namespace of our own, the
//! processes that were started, and how all of it is cleared at the end, whichever end it is.
//!
//! A loop device is ours when its file is on this tmpfs; nothing else can be on it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, exit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mount::{MountFlags, UnmountFlags};
use tokio::signal::unix::{SignalKind, signal};

use crate::loops;

/// What a shell shows for a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;

/// The place of one run. Clones are the same place; it is cleared when the last one goes, at a
/// panic, and at SIGINT or SIGTERM.
#[derive(Clone)]
pub struct Place {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    /// Number of the tmpfs on `dir`, as losetup writes it.
    device: String,
    processes: Mutex<Vec<Child>>,
    /// Held by whoever may change the machine: a sample, or the clearing at the end.
    turn: Mutex<()>,
}

impl Place {
    /// Makes the folder and mounts its tmpfs, and from now on clears it at a signal.
    ///
    /// # Errors
    /// Without root, outside a mount namespace of our own, or where tmpfs cannot be mounted.
    pub fn make() -> io::Result<Self> {
        require_isolation()?;
        let dir = tempfile::Builder::new()
            .prefix("belay-bench.")
            .tempdir()?
            .keep();
        if dir
            .to_string_lossy()
            .contains(|c: char| c.is_whitespace() || c == '\\')
        {
            fs::remove_dir(&dir)?;
            let why = "TMPDIR holds a blank or a backslash; mountinfo would write it otherwise";
            return Err(io::Error::other(why));
        }
        let options = Some(c"size=3g,mode=0700");
        if let Err(errno) =
            rustix::mount::mount("belay-bench", &dir, "tmpfs", MountFlags::empty(), options)
        {
            fs::remove_dir(&dir)?;
            return Err(at("mount a tmpfs on", &dir, errno.into()));
        }
        let device = fs::metadata(&dir)?.dev();
        let device = format!(
            "{}:{}",
            rustix::fs::major(device),
            rustix::fs::minor(device)
        );
        let (processes, turn) = (Mutex::default(), Mutex::default());
        let place = Self {
            inner: Arc::new(Inner {
                dir,
                device,
                processes,
                turn,
            }),
        };
        place.clear_at_signals()?;
        Ok(place)
    }

    /// A path in the place.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.inner.dir.join(name)
    }

    /// A folder in the place, made where it is missing.
    ///
    /// # Errors
    /// As mkdir(2).
    pub fn folder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path).map_err(|error| at("mkdir", &path, error))?;
        Ok(path)
    }

    /// To be held over whatever changes the machine, so that an interruption waits for its end
    /// and nothing new is begun while everything is cleared.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.inner
            .turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process that ends with the place, and returns its number.
    ///
    /// # Errors
    /// As execve(2).
    pub fn spawn(&self, command: &mut Command) -> io::Result<u32> {
        let child = command
            .spawn()
            .map_err(|error| at("start", Path::new(command.get_program()), error))?;
        let process = child.id();
        self.inner.processes().push(child);
        Ok(process)
    }

    /// Ends a process that [`Place::spawn`] started, by SIGKILL.
    ///
    /// # Errors
    /// As kill(2) and waitpid(2).
    pub fn end(&self, process: u32) -> io::Result<()> {
        let mut processes = self.inner.processes();
        let Some(at) = processes.iter().position(|child| child.id() == process) else {
            return Ok(());
        };
        end(processes.swap_remove(at))
    }

    /// Says what went wrong, clears the place and ends the program: for where no error can be
    /// returned, as in the closures of criterion.
    pub fn give_up(&self, error: &io::Error) -> ! {
        eprintln!("belay-benches: {error}");
        self.inner.clear_and_tell();
        exit(1)
    }

    /// A thread waits for the signals; destructors do not run when one ends a program.
    fn clear_at_signals(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        // Weak: a thread that never ends must not keep the place from being cleared.
        let weak = Arc::downgrade(&self.inner);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if runtime.block_on(interrupted()).is_err() {
                    return;
                }
                if let Some(inner) = weak.upgrade() {
                    let _turn = inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
                    inner.clear_and_tell();
                    exit(EXIT_INTERRUPTED);
                }
            })?;
        Ok(())
    }
}

impl Inner {
    fn processes(&self) -> MutexGuard<'_, Vec<Child>> {
        self.processes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it in the one order that works: who mounts, what is mounted on volumes, the loop
    /// devices beneath, and the tmpfs with their files.
    fn clear(&self) -> io::Result<()> {
        for child in self.processes().drain(..) {
            end(child)?;
        }
        for mount in mounts_below(&self.dir)? {
            umount(&mount)?;
        }
        loops::detach_all_on(&self.device)?;
        umount(&self.dir)?;
        fs::remove_dir(&self.dir)
    }

    fn clear_and_tell(&self) {
        if let Err(error) = self.clear() {
            eprintln!(
                "belay-benches: {} is not cleared: {error}",
                self.dir.display()
            );
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.clear_and_tell();
    }
}

fn end(mut child: Child) -> io::Result<()> {
    let killed = child.kill();
    child.wait()?;
    killed
}

/// What is mounted below `dir`, the last mounted first.
fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let points = table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(PathBuf::from);
    let mut below: Vec<_> = points.filter(|p| p.starts_with(dir) && p != dir).collect();
    below.reverse();
    Ok(below)
}

fn umount(path: &Path) -> io::Result<()> {
    rustix::mount::unmount(path, UnmountFlags::NOFOLLOW)
        .map_err(|errno| at("umount", path, errno.into()))
}

/// Until SIGINT or SIGTERM.
async fn interrupted() -> io::Result<()> {
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
    }
    Ok(())
}

/// A run that breaks off must leave the machine's own mounts alone.
fn require_isolation() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other(
            "mounting needs root: run `sudo make bench`",
        ));
    }
    let own = fs::read_link("/proc/self/ns/mnt")?;
    if own == fs::read_link("/proc/1/ns/mnt")? {
        let why =
            "the benches mount, so they want a mount namespace of their own: run `make bench`";
        return Err(io::Error::other(why));
    }
    Ok(())
}

/// An error with what was tried, and on what.
pub(crate) fn at(what: &str, path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}
