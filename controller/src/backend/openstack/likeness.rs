//! Whether a volume that has the name of an order also has its volume type and its zone.
//!
//! What Cinder shows decides. The type is left out where a VolumeAttributesClass has changed it
//! since, which the volume's mark says: then it may be another than that of the storage class. The
//! zone is the one that the class named at the creation, if a mark says so: Cinder may choose
//! another one (`allow_availability_zone_fallback`), also from one that it has, if that is none of
//! the volume type's (`RESKEY:availability_zones`), or not in its cache of zones.

use super::Cloud;
use super::client::Service;
use crate::backend::Parameter;
use belay_server::call::Failure;

/// Parameters of a storage class.
pub(super) const TYPE: &str = "type";
pub(super) const AVAILABILITY: &str = "availability";

impl Cloud {
    /// Whether the volume may be that of the order, although the texts differ.
    pub(super) async fn may_be(&self, parameter: Parameter) -> Result<bool, Failure> {
        let Parameter { key, is, asked } = parameter;
        match key {
            TYPE => Ok(match self.client.volume_type(Some(&asked)).await? {
                // A class may name the type by its ID.
                Some(found) => found.name == is,
                // MariaDB ignores case and blanks at the end, and Cinder with it.
                None => is.eq_ignore_ascii_case(asked.trim_end()),
            }),
            // Without a mark, Cinder may have fallen back from a zone that it does not have.
            AVAILABILITY => Ok(!self.client.zones(Service::Volumes).await?.contains(&asked)),
            _ => Ok(false),
        }
    }
}
