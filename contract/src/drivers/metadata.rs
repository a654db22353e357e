//! Where a cloud describes each of its instances, so that the node agent learns the ID and zone of
//! its node. Constants only: the agent reads them.

use std::net::SocketAddr;

/// The description of an instance that a cloud offers to the instance itself: a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Its sources, in the default order.
    pub sources: &'static [MetadataSource],
    /// The label of the filesystem on the config drive.
    pub drive_label: &'static str,
    /// The default address of the metadata service.
    pub service: SocketAddr,
    /// The document: its path on the drive, and at the service.
    pub document: &'static str,
    /// The member that is the node's ID.
    pub id: &'static str,
    /// The member that is the node's zone, the value of the profile's topology key.
    pub zone: &'static str,
}

/// A file of the node in which a cloud describes the instance: TOML, of which texts at the top are
/// read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstanceFile {
    /// Its default path.
    pub path: &'static str,
    /// The key of the node's ID.
    pub id: &'static str,
    /// The key of the node's region, the value of the profile's topology key.
    pub region: &'static str,
}

/// A source of metadata. The words for `--metadata-search-order` are those of cinder-csi-plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MetadataSource {
    /// A small read-only disk that the cloud attaches to the instance
    #[value(name = "configDrive")]
    ConfigDrive,
    /// An HTTP server at a link-local address
    #[value(name = "metadataService")]
    Service,
}

impl MetadataSource {
    /// The word, as in the flag.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ConfigDrive => "configDrive",
            Self::Service => "metadataService",
        }
    }
}
