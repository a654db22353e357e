//! The flags of the backend `nfs`.

use crate::backend::nfs::{self, Mode, MountOptions, OnDelete};

/// The flags of the backend `nfs`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct NfsArgs {
    /// Backend nfs: mode of the directory of a new volume, octal, for classes without
    /// mountPermissions (0: the mode of mkdir, 0755)
    #[arg(
        long = "nfs-mount-permissions",
        env = "BELAY_NFS_MOUNT_PERMISSIONS",
        value_name = "OCTAL",
        default_value = "0"
    )]
    pub mount_permissions: Mode,

    /// Backend nfs: what the deletion of a volume does, for classes without onDelete: delete,
    /// retain, archive
    #[arg(
        long = "nfs-default-on-delete",
        env = "BELAY_NFS_DEFAULT_ON_DELETE",
        value_name = "POLICY",
        default_value = "delete"
    )]
    pub default_on_delete: OnDelete,

    /// Backend nfs: treat a directory that a volume ID names as that volume, even if Belay has no
    /// record of it: volumes of csi-driver-nfs
    #[arg(long = "nfs-adopt", env = "BELAY_NFS_ADOPT")]
    pub adopt: bool,

    /// Backend nfs: mount options for calls without options in the class or the secret,
    /// such as a deletion, separated by commas
    #[arg(
        long = "nfs-mount-options",
        env = "BELAY_NFS_MOUNT_OPTIONS",
        value_name = "OPTIONS",
        default_value = ""
    )]
    pub mount_options: MountOptions,
}

impl NfsArgs {
    /// Returns the settings of the backend.
    pub(super) fn config(&self) -> nfs::Config {
        nfs::Config {
            permissions: self.mount_permissions,
            on_delete: self.default_on_delete,
            adopts: self.adopt,
            mount_options: self.mount_options.clone(),
        }
    }

    /// Returns the flags, and whether each differs from its default.
    pub(super) fn set(&self) -> [(&'static str, bool); 4] {
        let default = Self::default();
        [
            (
                "--nfs-mount-permissions",
                self.mount_permissions != default.mount_permissions,
            ),
            (
                "--nfs-default-on-delete",
                self.default_on_delete != default.default_on_delete,
            ),
            ("--nfs-adopt", self.adopt),
            (
                "--nfs-mount-options",
                self.mount_options != default.mount_options,
            ),
        ]
    }
}
