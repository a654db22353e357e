//! Checks of the flags of a driver by which its node learns who it is.

use belay_contract::drivers::Profile;

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
