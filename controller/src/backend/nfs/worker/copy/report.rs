//! Says how far a copy has come, and keeps its claim from being taken for an abandoned one.

use super::super::super::call::Copied;
use belay_server::call::{Failure, shortened};
use std::time::{Duration, Instant};

/// How often the controller hears of a copy.
const SAY: Duration = Duration::from_secs(1);
/// As much of a path is said, in bytes.
const PATH_BYTES_MAX: usize = 1 << 10;
/// How often the claim is refreshed; after an hour without, the copy counts as abandoned.
const REFRESH: Duration = Duration::from_secs(300);

pub(in super::super) struct Report<'a> {
    pub(in super::super) copied: Copied,
    say: &'a dyn Fn(&Copied),
    refresh: &'a dyn Fn() -> Result<(), Failure>,
    said: Instant,
    refreshed: Instant,
}

impl<'a> Report<'a> {
    pub(in super::super) fn new(
        say: &'a dyn Fn(&Copied),
        refresh: &'a dyn Fn() -> Result<(), Failure>,
    ) -> Self {
        let now = Instant::now();
        Self {
            copied: Copied::default(),
            say,
            refresh,
            said: now,
            refreshed: now,
        }
    }

    /// Called all the time.
    ///
    /// # Errors
    /// `Busy` if the claim is another one by now; those of the server.
    pub(in super::super) fn beat(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now.duration_since(self.said) >= SAY {
            self.said = now;
            (self.say)(&self.copied);
        }
        if now.duration_since(self.refreshed) >= REFRESH {
            self.refreshed = now;
            (self.refresh)()?;
        }
        Ok(())
    }

    /// A file has changed while it was copied.
    pub(in super::super) fn changed(&mut self, shown: &str) {
        self.copied.changed += 1;
        let first = &mut self.copied.first_changed;
        first.get_or_insert_with(|| shortened(shown, PATH_BYTES_MAX));
    }

    /// The copy is complete.
    pub(in super::super) fn end(&self) {
        (self.say)(&self.copied);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::super::call::Said;
    use super::*;

    #[test]
    fn a_report_of_any_path_fits_in_a_line() {
        let (say, refresh) = (|_: &Copied| {}, || Ok(()));
        let mut report = Report::new(&say, &refresh);
        report.changed(&format!("{}/", "\u{1}".repeat(255)).repeat(256));
        report.changed("later");
        assert_eq!(report.copied.changed, 2);
        let line = serde_json::to_string(&Said::Copied(report.copied)).unwrap();
        assert!(line.len() < 16 << 10, "{}", line.len());
    }
}
