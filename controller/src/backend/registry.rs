//! The list of all backends.

use super::Backends;
use super::civo::{self, Civo};
use super::digitalocean::{self, DigitalOcean};
use super::local::{self, Local};
use super::nfs::{self, Nfs};
use super::nodes::{self, Nodes};
use super::openstack;
use belay_server::call::Failure;
use belay_server::facts::Facts;
use belay_server::readiness::Readiness;
use std::sync::Arc;

/// The configured backend, with its settings.
#[derive(Clone, Debug)]
pub enum Choice {
    /// Files on this node.
    Local(local::Config),
    /// Files on all nodes of the cluster with this API server.
    Nodes(nodes::Config),
    /// Volumes of OpenStack Cinder.
    Openstack(openstack::Config),
    /// Volumes of DigitalOcean.
    DigitalOcean(digitalocean::Config),
    /// Volumes of Civo.
    Civo(civo::Config),
    /// Directories of NFS servers.
    Nfs(nfs::Config),
}

impl Choice {
    /// Whether the storage requires an account, and so can refuse the credentials.
    #[must_use]
    pub fn has_account(&self) -> bool {
        match self {
            Self::Local(_) | Self::Nfs(_) => false,
            Self::Nodes(_) | Self::Openstack(_) | Self::DigitalOcean(_) | Self::Civo(_) => true,
        }
    }
}

/// The opened backend or backends.
pub struct Opened {
    /// The backend for all calls, or one backend for each cloud.
    pub backends: Backends,
    /// Facts about the storage and its volumes for metrics and the status page; `None` if they
    /// would require queries to a cloud, which `operation/survey.rs` makes once a minute.
    pub facts: Option<Arc<dyn Facts>>,
}

/// Opens a backend, which then reports in `readiness` whether it can serve calls. Blocks the
/// calling thread.
///
/// # Errors
/// Returns the errors of the backend.
pub fn open(choice: Choice, readiness: Readiness) -> Result<Opened, Failure> {
    match choice {
        Choice::Local(config) => {
            let local = Arc::new(Local::open(config, readiness)?);
            Ok(Opened {
                backends: Backends::One(Arc::clone(&local) as Arc<_>),
                facts: Some(local),
            })
        }
        Choice::Nodes(config) => Ok(Opened {
            backends: Backends::One(Arc::new(Nodes::open(config)?)),
            facts: None,
        }),
        Choice::Openstack(config) => Ok(Opened {
            backends: openstack::open(&config)?,
            facts: None,
        }),
        Choice::DigitalOcean(config) => Ok(Opened {
            backends: Backends::One(Arc::new(DigitalOcean::open(config)?)),
            facts: None,
        }),
        Choice::Civo(config) => Ok(Opened {
            backends: Backends::One(Arc::new(Civo::open(config)?)),
            facts: None,
        }),
        Choice::Nfs(config) => Ok(Opened {
            backends: Backends::One(Arc::new(Nfs::new(config))),
            facts: None,
        }),
    }
}
