//! The folder that everything of one run lives in: a tmpfs in a mount namespace of our own, the
//! processes that were started, and how all of it is cleared at the end, whichever end it is.
//!
//! A loop device is ours when its file is on this tmpfs; nothing else can be on it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, exit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belay_bed::devices;
use belay_bed::mounts::mounts_of;
use rustix::mount::{MountFlags, UnmountFlags};
use tokio::signal::unix::{SignalKind, signal};

/// What a shell shows for a program that SIGINT ended.
const EXIT_INTERRUPTED: i32 = 130;

/// Set in the environment of a program that is in a mount namespace of its own.
const ISOLATED: &str = "BELAY_BENCH_ISOLATED";

/// The place of one run. It is cleared when this is dropped, so also at a panic, and at SIGINT and
/// SIGTERM.
pub struct Place {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    /// Number of the tmpfs on `dir`.
    device: u64,
    processes: Mutex<Vec<Child>>,
    is_cleared: Mutex<bool>,
    /// Held by whoever may change the machine: a sample, or the clearing at the end.
    turn: Mutex<()>,
}

impl Place {
    /// Makes the folder and mounts its tmpfs, and from now on clears it at a signal. To be called
    /// first: it begins the program again in a mount namespace of its own.
    ///
    /// # Errors
    /// Without root, or where tmpfs cannot be mounted.
    pub fn make() -> io::Result<Self> {
        isolate()?;
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
        let inner = Inner {
            dir,
            device,
            processes: Mutex::default(),
            is_cleared: Mutex::default(),
            turn: Mutex::default(),
        };
        let place = Self {
            inner: Arc::new(inner),
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

    /// Starts a process that ends with the place, and returns its number. It gets a group of its
    /// own: at Ctrl-C it must not end before we do.
    ///
    /// # Errors
    /// As execve(2).
    pub fn spawn(&self, command: &mut Command) -> io::Result<u32> {
        let child = command
            .process_group(0)
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
        self.inner.clear();
        exit(1)
    }

    /// A thread waits for the signals; destructors do not run when one ends a program.
    fn clear_at_signals(&self) -> io::Result<()> {
        let inner = Arc::clone(&self.inner);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()?;
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if runtime.block_on(interrupted()).is_err() {
                    return;
                }
                let _turn = inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
                inner.clear();
                exit(EXIT_INTERRUPTED);
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

    /// Clears everything, once, and says what is left.
    fn clear(&self) {
        let mut is_cleared = self
            .is_cleared
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *is_cleared {
            return;
        }
        *is_cleared = true;
        for error in self.clear_all() {
            eprintln!("belay-benches: left behind: {error}");
        }
    }

    /// All of it in the one order that works: who mounts, what is mounted on volumes, the loop
    /// devices beneath, and the tmpfs with their files. Goes on after a failure.
    fn clear_all(&self) -> Vec<io::Error> {
        let mut steps: Vec<io::Result<()>> = self.processes().drain(..).map(end).collect();
        match mounts_below(&self.dir) {
            Ok(mounts) => steps.extend(mounts.iter().map(|m| umount(m, UnmountFlags::NOFOLLOW))),
            Err(error) => steps.push(Err(error)),
        }
        steps.push(release_all_on(self.device));
        // Sockets of ours are still bound in it; it goes when they do, with this process.
        let last = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        steps.push(umount(&self.dir, last));
        steps.push(fs::remove_dir(&self.dir).map_err(|error| at("rmdir", &self.dir, error)));
        steps.into_iter().filter_map(Result::err).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.inner.clear();
    }
}

fn end(mut child: Child) -> io::Result<()> {
    let killed = child.kill();
    child.wait()?;
    killed
}

/// What is mounted below `dir`, the last mounted first.
fn mounts_below(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let points = mounts_of("self")?.into_iter().map(|mount| mount.point);
    let mut below: Vec<_> = points.filter(|p| p.starts_with(dir) && p != dir).collect();
    below.reverse();
    Ok(below)
}

fn release_all_on(filesystem: u64) -> io::Result<()> {
    let all = devices::list()?;
    let mut ours = all.iter().filter(|device| device.is_on(filesystem));
    ours.try_for_each(devices::release)
}

fn umount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    rustix::mount::unmount(path, flags).map_err(|errno| at("umount", path, errno.into()))
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

/// Begins this program again in a mount namespace of its own, unless it is in one: a run that
/// breaks off must leave the machine's own mounts alone.
fn isolate() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(io::Error::other(
            "mounting needs root: run `sudo make bench`",
        ));
    }
    if std::env::var_os(ISOLATED).is_some() {
        return Ok(());
    }
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "--"]);
    unshare
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1));
    let error = unshare.env(ISOLATED, "1").exec();
    Err(at("start", Path::new("unshare"), error))
}

/// An error with what was tried, and on what.
pub(crate) fn at(what: &str, path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}
