//! Tests of the two programs from outside: over their sockets, on real loop devices, mounts and
//! filesystems. Uses flags, messages and the extended attributes of volumes' files; independent of
//! the programs' internals.
//!
//! Tests that mount need root and a private mount namespace, which `make mounts` creates.

#[cfg(test)]
mod accidents;
#[cfg(test)]
mod bad_input;
#[cfg(test)]
mod bad_orders;
#[cfg(test)]
mod bad_paths;
#[cfg(test)]
mod clock;
#[cfg(test)]
mod clones;
#[cfg(test)]
mod copied;
#[cfg(test)]
mod covered;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod crowd;
#[cfg(test)]
mod dead_disk;
#[cfg(test)]
mod disks;
#[cfg(test)]
mod drivers;
#[cfg(test)]
mod flood;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod forgotten;
#[cfg(test)]
mod full_disk;
#[cfg(test)]
mod garbage;
#[cfg(test)]
mod grpc_tools;
#[cfg(test)]
mod health;
#[cfg(test)]
mod hostile_callers;
#[cfg(test)]
mod hostile_content;
#[cfg(test)]
mod hostile_devices;
#[cfg(test)]
mod hostile_mounts;
#[cfg(test)]
mod hostile_paths;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod hung;
#[cfg(test)]
mod hung_foreigner;
#[cfg(test)]
mod hung_path;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod kubelet_dir;
#[cfg(test)]
mod leftovers;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod linked;
#[cfg(test)]
mod losses;
#[cfg(test)]
mod metadata;
#[cfg(test)]
mod metrics;
#[cfg(test)]
mod never_format;
#[cfg(test)]
mod openers;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod power;
#[cfg(test)]
mod privileges;
#[cfg(test)]
mod raw_block;
#[cfg(test)]
mod read_only;
#[cfg(test)]
mod registration;
#[cfg(test)]
mod replaced;
#[cfg(test)]
mod restart;
#[cfg(test)]
mod restores;
#[cfg(test)]
mod reused;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod sandbox;
#[cfg(test)]
mod stalled_log;
#[cfg(test)]
mod strangers;
#[cfg(test)]
mod syscalls;
#[cfg(test)]
mod targets;
#[cfg(test)]
mod together;
#[cfg(test)]
mod visitors;
