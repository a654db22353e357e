//! What is on the screen while the demo runs: lines that stay, and on a terminal one line that is
//! overwritten. Without a terminal that line does not exist.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::samples;
use belay_ctl::Output;

/// The screen.
pub(crate) struct Progress {
    terminal: bool,
    /// Where the story goes; stdout may be for machines.
    to_stderr: bool,
}

impl Progress {
    pub(crate) fn new(output: Output) -> Self {
        let to_stderr = matches!(output, Output::Json);
        let terminal = if to_stderr {
            io::stderr().is_terminal()
        } else {
            io::stdout().is_terminal()
        };
        Self {
            terminal,
            to_stderr,
        }
    }

    /// A line that stays.
    pub(crate) fn line(&self, text: &str) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        self.write(&format!("{clear}{text}\n"));
    }

    /// A heading; bold where there is a terminal.
    pub(crate) fn heading(&self, text: &str) {
        if self.terminal {
            self.line(&format!("\n\x1b[1m{text}\x1b[0m"));
        } else {
            self.line(&format!("\n{text}"));
        }
    }

    /// A step that is done, with its time and what it showed.
    pub(crate) fn step(&self, label: &str, took: Duration, note: &str) {
        self.line(format!("  {label:<20}{:>11}   {note}", samples::show(took)).trim_end());
    }

    /// What is going on right now, until the next line.
    pub(crate) fn now(&self, text: &str) {
        if self.terminal {
            self.write(&format!("\r\x1b[2K  {text} ..."));
        }
    }

    /// A screen that went away is no reason to leave a volume half-way: its life goes on, and the
    /// outer process hears of the closed terminal by SIGHUP.
    fn write(&self, text: &str) {
        let mut out: Box<dyn Write> = if self.to_stderr {
            Box::new(io::stderr().lock())
        } else {
            Box::new(io::stdout().lock())
        };
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .ok();
    }
}
