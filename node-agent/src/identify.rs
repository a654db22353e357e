//! The identity of a driver's node. The command-line flags contain the ID and the zone. If one of
//! them is not set, it is read from the cloud's metadata or from a file on the node.

use std::path::{Path, PathBuf};

use belay_contract::drivers::InstanceFile;
use belay_contract::topology::Topology;
use belay_server::request::NodeId;

use crate::config::Driver;
use crate::kernel::linux::Linux;
use crate::metadata::file::{self, Facts};
use crate::metadata::{Instance, Sources};
use crate::rpc::NodeIdentity;
use crate::work;

/// Returns the identity if the flags alone determine it. Returns `None` if the ID is not set, if
/// the zone must be reported but is not set, or if a file on the node takes precedence over the
/// flags.
pub(crate) fn by_flags(driver: &Driver) -> Option<NodeIdentity> {
    let (common, node) = (&driver.common, &driver.common.node);
    let topology = node.topology.clone().or_else(|| zone_by_flag(driver));
    if topology.is_none() && common.with_topology {
        return None;
    }
    Some(identity(
        driver,
        node.id.as_ref()?.as_str(),
        topology.as_ref(),
    ))
}

/// Returns the zone in `--node-zone`; `None` if the flag is not set, or if a file on the node takes
/// precedence.
fn zone_by_flag(driver: &Driver) -> Option<Topology> {
    let profile = driver.common.kind.profile();
    profile.metadata?;
    // The conversion cannot fail, because the value was checked when the flags were parsed.
    Topology::of_zone(profile.topology_key, driver.node_zone.as_deref()?).ok()
}

/// A driver whose flags do not contain the whole identity of the node, and the source of the
/// missing part.
pub(crate) struct Identification {
    driver: Driver,
    from: From,
}

enum From {
    Cloud(Sources),
    File(PathBuf, &'static InstanceFile),
}

impl Identification {
    /// Returns the source of the part of the identity that the driver's flags do not contain;
    /// `None` if the flags contain the whole identity.
    pub(crate) fn of(driver: &Driver, kernel: &Linux) -> Option<Self> {
        if by_flags(driver).is_some() {
            return None;
        }
        let profile = driver.common.kind.profile();
        let from = match (profile.metadata, profile.instance_file) {
            (Some(metadata), _) => From::Cloud(Sources::new(
                metadata,
                driver.search_order(metadata),
                driver.metadata_address.unwrap_or(metadata.service),
                kernel.clone(),
            )),
            (None, Some(file)) => {
                let path = driver.instance_file.clone();
                From::File(path.unwrap_or_else(|| file.path.into()), file)
            }
            (None, None) => return None,
        };
        Some(Identification {
            driver: driver.clone(),
            from,
        })
    }

    /// Returns the message that is the driver's status during the first attempt to read the source.
    pub(crate) fn opening(&self) -> String {
        let from = match &self.from {
            From::Cloud(_) => "the cloud's metadata".to_owned(),
            From::File(path, _) => path.display().to_string(),
        };
        format!(
            "{}: the {} of this node is being read from {from}",
            self.driver.common.driver_name,
            self.lacking()
        )
    }

    /// Returns the word for the part of the identity that the flags do not contain.
    fn lacking(&self) -> &'static str {
        match self.driver.common.node.id {
            None => "ID",
            Some(_) => "zone",
        }
    }

    /// Reads the missing part from its source, and returns the whole identity. There is a time
    /// limit for each source.
    ///
    /// # Errors
    /// Returns a message with the reason why each source did not supply the ID or the zone.
    pub(crate) async fn read(&mut self) -> Result<NodeIdentity, String> {
        let driver = &self.driver;
        let common = &driver.common;
        let (lacking, flags) = match (&common.node.id, common.with_topology) {
            (Some(_), _) => ("zone", "--node-zone replaces it"),
            (None, false) => ("ID", "--node-id replaces it"),
            (None, true) => ("ID and zone", "--node-id and --node-zone replace them"),
        };
        let instance = match &mut self.from {
            From::Cloud(sources) => {
                let needs_zone = common.with_topology && driver.node_zone.is_none();
                let read = sources.read(needs_zone).await;
                read.map_err(|why| {
                    format!(
                        "the {lacking} of this node cannot be read from the cloud's metadata: \
                         {why}; {flags}"
                    )
                })?
            }
            From::File(path, keys) => {
                let (at, keys) = (path.clone(), *keys);
                let read = work::apart(move || file::read(&at, keys)).await;
                let read = read.map_err(|failure| failure.message)?;
                by_file(driver, path, read)?
            }
        };
        let Instance { id, zone, source } = instance;
        let key = common.kind.profile().topology_key;
        let zone = zone.or_else(|| driver.node_zone.clone());
        let zone = zone.filter(|_| common.with_topology);
        let topology = zone.map(|zone| Topology::of_zone(key, &zone)).transpose();
        let topology = topology.map_err(|error| format!("{source}: zone {error}"))?;
        // If the flag `--node-id` is set, the controller uses the same ID.
        let id = common.node.id.as_ref().unwrap_or(&id);
        let zone = topology.as_ref().map(Topology::describe);
        tracing::info!(
            driver = common.driver_name.as_str(),
            node_id = id.as_str(),
            zone,
            "this node was identified by {source}"
        );
        Ok(identity(driver, id.as_str(), topology.as_ref()))
    }
}

/// Returns the node's ID and zone. `--node-id` takes precedence over the ID in the file, and
/// `--node-name` replaces a missing ID. The region in the file takes precedence over `--node-zone`.
fn by_file(driver: &Driver, path: &Path, read: Result<Facts, String>) -> Result<Instance, String> {
    let path = path.display();
    let facts = read.unwrap_or_else(|why| {
        tracing::warn!("{path}: {why}; the flags are used instead");
        Facts::default()
    });
    let node = &driver.common.node;
    let id = facts.id.map(NodeId::new).transpose();
    let id = id.map_err(|failure| format!("{path}: {failure}"))?;
    let source = match (&node.id, &id) {
        (None, Some(_)) => "--instance-file",
        (Some(_), _) => "--node-id",
        (None, None) => "--node-name",
    };
    let id = node.id.clone().or(id).or_else(|| node.name.clone());
    let id = id.ok_or_else(|| {
        format!(
            "{path}: does not contain the ID of this node; set --node-name, or set --node-id to \
             the ID of the instance"
        )
    })?;
    let zone = facts.region.or_else(|| driver.node_zone.clone());
    if zone.is_none() && driver.common.with_topology {
        return Err(format!("{path}: has no region; set --node-zone"));
    }
    Ok(Instance { id, zone, source })
}

fn identity(driver: &Driver, id: &str, topology: Option<&Topology>) -> NodeIdentity {
    let more = driver.additional_topology.iter();
    let more = more.map(|segment| (segment.key.clone(), segment.value.clone()));
    NodeIdentity {
        id: id.to_owned(),
        volumes_max: driver.common.max_volumes,
        topology: topology.map(|topology| topology.segments().into_iter().chain(more).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn driver(more: &[&str]) -> Driver {
        let own = [
            "belay-node",
            "--driver-kind=civo",
            "--endpoint=/csi/civo.sock",
        ];
        let config = Config::of_words(own.iter().chain(more));
        let mut drivers = config.drivers();
        drivers.next().unwrap().clone()
    }

    fn facts(id: Option<&str>, region: Option<&str>) -> Result<Facts, String> {
        Ok(Facts {
            id: id.map(str::to_owned),
            region: region.map(str::to_owned),
        })
    }

    #[test]
    fn a_node_is_known_by_its_flag_its_file_or_its_name_in_this_order() {
        let id = |more: &[&str], read| {
            let found = by_file(&driver(more), Path::new("/f"), read);
            found.map(|instance| instance.id.as_str().to_owned())
        };
        let named = ["--node-name=node-1"];
        let both = ["--node-name=node-1", "--node-id=i-0"];
        let own = |text: &str| Ok(text.to_owned());
        assert_eq!(id(&named, facts(Some("i-1"), None)), own("i-1"));
        assert_eq!(id(&both, facts(Some("i-1"), None)), own("i-0"));
        assert_eq!(id(&named, facts(None, None)), own("node-1"));
        assert_eq!(id(&named, Err("not TOML".to_owned())), own("node-1"));
        assert_eq!(id(&[], facts(Some("i-1"), None)), own("i-1"));
        let refused = id(&[], facts(None, None)).unwrap_err();
        assert!(refused.contains("set --node-name"), "{refused}");
    }

    #[test]
    fn the_topology_is_the_zone_and_what_the_flags_add() {
        let own = [
            "belay-node",
            "--driver-kind=openstack",
            "--endpoint=/csi.sock",
        ];
        let more = [
            "--with-topology",
            "--additional-topology=topology.kubernetes.io/region=one,rack=r1",
        ];
        let config = Config::of_words(own.iter().chain(&more));
        let driver = config.drivers().next().unwrap();
        assert_eq!(by_flags(driver).map(|_| ()), None, "the zone is read");
        let zone = Topology::new("zone", "nova").unwrap();
        let mut found: Vec<_> = identity(driver, "id", Some(&zone))
            .topology
            .unwrap()
            .into_iter()
            .collect();
        found.sort();
        let expected = [
            ("rack", "r1"),
            ("topology.kubernetes.io/region", "one"),
            ("zone", "nova"),
        ];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn an_id_and_a_zone_by_flags_need_no_metadata_and_what_is_lacking_is_named() {
        let cloud = |more: &[&str]| {
            let own = [
                "belay-node",
                "--driver-kind=openstack",
                "--endpoint=/csi.sock",
                "--with-topology",
            ];
            let config = Config::of_words(own.iter().chain(more));
            let driver = config.drivers().next().unwrap();
            let unknown = Identification::of(driver, &Linux::for_helper());
            let zone = by_flags(driver).and_then(|identity| identity.topology);
            (zone, unknown.map(|unknown| unknown.opening()))
        };
        let (zone, unknown) = cloud(&["--node-id=i-1", "--node-zone=z 1"]);
        let key = "topology.cinder.csi.openstack.org/zone".to_owned();
        assert_eq!(zone.unwrap(), [(key, "z-1".to_owned())].into());
        assert_eq!(unknown, None);
        for (flag, lacking) in [("--node-id=i-1", "zone"), ("--node-zone=z1", "ID")] {
            let (zone, unknown) = cloud(&[flag]);
            let expected = format!("the {lacking} of this node is being read");
            assert!(zone.is_none() && unknown.unwrap().contains(&expected));
        }
    }

    #[tokio::test]
    async fn a_failed_reading_names_what_is_lacking_and_its_flag() {
        // No process listens on TCP port 1.
        let own = [
            "belay-node",
            "--driver-kind=openstack",
            "--endpoint=/csi.sock",
            "--with-topology",
            "--metadata-search-order=metadataService",
            "--metadata-address=127.0.0.1:1",
        ];
        for (more, lacking, flag) in [
            (&[][..], "the ID and zone", "--node-id and --node-zone"),
            (&["--node-id=i-1"][..], "the zone", "--node-zone"),
        ] {
            let config = Config::of_words(own.iter().chain(more));
            let driver = config.drivers().next().unwrap();
            let mut unknown = Identification::of(driver, &Linux::for_helper()).unwrap();
            let refused = unknown.read().await.map(drop).unwrap_err();
            let start = format!("{lacking} of this node cannot be read from the cloud's metadata");
            assert!(
                refused.starts_with(&start) && refused.contains(flag),
                "{refused}"
            );
        }
    }

    #[test]
    fn the_region_is_that_of_the_file_or_of_the_flag_and_needed_for_topology() {
        let region = |more: &[&str], read| {
            let more = [more, &["--node-name=node-1", "--with-topology"]].concat();
            by_file(&driver(&more), Path::new("/f"), read).map(|instance| instance.zone)
        };
        let flag = ["--node-zone=FRA1"];
        let own = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(region(&flag, facts(None, Some("LON1"))), own("LON1"));
        assert_eq!(region(&flag, facts(None, None)), own("FRA1"));
        let refused = region(&[], facts(Some("i-1"), None)).unwrap_err();
        assert!(refused.contains("set --node-zone"), "{refused}");
    }
}
