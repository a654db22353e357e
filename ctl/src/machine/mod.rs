//! Information about drivers and volumes on this machine: sockets, mounts, block devices, the
//! kubelet's directory, processes. Reads files; calls no driver and changes nothing.

pub(crate) mod device;
pub(crate) mod kubelet;
pub(crate) mod mounts;
pub(crate) mod pages;
pub(crate) mod process;
pub(crate) mod sockets;
