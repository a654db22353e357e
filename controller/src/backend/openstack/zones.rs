//! Availability zones. Availability zones: Cinder has zones for volumes, and Nova has zones for
//! servers. If topology is enabled, a volume is created in the requested zone, and the actual zone
//! of the volume determines the nodes on which its pods can run. As in cinder-csi-plugin, the zones
//! of volumes can be ignored.

use super::client::{Client, Service};
use super::wire::{AVAILABILITY, CinderVolume};
use belay_contract::topology::Topology;
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use belay_server::request::{Segments, TopologyRequirement};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The reason why a volume may be in a zone that was not requested, with the remedy.
pub(super) const ELSEWHERE: &str = "Cinder chooses the zone itself, with \
    allow_availability_zone_fallback in cinder.conf, if it or the volume type does not have the \
    requested one; choose another zone or type in the class, or, if servers can attach volumes of \
    other zones, set ignore-volume-az = true in [BlockStorage] of cloud.conf";

/// The zones that are reported as the topology of volumes.
pub(super) struct Zones {
    client: Arc<Client>,
    /// The topology key; `None` if zones are not reported.
    key: Option<&'static str>,
    /// Whether the zones of volumes are ignored: volumes are reported as reachable from every
    /// preferred topology.
    are_ignored: bool,
    /// The names of Cinder's zones when they were last read.
    names: Lock<BTreeSet<String>>,
}

impl Zones {
    pub(super) fn new(client: Arc<Client>, key: Option<&'static str>, are_ignored: bool) -> Self {
        let names = Lock::default();
        Self {
            client,
            key,
            are_ignored,
            names,
        }
    }

    /// Returns the topology key if the zone of a volume is its topology.
    pub(super) fn key(&self) -> Option<&'static str> {
        self.key.filter(|_| !self.are_ignored)
    }

    /// Whether volumes are reported as reachable from every preferred topology.
    pub(super) fn are_ignored(&self) -> bool {
        self.key.is_some() && self.are_ignored
    }

    /// Returns the zone in which a volume must be created: the first requested zone. A label value
    /// cannot contain every character of a zone's name, so the label is converted to the name in
    /// Cinder.
    ///
    /// # Errors
    /// Returns `Quota` if Cinder has none of the zones that the caller accepts, so that the
    /// scheduler can select another node. If the call continued, Cinder could select a zone in
    /// which no node can use the volume.
    pub(super) async fn asked(
        &self,
        asked: Option<&TopologyRequirement>,
    ) -> Result<Option<String>, Failure> {
        let (Some(key), Some(asked)) = (self.key, asked) else {
            return Ok(None);
        };
        let mut topologies = asked.preferred.iter().chain(&asked.requisite);
        let Some(label) = topologies.find_map(|segments| segments.get(key)) else {
            return Ok(None);
        };
        if let Some(name) = self.known(key, label) {
            return Ok(Some(name));
        }
        if let Err(failure) = self.read().await {
            // Cinder itself then accepts or refuses the label as the name of a zone.
            let cloud = self.client.label();
            tracing::debug!(cloud, %failure, "the zones of volumes are not known");
            return Ok(Some(label.clone()));
        }
        if let Some(name) = self.known(key, label) {
            return Ok(Some(name));
        }
        self.refuse_unknown(asked)?;
        Ok(Some(label.clone()))
    }

    /// Refuses a topology if none of its zones was among Cinder's zones when they were last read.
    fn refuse_unknown(&self, asked: &TopologyRequirement) -> Result<(), Failure> {
        let Some(key) = self.key() else {
            return Ok(());
        };
        let names = self.names();
        let labels: Vec<_> = asked.requisite.iter().map(|it| it.get(key)).collect();
        let may_be =
            |label: &Option<&String>| label.is_none_or(|label| self.known(key, label).is_some());
        if names.is_empty() || labels.is_empty() || labels.iter().any(may_be) {
            return Ok(());
        }
        let labels: BTreeSet<_> = labels.into_iter().flatten().collect();
        Err(Failure::quota(format!(
            "Cinder has none of the requested zones, {key} in {labels:?}: it has {names:?}; if \
             servers can attach volumes of other zones, set ignore-volume-az = true in \
             [BlockStorage] of cloud.conf"
        )))
    }

    /// Whether Cinder has the zone in the topology. Returns true if the topology contains no zone.
    ///
    /// # Errors
    /// Returns an error if Cinder does not return its zones.
    pub(super) async fn may_be(&self, place: Option<&Segments>) -> Result<bool, Failure> {
        let label = self.key().and_then(|key| Some((key, place?.get(key)?)));
        let Some((key, label)) = label else {
            return Ok(true);
        };
        if self.known(key, label).is_none() {
            self.read().await?;
        }
        Ok(self.known(key, label).is_some())
    }

    async fn read(&self) -> Result<(), Failure> {
        let names = self.client.zones(Service::Volumes).await?;
        *self.names.lock() = names;
        Ok(())
    }

    fn names(&self) -> BTreeSet<String> {
        let names = self.names.lock();
        names.clone()
    }

    /// Refuses a storage class's zone that is outside every topology that the caller accepts, since
    /// no node could use the volume there. A zone that does not exist in Cinder is accepted, since
    /// Cinder may fall back to another zone.
    ///
    /// # Errors
    /// Returns `Quota`, so that the scheduler can select another node.
    pub(super) async fn check(
        &self,
        zone: &str,
        asked: Option<&TopologyRequirement>,
    ) -> Result<(), Failure> {
        let (Some(key), Some(asked)) = (self.key(), asked) else {
            return Ok(());
        };
        let place = Topology::of_zone(key, zone).ok();
        let Some(place) = place.filter(|place| !place.satisfies(asked)) else {
            return Ok(());
        };
        let known = self.client.zones(Service::Volumes).await;
        if !known.is_ok_and(|names| names.contains(zone)) {
            return Ok(());
        }
        let labels = asked.requisite.iter().filter_map(|it| it.get(key));
        let labels: BTreeSet<_> = labels.collect();
        Err(Failure::quota(format!(
            "parameters[{AVAILABILITY}]: zone {zone:?}, {}, is outside the requested topology, \
             {key} in {labels:?}; use a class without {AVAILABILITY} or of one of these zones",
            place.describe()
        )))
    }

    /// Logs a warning if Cinder has created a volume in a different zone than requested.
    pub(super) fn report_another(&self, made: &CinderVolume, asked: Option<&str>) {
        if let (Some(zone), Some(asked)) = (made.zone(), asked)
            && zone != asked
        {
            let (cloud, volume) = (self.client.label(), made.id.as_str());
            tracing::warn!(
                cloud,
                volume,
                asked,
                zone,
                "the volume is in another zone than the requested one: {ELSEWHERE}"
            );
        }
    }

    /// Returns Cinder's name for the zone with this label value. Returns `None` if Cinder has no
    /// such zone.
    fn known(&self, key: &str, label: &str) -> Option<String> {
        let names = self.names.lock();
        let is_meant = |name: &&String| {
            let topology = Topology::of_zone(key, name).ok();
            topology.is_some_and(|it| it.segments().get(key).map(String::as_str) == Some(label))
        };
        names.get(label).or(names.iter().find(is_meant)).cloned()
    }

    /// Logs a warning if servers are in zones that have no volumes, since pods with volumes cannot
    /// run in these zones.
    pub(super) async fn inspect(&self) {
        if self.key().is_none() {
            return;
        }
        let zones = async {
            let servers = self.client.zones(Service::Compute).await?;
            Ok((servers, self.client.zones(Service::Volumes).await?))
        };
        let warning = match zones.await {
            Ok((servers, volumes)) => mismatch(&servers, &volumes),
            Err::<_, Failure>(failure) => Some(format!("the zones cannot be compared: {failure}")),
        };
        if let Some(warning) = warning {
            tracing::warn!(cloud = self.client.label(), "{warning}");
        }
    }
}

/// Converts a refusal to the error `Quota` if Cinder does not have the zone, or if the volume
/// cannot be in the zone, such as a copy of a volume in another zone. The scheduler can then select
/// another node.
pub(super) fn unless_of_zone(refused: Failure, zone: Option<&str>) -> Failure {
    match zone {
        Some(zone) if refused.kind == Kind::Invalid && refused.message.contains("zone") => {
            let why = "; does Cinder have the zone of the node?";
            Failure::quota(format!("zone {zone:?}: {}{why}", refused.message))
        }
        _ => refused,
    }
}

/// Returns a warning for zones of servers that are not zones of volumes.
fn mismatch(servers: &BTreeSet<String>, volumes: &BTreeSet<String>) -> Option<String> {
    let lacking: Vec<_> = servers.difference(volumes).collect();
    if lacking.is_empty() {
        return None;
    }
    Some(format!(
        "pods on servers in the zones {lacking:?} cannot use volumes: Nova has the zones \
         {servers:?}, Cinder has {volumes:?}; if servers can attach volumes of other zones, set \
         ignore-volume-az = true in [BlockStorage] of cloud.conf, and availability in the storage \
         classes; else ask the cloud's administrator for these zones in Cinder"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_servers_without_volumes_are_reported_with_both_lists_and_the_cure() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (a, ab, abc) = (set(&["a"]), set(&["a", "b"]), set(&["a", "b", "c"]));
        for (servers, volumes) in [(&a, &a), (&a, &ab), (&set(&[]), &a)] {
            assert_eq!(mismatch(servers, volumes), None);
        }
        let warning = mismatch(&abc, &a).unwrap();
        for part in [
            r#"the zones {"b", "c"}"#.replace('{', "[").replace('}', "]"),
            r#"Nova has the zones {"a", "b", "c"}"#.to_owned(),
            r#"Cinder has {"a"}"#.to_owned(),
            "ignore-volume-az".to_owned(),
        ] {
            assert!(warning.contains(&part), "{part}: {warning}");
        }
    }
}
