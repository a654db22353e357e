//! A copy of a medium at one moment, as a cloud's snapshot.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::Medium;

impl Medium {
    /// Copies what it has at one moment to a file; its cache too, which is then written.
    ///
    /// # Errors
    /// It cannot be copied.
    pub fn copy(&self, to: &Path) -> io::Result<()> {
        let mut state = self.state();
        let cache = std::mem::take(&mut state.cache);
        let mut pages = cache.iter();
        pages.try_for_each(|(page, content)| state.put(*page, content))?;
        let from = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            state.platter.as_raw_fd()
        );
        let mut cp = Command::new("cp");
        cp.args(["--reflink=auto", "--sparse=always", "--", &from]);
        match cp.arg(to).stdin(Stdio::null()).status()? {
            status if status.success() => Ok(()),
            status => Err(io::Error::other(format!("cp: {status}"))),
        }
    }
}
