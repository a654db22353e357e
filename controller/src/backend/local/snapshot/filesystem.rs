//! Whether the filesystem that a new volume takes over from its source can be the requested one.
//! The node agent never formats a volume again, so it would refuse each stage of another.

use crate::backend::local::files::Backing;
use crate::backend::local::record::StoredUsage;
use crate::backend::local::store::Store;
use belay_server::call::Failure;

/// Each filesystem, the byte of its magic number, and the number as it is on the disk.
const MAGIC: [(&str, u64, &[u8]); 3] = [
    // Linux: Documentation/filesystems/ext4/super.rst, `s_magic`. ext2 and ext3 have it too.
    ("ext4", 1024 + 0x38, &[0x53, 0xef]),
    // Linux: fs/xfs/libxfs/xfs_format.h, `XFS_SB_MAGIC`.
    ("xfs", 0, b"XFSB"),
    // Linux: include/uapi/linux/btrfs_tree.h, `BTRFS_MAGIC`; fs/btrfs/fs.h,
    // `BTRFS_SUPER_INFO_OFFSET`.
    ("btrfs", (64 << 10) + 0x40, b"_BHRfS_M"),
];

impl Store {
    /// Refuses a source with another filesystem than is requested for the volume `id`; `origin` is
    /// the source's file. One with the magic number of the requested filesystem, or with none, is
    /// left to the node agent.
    ///
    /// # Errors
    /// `Invalid`, as the CSI specification requires for an incompatible source.
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
