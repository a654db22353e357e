//! Refuses to copy a volume or snapshot whose filesystem is not the requested one. The node agent
//! never formats a copy, and would refuse to stage a volume with a different filesystem.

use crate::backend::local::files::Backing;
use crate::backend::local::record::StoredUsage;
use crate::backend::local::store::Store;
use belay_server::call::Failure;

/// The names of filesystems, each with the offset of its magic number in bytes, and the magic
/// number in the byte order of the disk.
const MAGIC: [(&str, u64, &[u8]); 3] = [
    // Source: Documentation/filesystems/ext4/super.rst of Linux, `s_magic`. ext2 and ext3 have the
    // same magic number.
    ("ext4", 1024 + 0x38, &[0x53, 0xef]),
    // Source: fs/xfs/libxfs/xfs_format.h of Linux, `XFS_SB_MAGIC`.
    ("xfs", 0, b"XFSB"),
    // Source: include/uapi/linux/btrfs_tree.h of Linux, `BTRFS_MAGIC`; fs/btrfs/fs.h,
    // `BTRFS_SUPER_INFO_OFFSET`.
    ("btrfs", (64 << 10) + 0x40, b"_BHRfS_M"),
];

impl Store {
    /// Refuses a source whose filesystem differs from the type requested for the volume `id`.
    /// `origin` is the source's file. Accepts a source with the magic number of the requested
    /// filesystem, or without a known magic number: the node agent then checks the filesystem.
    ///
    /// # Errors
    /// Returns `Invalid` if the source has a different filesystem, as the CSI specification
    /// requires for an incompatible source.
    pub(super) fn refuse_other_filesystem(
        &self,
        id: &str,
        source: &str,
        origin: &Backing,
    ) -> Result<(), Failure> {
        let usage = self.ledger.get(id)?.map(|record| record.usage);
        let Some(StoredUsage::Filesystem(asked)) = usage.filter(StoredUsage::has_type) else {
            return Ok(());
        };
        let mut found = None;
        for (name, at, magic) in MAGIC {
            if origin.has_at(at, magic)? {
                if name == asked {
                    return Ok(());
                }
                found = Some(name);
            }
        }
        let Some(found) = found else { return Ok(()) };
        Err(Failure::invalid(
            "volume_content_source",
            format!(
                "{source} contains {found}, but {asked} is requested, and a copy keeps the \
                 filesystem of its source; use a StorageClass with csi.storage.k8s.io/fstype: \
                 {found}"
            ),
        ))
    }
}
