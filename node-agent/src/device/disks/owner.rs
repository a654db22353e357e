//! Whose a disk is.

use belay_server::identity::DriverName;
use belay_server::request::VolumeId;

/// A volume, with the driver that it is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) driver: String,
    pub(super) volume: VolumeId,
}

impl Owner {
    pub(super) fn new(driver: &DriverName, volume: &VolumeId) -> Self {
        Owner {
            driver: driver.as_str().to_owned(),
            volume: volume.clone(),
        }
    }
}
