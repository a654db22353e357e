//! The log of a program: a pipe, and a collector that copies the pipe to the file where a test
//! finds it. The collector can hang.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use belay_bed::programs::{Running, program};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::text;

/// `PIPE_BUF` of pipe(7): a write of at most this many bytes is atomic.
const WHOLE: usize = 4096;

/// The script of the collector. It also has the pipe open for writing, so that the exit of a
/// program does not end it.
const COPY: &str = "exec cat <>\"$0\" >>\"$1\"";

/// The script that executes the program, with the pipe as its log.
const LOG: &str = "log=$0; exec \"$@\" 2>\"$log\"";

/// A running collector.
pub(super) struct Collector {
    pipe: PathBuf,
    child: Running,
}

impl Collector {
    /// Starts a collector for the program with this name.
    pub(super) fn start(directory: &Path, name: &str) -> Self {
        let pipe = directory.join(format!("{name}.pipe"));
        mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).expect("mkfifo");
        let log = directory.join(format!("{name}.log"));
        let words = ["sh", "-c", COPY, text(&pipe), text(&log)];
        let child = Running::start(&mut program(words)).expect("setpriv of util-linux");
        Collector { pipe, child }
    }

    /// Returns the command that executes a program with its log in the pipe.
    pub(super) fn command(&self) -> Vec<String> {
        let words = ["sh", "-c", LOG, text(&self.pipe)];
        words.map(str::to_owned).to_vec()
    }

    /// Stops the collector, and fills the pipe: the program's next line must wait.
    pub(super) fn stall(&self) {
        self.signal(Signal::STOP);
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let pipe = File::options()
            .write(true)
            .custom_flags(flags)
            .open(&self.pipe);
        let mut pipe = pipe.expect("open");
        let mut bytes = WHOLE;
        while bytes > 0 {
            match pipe.write(&vec![b'.'; bytes]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => bytes /= 2,
                Err(error) => panic!("write: {error}"),
            }
        }
    }

    /// Lets the collector continue.
    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("kill");
    }
}
