//! The log of a program: a pipe, and a collector that writes what it reads from there to the file
//! where a test finds it. It can hang.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use belay_bed::programs::{Running, program};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::text;

/// `PIPE_BUF` of pipe(7): a write of at most this many bytes is done whole or not at all.
const WHOLE: usize = 4096;

/// Copies the pipe to the file. It has the pipe open for writing too, so that a program that exits
/// does not end it.
const COPY: &str = "exec cat <>\"$0\" >>\"$1\"";

/// Becomes the program that follows, with the pipe as its log.
const LOG: &str = "log=$0; exec \"$@\" 2>\"$log\"";

/// A running collector.
pub(super) struct Collector {
    pipe: PathBuf,
    child: Running,
}

impl Collector {
    /// Starts one for the program of that name.
    pub(super) fn start(directory: &Path, name: &str) -> Self {
        let pipe = directory.join(format!("{name}.pipe"));
        mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).expect("mkfifo");
        let log = directory.join(format!("{name}.log"));
        let words = ["sh", "-c", COPY, text(&pipe), text(&log)];
        let child = Running::start(&mut program(words)).expect("setpriv of util-linux");
        Collector { pipe, child }
    }

    /// The command that becomes the program whose log it collects.
    pub(super) fn command(&self) -> Vec<String> {
        let words = ["sh", "-c", LOG, text(&self.pipe)];
        words.map(str::to_owned).to_vec()
    }

    /// It hangs, and the pipe is full: the program's next line waits.
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

    /// It continues.
    pub(super) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("kill");
    }
}
