//! The contract between a driver's controller and the node agent: constants, rules and formats of
//! data that both use. Accesses neither clouds nor devices.

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
