//! The directory of one run: a tmpfs in a separate mount namespace. Also starts processes. Cleans
//! up the directory and the processes, however the run ends.
//!
//! A loop device belongs to the run if its file is on this tmpfs, since no other file can be there.

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

/// The exit code that a shell reports for a program ended by SIGINT.
const EXIT_INTERRUPTED: i32 = 130;

/// The variable that is set in the environment of a program in its own mount namespace.
const ISOLATED: &str = "BELAY_BENCH_ISOLATED";

/// The directory of one run. It is cleared when this is dropped, even after a panic, and at SIGINT
/// and SIGTERM.
pub struct BenchDir {
    inner: Arc<Inner>,
}

struct Inner {
    dir: PathBuf,
    /// The device number of the tmpfs on `dir`.
    device: u64,
    processes: Mutex<Vec<Child>>,
    is_cleared: Mutex<bool>,
    /// The lock held while a sample or the cleanup changes the machine.
    turn: Mutex<()>,
}

impl BenchDir {
    /// Creates the directory, mounts its tmpfs, and starts to handle the signals that clear it.
    /// Must be called first, since it restarts the program in its own mount namespace.
    ///
    /// # Errors
    /// Fails without root, or if a tmpfs cannot be mounted.
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
            let why = "TMPDIR contains a blank or a backslash, which mountinfo escapes";
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
        let bench_dir = Self {
            inner: Arc::new(inner),
        };
        bench_dir.clear_at_signals()?;
        Ok(bench_dir)
    }

    /// Returns a path in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.inner.dir.join(name)
    }

    /// Returns a subdirectory, created if missing.
    ///
    /// # Errors
    /// Returns the errors of mkdir(2).
    pub fn directory(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir_all(&path).map_err(|error| at("mkdir", &path, error))?;
        Ok(path)
    }

    /// Locks the machine for changes: an interruption waits until the lock is released, and no
    /// change begins during the cleanup.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.inner
            .turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process that ends with this directory, and returns its PID. It gets its own process
    /// group: at Ctrl-C, it must not exit before this program.
    ///
    /// # Errors
    /// Returns the errors of execve(2).
    pub fn spawn(&self, command: &mut Command) -> io::Result<u32> {
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|error| at("start", Path::new(command.get_program()), error))?;
        let process = child.id();
        self.inner.processes().push(child);
        Ok(process)
    }

    /// Ends a process that [`BenchDir::spawn`] started, with SIGKILL.
    ///
    /// # Errors
    /// Returns the errors of kill(2) and waitpid(2).
    pub fn end(&self, process: u32) -> io::Result<()> {
        let mut processes = self.inner.processes();
        let Some(at) = processes.iter().position(|child| child.id() == process) else {
            return Ok(());
        };
        end(processes.swap_remove(at))
    }

    /// Reports the error, clears the directory and exits. For code that cannot return an error,
    /// such as criterion's closures.
    pub fn abort(&self, error: &io::Error) -> ! {
        eprintln!("belay-benches: {error}");
        self.inner.clear();
        exit(1)
    }

    /// Starts a thread that waits for the signals, since destructors do not run when a signal ends
    /// a program.
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

    /// Clears everything, once, and reports leftovers.
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
            eprintln!("belay-benches: cannot clean up: {error}");
        }
    }

    /// Clears in the only order that works: processes, mounts of volumes, their loop devices, and
    /// the tmpfs with their files. Continues after a failure.
    fn clear_all(&self) -> Vec<io::Error> {
        let mut steps: Vec<io::Result<()>> = self.processes().drain(..).map(end).collect();
        match mounts_below(&self.dir) {
            Ok(mounts) => steps.extend(mounts.iter().map(|m| umount(m, UnmountFlags::NOFOLLOW))),
            Err(error) => steps.push(Err(error)),
        }
        steps.push(release_all_on(self.device));
        // Sockets of this process are still bound in the tmpfs, which is freed when the process
        // exits.
        let last = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
        steps.push(umount(&self.dir, last));
        steps.push(fs::remove_dir(&self.dir).map_err(|error| at("rmdir", &self.dir, error)));
        steps.into_iter().filter_map(Result::err).collect()
    }
}

impl Drop for BenchDir {
    fn drop(&mut self) {
        self.inner.clear();
    }
}

fn end(mut child: Child) -> io::Result<()> {
    let killed = child.kill();
    child.wait()?;
    killed
}

/// Returns the mounts below `dir`, the last mounted first.
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

/// Waits for SIGINT or SIGTERM.
async fn interrupted() -> io::Result<()> {
    let mut int = signal(SignalKind::interrupt())?;
    let mut term = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
    }
    Ok(())
}

/// Restarts this program in its own mount namespace, unless it already runs in one: an aborted run
/// must leave the machine's mounts alone.
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

/// Adds the operation and the path to an error.
pub(crate) fn at(what: &str, path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}
