//! Which cloud a call is for: the key `cloud` of its secrets, as in cinder-csi-plugin.

use super::Openstack;
use crate::backend::Clouds;
use belay_server::call::Failure;
use belay_server::request::Secrets;

/// The key. Without it, or empty, it is the cloud of the section `[Global]` without a name.
const KEY: &str = "cloud";

impl Clouds for Openstack {
    /// The value is not quoted: a Secret of another purpose may have the key.
    fn check(&self, secrets: &Secrets) -> Result<(), Failure> {
        match secrets.get(KEY) {
            None | Some("") => Ok(()),
            Some(_) => Err(Failure::invalid(
                "secrets[cloud]",
                "names another cloud than [Global] of cloud.conf, the only one that this \
                 controller has; use the driver that has created the volume, or, if the volume \
                 is in this cloud, remove the key from the Secret that the class or the \
                 PersistentVolume names",
            )),
        }
    }
}
