//! The contract between a driver's controller and the node agent, each part in one module: common
//! flags, topology, the constants of each driver, publish context, how a volume is formatted, mount
//! flags, the secret of its format mark, the words for a directory of a server and the ID of such a
//! volume, health reasons. Does not know clouds or devices.

pub mod disk;
pub mod drivers;
pub mod export;
pub mod flags;
pub mod format;
pub mod mark;
pub mod mount_flags;
pub mod nfs_id;
pub mod publish_context;
pub mod reason;
pub mod topology;
