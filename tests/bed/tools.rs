//! Runs the system's own tools. For tests: it panics.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test ends when a tool is missing or fails"
)]

use std::path::Path;
use std::process::Command;

/// Runs a tool to its end and returns its output.
///
/// # Panics
/// Panics if the tool fails, with its error output.
#[track_caller]
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .output()
        .unwrap_or_else(|error| panic!("cannot run {program}: {error}; `make setup` installs it"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns a path as an argument for [`run`].
///
/// # Panics
/// Panics unless the path is UTF-8.
#[must_use]
pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}
