//! The screen during the demo: permanent lines, and on a terminal one line that is overwritten.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use crate::output::Output;
use crate::samples;

/// The screen.
pub(crate) struct Progress {
    terminal: bool,
    /// Where the steps are printed; stdout may be JSON.
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

    /// Prints a permanent line.
    pub(crate) fn line(&self, text: &str) {
        let clear = if self.terminal { "\r\x1b[2K" } else { "" };
        self.write(&format!("{clear}{text}\n"));
    }

    /// Prints a heading; bold on a terminal.
    pub(crate) fn heading(&self, text: &str) {
        if self.terminal {
            self.line(&format!("\n\x1b[1m{text}\x1b[0m"));
        } else {
            self.line(&format!("\n{text}"));
        }
    }

    /// Prints a finished step, with its time and result.
    pub(crate) fn step(&self, label: &str, took: Duration, note: &str) {
        self.line(format!("  {label:<20}{:>11}   {note}", samples::show(took)).trim_end());
    }

    /// Shows the current step, until the next line.
    pub(crate) fn now(&self, text: &str) {
        if self.terminal {
            self.write(&format!("\r\x1b[2K  {text} ..."));
        }
    }

    /// Ignores errors, so that a closed screen does not stop a volume half-way; the outer process
    /// gets SIGHUP from a closed terminal.
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
