//! Children that do not outlive the process that started them, whichever way that ends.

use std::ffi::OsStr;
use std::io;
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};

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
