//! Children that do not outlive the process that started them, whichever way that ends.

use std::ffi::OsStr;
use std::io;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

/// A program of this workspace: in `BELAY_BIN_DIR`, else the newest that was built next to this
/// test, by make or by cargo.
///
/// # Errors
/// If there is none.
pub fn binary(name: &str) -> io::Result<PathBuf> {
    if let Some(directory) = std::env::var_os("BELAY_BIN_DIR") {
        return Ok(PathBuf::from(directory).join(name));
    }
    let test = std::env::current_exe()?;
    // <target>/<profile>/deps/<test>
    let target = test.ancestors().nth(3).unwrap_or(&test);
    let built = |path: &PathBuf| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    let missing = || format!("no {name} in {}; run `make build` first", target.display());
    ["bin", "release", "debug"]
        .map(|directory| target.join(directory).join(name))
        .into_iter()
        .filter(|path| built(path).is_some())
        .max_by_key(built)
        .ok_or_else(|| io::Error::other(missing()))
}

/// A program that the kernel kills when the thread that starts it exits (PR_SET_PDEATHSIG), so that
/// it does not outlive a killed test. Without input.
#[must_use]
pub fn program(words: impl IntoIterator<Item: AsRef<OsStr>>) -> Command {
    let mut setpriv = Command::new("setpriv");
    setpriv
        .args(["--pdeathsig", "KILL", "--"])
        .args(words)
        .stdin(Stdio::null());
    setpriv
}

/// A process, killed when this is dropped.
#[derive(Debug)]
pub struct Running(Child);

impl Running {
    /// Starts it.
    ///
    /// # Errors
    /// As execve(2).
    pub fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(Self)
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has exited already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
