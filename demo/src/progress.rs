//! The output of the demo. On a terminal, this is a screen that is drawn in place; elsewhere, plain
//! lines. With `--verbose`, each step has a line.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::report::Report;
use crate::screen::{self, WIDTHS};

/// The minimum time between two updates of the screen, except for updates with a new result.
const DRAW_PAUSE: Duration = Duration::from_millis(100);

/// The output of the demo's outer or inner process.
pub(crate) struct Progress {
    verbose: bool,
    /// Whether the screen is drawn in place.
    in_place: bool,
    colour: bool,
    /// The number of lines of the screen that are currently on the terminal.
    drawn: usize,
    drawn_at: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(verbose: bool) -> Self {
        // Per https://no-color.org, any non-empty value disables colour.
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let capable = io::stdout().is_terminal() && !is_dumb;
        Self {
            verbose,
            in_place: capable && !verbose,
            colour: capable && !no_color,
            drawn: 0,
            drawn_at: None,
        }
    }

    /// Prints a permanent line.
    pub(crate) fn line(&mut self, text: &str) {
        self.drawn = 0;
        write(&format!("{text}\n"));
    }

    /// Prints a line only with `--verbose`.
    pub(crate) fn detail(&mut self, text: &str) {
        if self.verbose {
            self.line(text);
        }
    }

    /// Prints a line about a completed part of the demo, unless the screen already shows this part.
    pub(crate) fn passed(&mut self, text: &str) {
        if !self.in_place {
            self.line(text);
        }
    }

    /// Prints a heading with `--verbose`.
    pub(crate) fn heading(&mut self, text: &str) {
        self.detail(&format!("\n{text}"));
    }

    /// With `--verbose`, prints a finished step with its time and result.
    pub(crate) fn step(&mut self, label: &str, took: &str, note: &str) {
        self.detail(format!("  {label:<20}{took:>11}   {note}").trim_end());
    }

    /// Draws the screen in place, cut to the size of the terminal.
    pub(crate) fn draw(&mut self, report: &Report, now: &str, is_new: bool) {
        let is_due = self.drawn_at.is_none_or(|at| at.elapsed() > DRAW_PAUSE);
        if !self.in_place || !(is_new || is_due) {
            return;
        }
        let (width, height) = size();
        let now = screen::section("Now", &[now.to_owned()]);
        let mut lines = screen::render(report, width);
        lines.truncate(height.saturating_sub(1 + now.len()));
        lines.extend(now);
        self.replace(&lines);
        self.drawn = lines.len();
        self.drawn_at = Some(Instant::now());
    }

    /// Prints the complete screen for the last time.
    pub(crate) fn finish(&mut self, report: &Report) {
        self.passed("");
        self.replace(&screen::render(report, size().0));
    }

    /// Prints a section below the screen.
    pub(crate) fn section(&mut self, label: &str, lines: &[String]) {
        self.replace(&screen::section(label, lines));
    }

    /// Draws the screen over the lines that were drawn before.
    fn replace(&mut self, lines: &[String]) {
        let mut text = match self.drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A"),
        };
        for line in lines {
            let mut line = screen::fit(line, size().0);
            if self.colour {
                line = screen::paint(&line);
            }
            // Erase the line before printing its text: erasing after a full line would erase the
            // last character.
            let erase = if self.in_place { "\x1b[2K" } else { "" };
            text.push_str(&format!("{erase}{line}\n"));
        }
        if self.drawn > lines.len() {
            text.push_str("\x1b[J");
        }
        self.drawn = 0;
        write(&text);
    }
}

/// Returns the columns and rows of the terminal; the smallest supported width without a terminal.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 => (size.ws_col.into(), size.ws_row.max(2).into()),
        _ => (WIDTHS.0, 24),
    }
}

/// Writes to the terminal. Ignores errors, so that a closed terminal does not stop a step half-way;
/// SIGHUP ends the outer process if the terminal closes.
fn write(text: &str) {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes());
    written.and_then(|()| out.flush()).ok();
}
