//! Belay in guests, and tests of the guests' disks.

#[cfg(test)]
mod belay;
#[cfg(test)]
mod blackbox;
#[cfg(test)]
mod blank;
#[cfg(test)]
mod cloud;
#[cfg(test)]
mod csi_digitalocean;
#[cfg(test)]
mod digitalocean;
#[cfg(test)]
mod disks;
#[cfg(test)]
mod filer;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod hotplug;
#[cfg(test)]
mod local;
#[cfg(test)]
mod luks;
#[cfg(test)]
mod luks_cost;
#[cfg(test)]
mod luks_headers;
#[cfg(test)]
mod luks_images;
#[cfg(test)]
mod luks_keys;
#[cfg(test)]
mod luks_kills;
#[cfg(test)]
mod luks_leaks;
#[cfg(test)]
mod luks_moves;
#[cfg(test)]
mod luks_sanity;
#[cfg(test)]
mod marks;
#[cfg(test)]
mod metadata;
#[cfg(test)]
mod nfs;
#[cfg(test)]
mod nfs_claims;
#[cfg(test)]
mod nfs_clones;
#[cfg(test)]
mod nfs_controller;
#[cfg(test)]
mod nfs_cost;
#[cfg(test)]
mod nfs_frozen;
#[cfg(test)]
mod nfs_snapshots;
#[cfg(test)]
mod power;
#[cfg(test)]
mod power_disks;
#[cfg(test)]
mod removed;
#[cfg(test)]
mod repaired;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod sanity;
#[cfg(test)]
mod switched;
#[cfg(test)]
mod twin;
#[cfg(test)]
mod udev;
