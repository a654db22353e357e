//! Reports the progress of a copy, and refreshes the time of its claim file, so that no other call
//! treats the copy as abandoned.

use super::super::super::call::Copied;
use belay_server::call::{Failure, shortened};
use std::time::{Duration, Instant};

/// Time between two reports to the controller.
const SAY: Duration = Duration::from_secs(1);
/// Maximum length of a reported path, in bytes.
const PATH_BYTES_MAX: usize = 1 << 10;
/// Time between two refreshes of the claim file's modification time. A copy that is not refreshed
/// for an hour is treated as abandoned.
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

    /// Reports the progress and refreshes the claim if it is time to do so. This function must be
    /// called often.
    ///
    /// # Errors
    /// Returns `Busy` if another call has changed the claim; the errors of the server.
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

    /// Records that a file has changed while it was copied.
    pub(in super::super) fn changed(&mut self, shown: &str) {
        self.copied.changed += 1;
        let first = &mut self.copied.first_changed;
        first.get_or_insert_with(|| shortened(shown, PATH_BYTES_MAX));
    }

    /// Reports the final figures when the copy is complete.
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
