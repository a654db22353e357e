//! The contract between a driver's controller and the node agent, each part in one module: common
//! flags, topology, transports, publish context, how a volume is formatted, mount flags, requests
//! for encryption, attributes and names of its file, the secret of its format mark, the words for a
//! directory of a server and the ID of such a volume, health reasons. Does not know clouds or
//! devices.

pub mod attribute;
pub mod disk;
pub mod drivers;
pub mod encryption;
pub mod export;
pub mod flags;
pub mod format;
pub mod linked;
pub mod mark;
pub mod mount_flags;
pub mod nfs_id;
pub mod publish_context;
pub mod reason;
pub mod topology;
pub mod transport;
