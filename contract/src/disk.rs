//! How the disk of a volume is recognised on a node. Knows no device and no sysfs.

/// What a volume's disk is recognised by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskIdentity {
    /// Its serial number in full, of which a virtio disk shows the first 20 bytes.
    Serial(String),
}
