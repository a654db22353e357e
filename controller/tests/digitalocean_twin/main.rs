//! The real `belay-controller --backend digitalocean` against a twin of DigitalOcean on the
//! loopback interface. The names of most tests are problems that users of csi-digitalocean have
//! reported.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod answers;
mod attach;
mod crashes;
mod credentials;
mod economy;
mod ids;
mod proxies;
mod sanity;
mod site;
mod sizes;
mod snapshots;
mod words;
