//! A disk that does not respond: its filesystem is frozen, so that each writer waits in the kernel.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A script that freezes a filesystem, and thaws it when its input ends, even if the test was
/// killed.
const SCRIPT: &str = r#"fsfreeze --freeze "$1" && echo frozen && cat; fsfreeze --unfreeze "$1""#;

/// Keeps a filesystem frozen until this is dropped. In a failing test, this must be dropped before
/// the agent is. A filesystem that stays frozen hangs every sync(2) of the machine.
pub(crate) struct Frozen(Child);

impl Frozen {
    /// Freezes the filesystem that is mounted at this path.
    pub(crate) fn at(point: &Path) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .arg(point)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let mut line = String::new();
        let output = child.stdout.take().expect("a pipe");
        let read = BufReader::new(output).read_line(&mut line);
        assert_eq!(line, "frozen\n", "fsfreeze {}: {read:?}", point.display());
        Frozen(child)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait());
    }
}
