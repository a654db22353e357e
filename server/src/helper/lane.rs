//! The names of a program's helper processes, and the limits on their number. Makes no calls.

use metrics::{Gauge, gauge};

/// The names and limits of a program's helper processes.
#[derive(Debug)]
pub struct Spec {
    /// The word before "process" in error messages.
    pub name: &'static str,
    /// Name of the gauge that counts processes, by `state`.
    pub processes: &'static str,
    /// Name of the gauge for the number of calls that are waiting until a process may be started.
    /// `None` if waiting calls are not counted.
    pub waiting: Option<&'static str>,
    /// Name of the counter of killed processes.
    pub kills: &'static str,
}

impl Spec {
    pub(super) fn one_more(&self, state: &'static str) -> More {
        More::of(gauge!(self.processes, "state" => state))
    }
}

/// A group of processes, whose number is limited for each server.
#[derive(Debug, PartialEq, Eq)]
pub struct Group {
    /// Maximum number of processes.
    pub slots: usize,
    pub(super) purpose: &'static str,
    pub(super) is_kept: bool,
}

impl Group {
    /// Creates a group of at most `slots` processes. The `purpose` identifies the group, and
    /// appears in error messages.
    #[must_use]
    pub const fn new(slots: usize, purpose: &'static str) -> Self {
        Self {
            slots,
            purpose,
            is_kept: false,
        }
    }

    /// Lets a killed process keep its slot of this group until it has exited.
    #[must_use]
    pub const fn kept(self) -> Self {
        Self {
            is_kept: true,
            ..self
        }
    }
}

/// A class of calls, with the limits on their helper processes.
#[derive(Debug, PartialEq, Eq)]
pub struct Lane {
    pub(super) groups: &'static [Group],
    pub(super) killed_max: usize,
}

impl Lane {
    /// Creates a lane. Each call takes a slot of each of these groups, in this order. A call is
    /// refused if `killed_max` killed processes of the server, in all lanes together, have not
    /// exited.
    #[must_use]
    pub const fn new(groups: &'static [Group], killed_max: usize) -> Self {
        Self { groups, killed_max }
    }
}

/// Increments a gauge by one, and decrements the gauge when this value is dropped.
pub(super) struct More(Gauge);

impl More {
    pub(super) fn of(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        More(gauge)
    }
}

impl Drop for More {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}
