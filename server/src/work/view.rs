//! The view of a running job from outside.

use super::{Doing, Job};
use crate::call::Rpc;
use std::fmt;
use std::time::Duration;

/// A running job at one moment. Printed, it is a sentence with the call, its age and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobView {
    /// The call that started it.
    pub rpc: Rpc,
    /// The job's age.
    pub age: Duration,
    /// It has exceeded its deadline, and makes no headway that could be seen.
    pub is_hung: bool,
    /// The current work, where known.
    pub doing: Option<Doing>,
    /// What it waits for, if it does.
    pub awaited: Option<&'static str>,
}

impl<T> Job<T> {
    pub(super) fn view(&self) -> JobView {
        JobView {
            rpc: self.rpc,
            age: self.since.elapsed(),
            is_hung: self.is_hung,
            doing: self.ticket.doing(),
            awaited: self.ticket.awaited(),
        }
    }
}

impl fmt::Display for JobView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rpc, seconds) = (self.rpc.name(), self.age.as_secs());
        write!(f, "{rpc} has been running for {seconds} s")?;
        match (self.awaited, self.doing) {
            (Some(awaited), _) => write!(f, ", waiting for {awaited}"),
            (None, Some(doing)) => write!(f, ", now in {doing}"),
            (None, None) => Ok(()),
        }
    }
}
