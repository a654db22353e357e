//! Runs the calls of a driver. Each call is a job in a table of jobs, and has a class. The work of
//! a job runs on a pool of threads, in a lane that depends on the kind of work. The work is divided
//! into phases, and other threads can read the current phase. This module must not depend on a
//! particular operation.

mod phase;
mod pool;
mod servers;
mod threads;

pub(crate) use phase::{Clock, Operation, Phase, Progress};
pub(crate) use pool::{Lane, Pool, THREADS_MAX, WORKED, apart, measure};
pub(crate) use servers::{Replied, Servers, needs_detach};

use std::time::Duration;

use belay_server::work;

/// Deadline of a read-only call. The kubelet queries all its volumes once a minute.
pub(crate) const READ_DEADLINE: Duration = Duration::from_secs(10);

/// Maximum time that NodeUnpublishVolume waits until the data of its volume is on the disk. A pod
/// must be able to terminate even if the disk does not respond.
const FLUSH_MAX: Duration = Duration::from_secs(30);

/// A class of calls. For each volume, at most one job of a class runs at a time, except for reads
/// at different paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Calls that change a volume.
    Change,
    /// Writes of a volume's data to its disk. NodeUnpublishVolume waits at most [`FLUSH_MAX`] for
    /// such a write.
    Flush,
    /// Reads of the usage of a volume at one path.
    Stats,
    /// Reads of the health of a volume at the paths of the call.
    Health,
    /// Queries whether the controller waits until the volume is unstaged. These queries are not in
    /// [`Class::Change`], because a concurrent call of the kubelet would then fail.
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

/// Registers the descriptions of this module's metrics. Call it once, before the first CSI call.
pub(crate) fn announce() {
    phase::announce();
    pool::announce();
}
