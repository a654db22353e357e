//! The execution of a driver's calls: as jobs of one table, each of a class; on a pool of threads
//! with a lane for each kind of work; and in phases, which other threads see while a call runs.
//! Knows no operation.

mod phase;
mod pool;
mod servers;
mod threads;

pub(crate) use phase::{Clock, Operation, Phase, Progress};
pub(crate) use pool::{Lane, Pool, THREADS_MAX, WORKED, apart, measure};
pub(crate) use servers::{Replied, Servers, needs_detach};

use std::time::Duration;

use belay_server::work;

/// How long a read may take: the kubelet queries all its volumes once a minute.
pub(crate) const READ_DEADLINE: Duration = Duration::from_secs(10);

/// How long an unpublish waits until its volume is on the disk. A pod must end even if the disk
/// does not answer.
const FLUSH_MAX: Duration = Duration::from_secs(30);

/// A class of calls. Calls of one class exclude each other on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// Changes a volume.
    Change,
    /// Writes a volume to its disk; part of a change, which does not wait longer for it than
    /// [`FLUSH_MAX`].
    Flush,
    /// Reads the usage of a volume, at one path.
    Stats,
    /// Reads the health of a volume, at the paths of the call.
    Health,
    /// Reads whether a detach of the volume is pending; not a change, since a call of the kubelet
    /// would then be refused.
    Detach,
    /// Reads the storage behind all volumes.
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
    /// The lane of its work.
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
