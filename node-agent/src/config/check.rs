//! Checks of the flags of a driver by which its node learns who it is.

use belay_contract::drivers::{Kind, Profile};

use super::Driver;

impl Driver {
    pub(super) fn check_instance_file(&self, profile: &Profile) -> Result<(), String> {
        let is_given = self.instance_file.is_some() || self.node_region.is_some();
        match profile.instance_file {
            None if is_given => Err(
                "--instance-file and --node-region: do not apply: its nodes have no such file"
                    .to_owned(),
            ),
            _ => Ok(()),
        }
    }

    pub(super) fn check_topology(&self, profile: &Profile) -> Result<(), String> {
        const FLAG: &str = "--additional-topology";
        let segments = &self.additional_topology;
        if segments.is_empty() {
            return Ok(());
        }
        if self.common.kind != Kind::Openstack {
            return Err(format!("{FLAG}: does not apply: it is for kind openstack"));
        }
        if !self.common.with_topology {
            return Err(format!("{FLAG} requires --with-topology"));
        }
        let keys: Vec<_> = segments.iter().map(|segment| &segment.key).collect();
        if keys.iter().any(|key| *key == profile.topology_key) {
            let key = profile.topology_key;
            return Err(format!("{FLAG}: {key} is the key of the node's zone"));
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
                "--metadata-search-order and --metadata-address: do not apply: no cloud \
                        has this driver's volumes"
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
