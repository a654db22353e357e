//! Checks of flags whose valid values depend on other flags or on the kind of the driver.

use belay_contract::drivers::{Kind, Profile};
use belay_contract::topology::Topology;

use super::{DiskDir, Driver};

/// Labels in the namespaces of Kubernetes that a kubelet may set on its node, in addition to all
/// labels in [`KUBELET_NAMESPACES`]. The admission plugin NodeRestriction rejects every other label
/// in these namespaces (`well_known_labels.go` of k8s.io/kubelet, Kubernetes 1.36).
const KUBELET_LABELS: &[&str] = &[
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const KUBELET_NAMESPACES: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];
/// The label namespaces that are reserved for Kubernetes.
const RESERVED_NAMESPACES: &[&str] = &["kubernetes.io", "k8s.io"];

/// Whether the label's key is in one of these namespaces or in a subdomain of one.
fn is_in(key: &str, namespaces: &[&str]) -> bool {
    let own = key.split_once('/').map_or("", |(own, _)| own);
    namespaces.iter().any(|namespace| {
        let above = own.strip_suffix(namespace);
        above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
    })
}

/// Whether the admission plugin NodeRestriction forbids the kubelet to set this label on its node.
fn is_forbidden(key: &str) -> bool {
    let is_allowed = KUBELET_LABELS.contains(&key) || is_in(key, KUBELET_NAMESPACES);
    is_in(key, RESERVED_NAMESPACES) && !is_allowed
}

impl Driver {
    /// Checks that `--loop-dir` is set only if the driver needs it, with another disk and
    /// another directory each time. clap checks that a driver that needs it has it.
    pub(super) fn check_disk_dirs(&self, profile: &Profile) -> Result<(), String> {
        let (all, transport) = (&self.disk_dirs, profile.transport);
        if !self.has_files() && !all.is_empty() {
            return Err(format!(
                "--loop-dir: does not apply: its volumes are not files on this node, but use the \
                 transport {transport}; remove it"
            ));
        }
        let is_same = |of: &DiskDir, it: &DiskDir| of.disk == it.disk || of.dir == it.dir;
        let mut each = all.iter().enumerate();
        match each.find(|(at, it)| all[..*at].iter().any(|of| is_same(of, it))) {
            Some((_, DiskDir { disk, dir })) => Err(format!(
                "--loop-dir {disk}={}: this disk or this directory is given twice; give each disk \
                 its own directory",
                dir.display()
            )),
            None => Ok(()),
        }
    }

    /// Checks that the flags for formatting disks are set only if the volumes are disks.
    pub(super) fn check_disk_rules(&self) -> Result<(), String> {
        let given = [
            ("--unknown-content", self.unknown_content.is_some()),
            ("--uncleared", self.uncleared.is_some()),
        ];
        let given = given.into_iter().find(|(_, is_given)| *is_given);
        let Some((flag, _)) = given.filter(|_| !self.has_disks()) else {
            return Ok(());
        };
        let why = match self.has_files() {
            true => "its files record whether they are new",
            false => "its volumes are not disks",
        };
        Err(format!("{flag}: does not apply: {why}; remove it"))
    }

    pub(super) fn check_instance_file(&self, profile: &Profile) -> Result<(), String> {
        match profile.instance_file {
            None if self.instance_file.is_some() => Err(
                "--instance-file: does not apply: nodes of this driver have no such file; remove it"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    pub(super) fn check_zone(&self, profile: &Profile) -> Result<(), String> {
        const FLAG: &str = "--node-zone";
        let Some(zone) = &self.node_zone else {
            return Ok(());
        };
        if profile.metadata.is_none() && profile.instance_file.is_none() {
            return Err(format!(
                "{FLAG}: does not apply: volumes of this driver are in no zone; remove it"
            ));
        }
        if !self.common.with_topology {
            return Err(format!("{FLAG} requires --with-topology"));
        }
        let topology = Topology::of_zone(profile.topology_key, zone);
        topology.map_err(|error| format!("{FLAG}: {error}"))?;
        Ok(())
    }

    pub(super) fn check_topology(&self, profile: &Profile) -> Result<(), String> {
        const FLAG: &str = "--additional-topology";
        let segments = &self.additional_topology;
        if segments.is_empty() {
            return Ok(());
        }
        if self.common.kind != Kind::Openstack {
            return Err(format!(
                "{FLAG}: does not apply: it is for kind openstack; remove it"
            ));
        }
        if !self.common.with_topology {
            return Err(format!("{FLAG} requires --with-topology"));
        }
        let keys: Vec<_> = segments.iter().map(|segment| &segment.key).collect();
        if keys.iter().any(|key| *key == profile.topology_key) {
            let key = profile.topology_key;
            return Err(format!("{FLAG}: {key} is the key of the node's zone"));
        }
        if let Some(key) = keys.iter().find(|key| is_forbidden(key)) {
            return Err(format!(
                "{FLAG}: {key}: a kubelet may not set this label on its node (NodeRestriction), \
                 so it would refuse the driver; use topology.kubernetes.io/region or a key outside \
                 of kubernetes.io and k8s.io"
            ));
        }
        let mut at = keys.iter().enumerate();
        match at.find(|(at, key)| keys[..*at].contains(key)) {
            Some((_, twice)) => Err(format!("{FLAG}: {twice} is given twice")),
            None => Ok(()),
        }
    }

    pub(super) fn check_metadata(&self, profile: &Profile) -> Result<(), String> {
        let order = &self.metadata_search_order;
        if profile.metadata.is_none() && (!order.is_empty() || self.metadata_address.is_some()) {
            return Err(
                "--metadata-search-order and --metadata-address: do not apply: this driver reads \
                 no metadata of a cloud; remove them"
                    .to_owned(),
            );
        }
        let mut sources = order.iter().enumerate();
        match sources.find(|(at, source)| order[..*at].contains(source)) {
            Some((_, twice)) => Err(format!(
                "--metadata-search-order: {} is given twice",
                twice.name()
            )),
            None => Ok(()),
        }
    }
}

/// Parses a user ID of `--allow-uid`.
pub(super) fn uid(text: &str) -> Result<u32, String> {
    text.parse()
        .map_err(|_| "not a numeric user ID, which `id -u NAME` prints".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_kubernetes_are_forbidden_but_for_those_that_a_kubelet_may_set() {
        for allowed in [
            "rack",
            "example.com/rack",
            "topology.cinder.csi.openstack.org/zone",
            "mykubernetes.io/rack",
            "topology.kubernetes.io/region",
            "topology.kubernetes.io/zone",
            "kubernetes.io/hostname",
            "failure-domain.beta.kubernetes.io/zone",
            "node.kubernetes.io/rack",
            "my.node.kubernetes.io/rack",
            "kubelet.kubernetes.io/rack",
        ] {
            assert!(!is_forbidden(allowed), "{allowed}");
        }
        for forbidden in [
            "kubernetes.io/rack",
            "k8s.io/rack",
            "topology.kubernetes.io/rack",
            "failure-domain.kubernetes.io/zone",
            "mynode.kubernetes.io/rack",
            "my.k8s.io/rack",
            "node-restriction.kubernetes.io/rack",
            "a.node-restriction.kubernetes.io/rack",
            "node-role.kubernetes.io/worker",
        ] {
            assert!(is_forbidden(forbidden), "{forbidden}");
        }
    }
}
