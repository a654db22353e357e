//! The driver's part of `/metrics` and the status page.

use std::sync::Arc;

use belay_contract::reason::volume;
use belay_server::facts::{Facts, Known, Measuring};

use super::RemoteService;
use crate::kernel::Kernel;

impl<K: Kernel> Facts for RemoteService<K> {
    fn reasons(&self) -> Vec<&'static str> {
        let all = [volume::SERVER_UNREACHABLE, volume::STATISTICS_OLD];
        all.map(|reason| reason.name()).to_vec()
    }

    fn known(&self) -> Known {
        Known {
            storage: None,
            volumes: u64::try_from(self.volumes.count()).ok(),
            unhealthy: self.volumes.unhealthy(),
        }
    }

    fn measure(self: Arc<Self>) -> Measuring {
        // The calls measure.
        Box::pin(async {})
    }
}
