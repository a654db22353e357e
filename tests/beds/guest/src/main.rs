//! `belay-guest-run PROGRAM ARGUMENT...`: runs a test program of the host in a guest, as cargo's
//! `runner`. The program's changes to devices and mounts affect only the guest.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use belay_guest::{Disk, Gone, Hardware, Kernel, Machine, Medium};

/// The memory that the tests of `belay-node-agent` need.
const MEMORY_MIB: u64 = 1024;
/// The size of the disk with the tests' temporary files, in bytes. Its file is sparse.
const STATE_BYTES: u64 = 8 << 30;
/// The exit code if the program has crashed the guest. If the program exceeds the time limit, this
/// process panics with the same exit code. cargo-mutants counts both as noticed.
const LOST: u8 = 101;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: belay-guest-run PROGRAM ARGUMENT...");
        return ExitCode::from(2);
    };
    let limit = match std::env::var("BELAY_GUEST_SECONDS").map(|limit| limit.parse()) {
        Ok(Ok(seconds)) => Duration::from_secs(seconds),
        Ok(Err(error)) => {
            eprintln!("BELAY_GUEST_SECONDS: {error}");
            return ExitCode::from(2);
        }
        Err(_) => Duration::from_secs(600),
    };
    let kernel = Kernel::newest().unwrap_or_else(Kernel::of_distribution);
    let hardware = Hardware {
        memory: MEMORY_MIB,
        ..Hardware::default()
    };
    let machine = Machine::new(kernel, hardware);
    let state = machine.directory().join("state");
    let medium = Arc::new(Medium::new(&state, STATE_BYTES));
    if let Err(what) = format(&state) {
        eprintln!("mkfs.ext4: {what}");
        return ExitCode::from(2);
    }
    machine.slot(0).insert(Disk::block("state", &medium));
    let mut guest = machine.boot();
    let script = script(&program, &arguments.collect::<Vec<_>>());
    match guest.try_run_within(limit, &script) {
        Ok(output) => {
            let mut out = io::stdout().lock();
            if let Err(error) = writeln!(out, "{}", output.text) {
                eprintln!("the output of the guest: {error}");
            }
            ExitCode::from(u8::try_from(output.code).unwrap_or(LOST))
        }
        Err(Gone) => {
            eprintln!("the guest has crashed:\n{}", guest.console());
            ExitCode::from(LOST)
        }
    }
}

fn format(file: &Path) -> Result<(), String> {
    let mut mkfs = Command::new("mkfs.ext4");
    let made = mkfs.arg("-q").arg(file).stdin(Stdio::null()).status();
    match made {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(status.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Returns a script that runs the program as root in a private mount namespace, in the directory of
/// this process, with the environment variables of this process that are named `BELAY_*`, `CARGO_*`
/// and `RUST*`.
fn script(program: &str, arguments: &[String]) -> String {
    let directory = std::env::current_dir().unwrap_or_default();
    let passed = std::env::vars().filter(|(name, _)| {
        ["BELAY_", "CARGO_", "RUST"]
            .iter()
            .any(|with| name.starts_with(with))
    });
    let passed: String = passed
        .map(|(name, value)| format!("export {name}={}\n", quoted(&value)))
        .collect();
    let words: String = [format!("/machine{program}")]
        .iter()
        .chain(arguments)
        .map(|word| format!(" {}", quoted(word)))
        .collect();
    format!(
        "{passed}export TMPDIR=/state
        mkdir -p /state && mount /dev/disk/by-id/virtio-state /state || exit 2
        cd {} && unshare --mount --propagation private{words} 2>&1",
        quoted(&format!("/machine{}", directory.display())),
    )
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}
