//! A driver's part of `/metrics` and the status page: its volumes as the calls have reported them,
//! and the filesystem of its backing files, measured on the pool.

use std::sync::{Arc, Mutex, PoisonError};

use belay_contract::reason::Reporter;
use belay_server::call::Rpc;
use belay_server::facts::{Facts, Known, Measuring, Space};
use belay_server::work::{Jobs, Ticket};

use super::{NodeService, reads};
use crate::kernel::Kernel;
use crate::operation;
use crate::operation::phase::Progress;
use crate::pool::Lane;

/// The filesystem of the backing files.
pub(super) struct Storage {
    /// One measurement at a time.
    measuring: Jobs<Option<Space>>,
    last: Mutex<Option<Space>>,
}

impl Storage {
    pub(super) fn new() -> Self {
        Storage {
            measuring: Jobs::new(reads::DEADLINE),
            last: Mutex::default(),
        }
    }

    /// Sets the values for the pages.
    pub(super) fn keep(&self, space: Space) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(space);
    }

    fn last(&self) -> Option<Space> {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Kernel> Facts for NodeService<K> {
    fn reasons(&self) -> Vec<&'static str> {
        Reporter::Node.volume_reasons()
    }

    fn known(&self) -> Known {
        Known {
            storage: self.storage.last(),
            volumes: u64::try_from(self.volumes.count()).ok(),
            unhealthy: self.volumes.unhealthy(),
        }
    }

    fn measure(self: Arc<Self>) -> Measuring {
        Box::pin(async move {
            // A driver that is not up, and a disk that does not answer, are reported elsewhere: by
            // readiness, and as a hung operation.
            let Ok(node) = self.node() else { return };
            let pool = Arc::clone(&self.pool);
            let job = |ticket: Ticket| async move {
                let work = move |_: &Progress| operation::space(&node);
                pool.run(&ticket, Lane::Read, work).await
            };
            let rpc = Rpc::NodeGetStorageHealth;
            let measured = self.storage.measuring.run("space", rpc, 0, job).await;
            if let Ok(Some(space)) = measured {
                self.storage.keep(space);
            }
        })
    }
}
