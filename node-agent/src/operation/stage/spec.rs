//! The mount that NodeStageVolume creates: the request of the caller, and the mount options for the
//! filesystem on the volume.

use belay_server::call::Failure;
use belay_server::request::{MountFlags, Stage};

use crate::filesystem::{FsType, MountOptions, parse_flags};
use crate::kernel::MountAttrs;

/// The mount that the caller requests.
pub(super) struct MountSpec<'a> {
    pub(super) request: &'a Stage,
    /// The requested filesystem type; `None` if the caller accepts any.
    pub(super) fs: Option<FsType>,
    pub(super) flags: &'a MountFlags,
    pub(super) read_only: bool,
}

impl MountSpec<'_> {
    /// Returns the mount options that the request specifies for a filesystem of type `fs`.
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

    /// Returns the options to mount a filesystem of type `fs`. If `panics` is set, overrides
    /// `errors=panic` in the superblock, because a filesystem error must not panic the node.
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

/// A filesystem type, and the options with which it is mounted.
pub(super) struct Mounting {
    pub(super) fs: FsType,
    pub(super) options: MountOptions,
}

impl Mounting {
    /// Whether the volume is mounted read-only.
    pub(super) fn is_reader(&self) -> bool {
        self.options.attrs.contains(MountAttrs::READ_ONLY)
    }

    /// Returns the options to mount the same filesystem read-only, without the mount flags of the
    /// request.
    ///
    /// # Errors
    /// Returns an error if the default options are refused, which never happens.
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
