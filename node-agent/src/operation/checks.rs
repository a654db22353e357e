//! The e2fsck that run on this node, for all drivers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belay_server::call::Failure;

/// How many may have outlived their deadlines while another one begins. Each waits in the kernel
/// for a disk that does not answer, and keeps its memory.
const STUCK_MAX: usize = 2;

/// One runs at a time: its memory depends on the volume, and is that of the agent's control group.
#[derive(Default)]
pub(super) struct Checks {
    /// When each of them is killed.
    deadlines: Mutex<Vec<Instant>>,
}

/// Held while an e2fsck runs.
pub(super) struct Running<'a> {
    checks: &'a Checks,
    deadline: Instant,
}

impl Checks {
    /// Begins a check, which is killed after that time. Nothing waits for another one: a second
    /// check would occupy a slot of mkfs. One that was killed and has not ended, since its disk
    /// does not answer, keeps no other volume from its check.
    ///
    /// # Errors
    /// `ABORTED` while another one runs.
    pub(super) fn begin(&self, at_most: Duration) -> Result<Running<'_>, Failure> {
        let now = Instant::now();
        let mut deadlines = self.lock();
        if deadlines.iter().any(|deadline| *deadline > now) {
            return Err(Failure::busy(
                "the ext4 must be checked before it is mounted, and e2fsck is checking another \
                 volume on this node; retry",
            ));
        }
        if deadlines.len() > STUCK_MAX {
            return Err(Failure::busy(format!(
                "the ext4 must be checked before it is mounted, and {} e2fsck of other volumes do \
                 not end, since their disks do not answer; reboot the node, or retry once the \
                 disks answer",
                deadlines.len()
            )));
        }
        let deadline = now + at_most;
        deadlines.push(deadline);
        Ok(Running {
            checks: self,
            deadline,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Instant>> {
        // Each change is one insertion or removal.
        self.deadlines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut deadlines = self.checks.lock();
        if let Some(at) = deadlines.iter().position(|it| *it == self.deadline) {
            deadlines.swap_remove(at);
        }
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
        let refused = |checks: &Checks| checks.begin(HOUR).err().map(|failure| failure.kind);
        let first = checks.begin(HOUR).unwrap();
        assert_eq!(refused(&checks), Some(Kind::Busy));
        drop(first);
        let stuck: Vec<_> = (0..=STUCK_MAX)
            .map(|_| checks.begin(Duration::ZERO).unwrap())
            .collect();
        let failure = checks.begin(HOUR).err().unwrap();
        assert!(failure.message.contains("3 e2fsck"), "{failure}");
        drop(stuck);
        let _stuck = checks.begin(Duration::ZERO).unwrap();
        let second = checks.begin(HOUR).unwrap();
        assert_eq!(refused(&checks), Some(Kind::Busy));
        drop(second);
        assert_eq!(refused(&checks), None);
    }
}
