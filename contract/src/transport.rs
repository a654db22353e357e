//! The names of the ways in which volumes reach a node, in profiles and in publish contexts.

/// The transport of volumes that are files in the node's own directory.
pub const LOOP: &str = "loop";
/// The transport of volumes that a cloud plugs into the node as disks.
pub const DISK: &str = "disk";
/// The transport of volumes that are directories of an NFS server.
pub const NFS: &str = "nfs";
