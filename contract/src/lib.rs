//! The contract between the controller of a driver and the node agent: the constants, rules and
//! data formats that both programs use. This crate does not access clouds or devices.

pub mod disk;
pub mod drivers;
pub mod encryption;
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
