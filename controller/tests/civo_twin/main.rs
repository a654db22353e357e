//! The real `belay-controller --backend civo` against a twin of Civo's API on the loopback
//! interface: known defects of civo-csi, faults, crashes and rate limits.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test ends at the first surprise"
)]

mod answers;
mod civo_csi;
mod crashes;
mod economy;
mod failed;
mod faults;
mod health;
mod keys;
mod nodes;
mod pages;
mod proxies;
mod sanity;
mod site;
mod sizes;
mod snapshots;
