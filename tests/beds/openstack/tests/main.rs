//! The OpenStack bed by itself, and belay-controller on it. `make openstack` starts one and runs
//! these.

#[cfg(test)]
mod backups;
#[cfg(test)]
mod bed;
#[cfg(test)]
mod clouds;
#[cfg(test)]
mod crashes;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod economy;
#[cfg(test)]
mod guests;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod missing;
#[cfg(test)]
mod outages;
#[cfg(test)]
mod retype;
#[cfg(test)]
mod sanity;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod site;
#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod tokens;
#[cfg(test)]
mod trouble;
#[cfg(test)]
mod twin;
#[cfg(test)]
mod zones;
