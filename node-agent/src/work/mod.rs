//! Runs the calls of a driver. Each call is a job in one table and has a class. Its work runs on a
//! pool of threads, which has a lane for each kind of work, and in phases that other threads can
//! read. Must not know a particular operation.

mod phase;
mod pool;
mod servers;
mod threads;

pub(crate) use phase::{Clock, Operation, Phase, Progress};
pub(crate) use pool::{Lane, Pool, THREADS_MAX, WORKED, apart, measure};
pub(crate) use servers::{Replied, Servers, needs_detach};

use std::time::Duration;

use belay_server::work;

/// Deadline of a read. The kubelet queries all its volumes once a minute.
pub(crate) const READ_DEADLINE: Duration = Duration::from_secs(10);

/// Maximum time that an unpublish waits until the data of its volume is on the disk. A pod must be
/// able to terminate even if the disk does not answer.
const FLUSH_MAX: Duration = Duration::from_secs(30);

/// A class of calls. Two jobs of one class never run on a volume at the same time, except reads at
/// different paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Calls that change a volume.
    Change,
    /// Writes of a volume's data to its disk. An unpublish waits at most [`FLUSH_MAX`] for them.
    Flush,
    /// Reads of the usage of a volume at one path.
    Stats,
    /// Reads of the health of a volume at the paths of the call.
    Health,
    /// Queries whether a detach of the volume is pending. They are not in [`Class::Change`], since
    /// they must not make a concurrent call of the kubelet fail.
    Detach,
    /// Reads of the health and the space of the storage behind all volumes.
    Storage,
}

impl work::Class for Class {
    fn deadline(self) -> Duration {
        match self {
            Class::Change => work::CHANGE_DEADLINE,
            Class::Flush => FLUSH_MAX,
            Class::Stats | Class::Health | Class::Detach | Class::Storage => READ_DEADLINE,
        }
    }
}

impl Class {
    /// Returns the lane in which work of this class runs.
    pub(crate) fn lane(self) -> Lane {
        match self {
            Class::Change | Class::Flush => Lane::Change,
            Class::Stats | Class::Health | Class::Detach | Class::Storage => Lane::Read,
        }
    }
}

/// Describes the metrics of this module. Call it once, before the first call.
pub(crate) fn announce() {
    phase::announce();
    pool::announce();
}
