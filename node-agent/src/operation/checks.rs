//! Limits the number of processes of a kind on this node, for all drivers together: e2fsck, and the
//! cryptsetup processes that derive a key.

use std::time::{Duration, Instant};

use belay_server::call::Failure;
use belay_server::lock::Lock;

/// Maximum number of killed e2fsck processes that have not exited when a new check begins. Each of
/// these processes waits in the kernel for a disk that does not respond, and keeps its memory.
const STUCK_MAX: usize = 2;

/// The running e2fsck processes. Only one check runs at a time, because its memory grows with the
/// size of the volume and is charged to the agent's control group.
#[derive(Default)]
pub(super) struct Checks {
    running: Lock<Vec<Check>>,
}

struct Check {
    /// A number that identifies this check among the running checks.
    number: u64,
    /// The time at which the check is killed if it is still running.
    deadline: Instant,
    is_killed: bool,
}

/// A permit for one e2fsck process, held while the process runs.
pub(super) struct Running<'a> {
    checks: &'a Checks,
    number: u64,
}

impl Checks {
    /// Permits a check, which is called `what` in messages, and which the caller kills after
    /// `at_most`. Returns an error instead of waiting
    /// for a running check, because a waiting check would occupy a slot for mkfs. A killed check
    /// that cannot exit, because its disk does not respond, does not prevent the check of a
    /// different volume.
    ///
    /// # Errors
    /// Returns `ABORTED` while another check runs, or if too many killed checks have not exited.
    pub(super) fn begin(&self, what: &str, at_most: Duration) -> Result<Running<'_>, Failure> {
        let now = Instant::now();
        let mut running = self.running.lock();
        let may_write = |check: &Check| !check.is_killed && check.deadline > now;
        if running.iter().any(may_write) {
            return Err(Failure::busy(format!(
                "the volume needs {what}, and that of another volume on this node is running; retry"
            )));
        }
        if running.len() > STUCK_MAX {
            return Err(Failure::busy(format!(
                "the volume needs {what}, and {} of other volumes do not end, since their disks do \
                 not answer; reboot the node, or retry once the disks answer",
                running.len()
            )));
        }
        let number = running.iter().map(|check| check.number).max();
        let number = number.map_or(0, |number| number + 1);
        running.push(Check {
            number,
            deadline: now + at_most,
            is_killed: false,
        });
        Ok(Running {
            checks: self,
            number,
        })
    }
}

impl Running<'_> {
    /// Records that the caller has killed the check before its deadline.
    pub(super) fn is_killed(&self) {
        let mut running = self.checks.running.lock();
        if let Some(check) = running.iter_mut().find(|it| it.number == self.number) {
            check.is_killed = true;
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut running = self.checks.running.lock();
        running.retain(|check| check.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use belay_server::call::Kind;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn one_check_runs_at_a_time_and_one_that_does_not_end_keeps_no_other_from_running() {
        let checks = Checks::default();
        let refused = |checks: &Checks| {
            checks
                .begin("e2fsck", HOUR)
                .err()
                .map(|failure| failure.kind)
        };
        let first = checks.begin("e2fsck", HOUR).unwrap();
        assert_eq!(refused(&checks), Some(Kind::Busy));
        drop(first);
        let stuck: Vec<_> = (0..=STUCK_MAX)
            .map(|_| checks.begin("e2fsck", Duration::ZERO).unwrap())
            .collect();
        let failure = checks.begin("e2fsck", HOUR).err().unwrap();
        assert!(failure.message.contains("e2fsck, and 3 of"), "{failure}");
        drop(stuck);
        let _stuck = checks.begin("e2fsck", Duration::ZERO).unwrap();
        let second = checks.begin("e2fsck", HOUR).unwrap();
        assert_eq!(refused(&checks), Some(Kind::Busy));
        drop(second);
        assert_eq!(refused(&checks), None);
    }

    #[test]
    fn one_that_was_killed_before_its_deadline_keeps_no_other_from_running() {
        let checks = Checks::default();
        let killed: Vec<_> = (0..=STUCK_MAX)
            .map(|_| {
                let check = checks.begin("e2fsck", HOUR).unwrap();
                assert!(checks.begin("e2fsck", HOUR).is_err());
                check.is_killed();
                check
            })
            .collect();
        let failure = checks.begin("e2fsck", HOUR).err().unwrap();
        assert!(failure.message.contains("e2fsck, and 3 of"), "{failure}");
        // One of the killed checks has exited.
        drop(killed.into_iter().next());
        let _next = checks.begin("e2fsck", HOUR).unwrap();
        assert!(checks.begin("e2fsck", HOUR).is_err());
    }
}
