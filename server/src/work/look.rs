//! A running job, seen from outside.

use super::Job;
use crate::call::Rpc;
use std::fmt;
use std::time::Duration;

/// What a job was at when somebody looked. Printed, it is a sentence of who, what and how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The call that began it.
    pub rpc: Rpc,
    /// How long ago.
    pub age: Duration,
    /// It is past its deadline.
    pub is_hung: bool,
    /// The work at hand, where it can be seen.
    pub doing: Option<&'static str>,
    /// What it waits for, if it does.
    pub awaited: Option<&'static str>,
}

impl<T> Job<T> {
    pub(super) fn look(&self) -> Look {
        Look {
            rpc: self.rpc,
            age: self.since.elapsed(),
            is_hung: self.is_hung,
            doing: self.ticket.doing(),
            awaited: self.ticket.awaited(),
        }
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rpc, seconds) = (self.rpc.name(), self.age.as_secs());
        write!(f, "{rpc} has been running for {seconds} s")?;
        match (self.awaited, self.doing) {
            (Some(awaited), _) => write!(f, ", and waits for {awaited}"),
            (None, Some(doing)) => write!(f, ", now in {doing}"),
            (None, None) => Ok(()),
        }
    }
}
