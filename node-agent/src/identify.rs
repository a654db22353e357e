//! The identity of a driver's node, by its flags or, where they lack something, by the cloud's
//! metadata.

use belay_contract::topology::Topology;

use crate::config::Driver;
use crate::kernel::linux::Linux;
use crate::metadata::{Instance, Sources};
use crate::rpc::NodeIdentity;

/// The identity by the flags alone; `None` if they lack the ID, or a zone that must be reported.
pub(crate) fn by_flags(driver: &Driver) -> Option<NodeIdentity> {
    let (common, node) = (&driver.common, &driver.common.node);
    if node.topology.is_none() && common.with_topology {
        return None;
    }
    Some(identity(
        driver,
        node.id.as_ref()?.as_str(),
        node.topology.as_ref(),
    ))
}

/// A driver whose flags lack something, and the sources for it.
pub(crate) struct Identification {
    driver: Driver,
    sources: Sources,
}

impl Identification {
    /// `None` where the flags say everything.
    pub(crate) fn of(driver: &Driver, kernel: &Linux) -> Option<Self> {
        if by_flags(driver).is_some() {
            return None;
        }
        let metadata = driver.common.kind.profile().metadata?;
        let sources = Sources::new(
            metadata,
            driver.search_order(metadata),
            driver.metadata_address.unwrap_or(metadata.service),
            kernel.clone(),
        );
        Some(Identification {
            driver: driver.clone(),
            sources,
        })
    }

    /// What is reported until the first attempt has ended.
    pub(crate) fn opening(&self) -> String {
        format!(
            "{}: the ID of this node is being read from the cloud's metadata",
            self.driver.common.driver_name
        )
    }

    /// The identity, with what a source answers. Bounded in time.
    ///
    /// # Errors
    /// The reason of each source.
    pub(crate) async fn read(&mut self) -> Result<NodeIdentity, String> {
        let common = &self.driver.common;
        let instance = self.sources.read(common.with_topology).await?;
        let Instance { id, zone, source } = instance;
        let key = common.kind.profile().topology_key;
        let zone = zone.filter(|_| common.with_topology);
        let topology = zone.map(|zone| Topology::of_zone(key, &zone)).transpose();
        let topology = topology.map_err(|error| format!("{source}: zone {error}"))?;
        // An ID that was given is the one that the controller uses.
        let id = common.node.id.as_ref().unwrap_or(&id);
        let zone = topology.as_ref().map(Topology::describe);
        tracing::info!(
            driver = common.driver_name.as_str(),
            node_id = id.as_str(),
            zone,
            "this node is known by the cloud's metadata, from {source}"
        );
        Ok(identity(&self.driver, id.as_str(), topology.as_ref()))
    }
}

fn identity(driver: &Driver, id: &str, topology: Option<&Topology>) -> NodeIdentity {
    NodeIdentity {
        id: id.to_owned(),
        volumes_max: driver.common.max_volumes,
        topology: topology.map(|topology| topology.segments().into_iter().collect()),
    }
}
