//! The controller's words in a publish context, read once and checked whole.

use belay_contract::publish_context::{Content, PublishContext, Transport, wrong_file};
use belay_server::call::Failure;
use belay_server::request::{Access, Capability, Context, VolumeId};

use crate::device::Attached;
use crate::filesystem::FsType;
use crate::kernel::Kernel;

/// What to attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The least size the device must have.
    pub(super) bytes: u64,
    /// Whether it may be formatted.
    pub(super) content: Content,
    /// The controller attached it read-only.
    pub(super) read_only: bool,
}

impl Plan {
    /// Reads the context of an attachment of `volume`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that names the key.
    pub(super) fn read(volume: &VolumeId, context: &Context) -> Result<Plan, Failure> {
        let PublishContext {
            transport: Transport::Loop { file },
            bytes,
            content,
            read_only,
        } = PublishContext::read(context)?;
        if file != volume.as_str() {
            return Err(wrong_file(&file));
        }
        Ok(Plan {
            bytes,
            content,
            read_only,
        })
    }

    /// The size of the device, which is as large as the controller says, or the wrong one.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` naming both sizes.
    pub(super) fn fit<K: Kernel>(&self, kernel: &K, device: &Attached<K>) -> Result<u64, Failure> {
        let bytes = device.refresh(kernel)?;
        if bytes < self.bytes {
            return Err(Failure::precondition(format!(
                "{} has {bytes} bytes but the volume was attached with {}; its file was cut",
                device.path().display(),
                self.bytes
            )));
        }
        Ok(bytes)
    }

    /// Whether the workload may only read.
    pub(super) fn is_read_only(&self, capability: &Capability) -> bool {
        self.read_only || capability.mode.is_read_only()
    }
}

/// The filesystem type that a mount capability asks for; `None` when it leaves the choice.
///
/// # Errors
/// `INVALID_ARGUMENT` for a type that this agent cannot make or mount.
pub(super) fn asked_fs(access: &Access) -> Result<Option<FsType>, Failure> {
    let Access::Mount { fs_type, .. } = access else {
        return Ok(None);
    };
    if fs_type.is_empty() {
        return Ok(None);
    }
    FsType::parse(fs_type).map(Some).ok_or_else(|| {
        Failure::invalid(
            "volume_capability.mount.fs_type",
            format!("{fs_type:?} is not supported; ask for ext4, xfs or btrfs"),
        )
    })
}
