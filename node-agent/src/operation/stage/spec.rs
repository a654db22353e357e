//! The mount that a stage makes: as the caller requests it, and with the options for the filesystem
//! of the volume.

use belay_server::call::Failure;
use belay_server::request::{MountFlags, Stage};

use crate::filesystem::{FsType, MountOptions, parse_flags};
use crate::kernel::MountAttrs;

/// The requested mount.
pub(super) struct MountSpec<'a> {
    pub(super) request: &'a Stage,
    /// The requested filesystem type; `None` if the caller accepts any.
    pub(super) fs: Option<FsType>,
    pub(super) flags: &'a MountFlags,
    pub(super) read_only: bool,
}

impl MountSpec<'_> {
    /// Returns the mount options for a filesystem of this type.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for a flag that is not allowed.
    pub(super) fn options(&self, fs: FsType) -> Result<MountOptions, Failure> {
        let mut options = parse_flags(self.flags.as_slice(), fs)?;
        if self.read_only {
            options.attrs = options.attrs.with(MountAttrs::READ_ONLY);
        }
        Ok(options)
    }

    /// Returns the mount of the filesystem that was found, or will be made; `panics` if its
    /// superblock asks for `errors=panic`.
    ///
    /// # Errors
    /// Returns `INVALID_ARGUMENT` for a flag that is not allowed.
    pub(super) fn mounting(&self, fs: FsType, panics: bool) -> Result<Mounting, Failure> {
        let mut options = self.options(fs)?;
        if panics {
            options.override_panic();
        }
        Ok(Mounting { fs, options })
    }
}

/// A filesystem, and the options that it is mounted with.
pub(super) struct Mounting {
    pub(super) fs: FsType,
    pub(super) options: MountOptions,
}

impl Mounting {
    /// Whether the volume is mounted read-only.
    pub(super) fn is_reader(&self) -> bool {
        self.options.attrs.contains(MountAttrs::READ_ONLY)
    }

    /// Returns the same mount without the flags of the class, and read-only.
    ///
    /// # Errors
    /// Returns an error if the options of every mount are refused.
    pub(super) fn without_flags(&self) -> Result<Mounting, Failure> {
        let mut options = parse_flags(&[], self.fs)?;
        options.attrs = MountAttrs::READ_ONLY;
        if self.fs == FsType::Ext4 {
            options.override_panic();
        }
        Ok(Mounting {
            fs: self.fs,
            options,
        })
    }
}
