//! The real `belay-controller --backend openstack` against a twin of Keystone, Cinder and Nova on
//! the loopback interface: with kills, rate limits, many volumes, and TLS. The OpenStack bed tests
//! the responses of the real services.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test ends at the first surprise"
)]

mod accounts;
mod answers;
mod backups;
#[path = "../certificates/mod.rs"]
mod certificates;
mod clouds;
mod crashes;
mod dropped;
mod economy;
mod health;
mod marks;
mod memory;
mod policy;
mod site;
mod tls;
mod twin;
mod used;
mod wire;
mod zones;
