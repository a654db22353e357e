//! A running job, seen from outside.

use super::Job;
use crate::rpc::Rpc;
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
}

impl<T> Job<T> {
    pub(super) fn look(&self) -> Look {
        Look {
            rpc: self.rpc,
            age: self.since.elapsed(),
            is_hung: self.is_hung,
            doing: self.ticket.doing(),
        }
    }
}

impl fmt::Display for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rpc, seconds) = (self.rpc.name(), self.age.as_secs());
        match self.doing {
            Some(doing) => write!(f, "{rpc} has been running for {seconds} s, now in {doing}"),
            None => write!(f, "{rpc} has been running for {seconds} s"),
        }
    }
}
