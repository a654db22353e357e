//! The contract between a driver's controller and the node agent: common flags, topology, the
//! constants of each driver, the publish context, format options, mount flags, the secret of the
//! format mark, the syntax and mount parameters of NFS exports, their volume IDs, and health
//! reasons. Does not know clouds or devices.

pub mod disk;
pub mod drivers;
pub mod export;
pub mod flags;
pub mod format;
pub mod mark;
pub mod mount_flags;
pub mod nfs_id;
pub mod nfs_mount;
pub mod publish_context;
pub mod reason;
pub mod topology;
