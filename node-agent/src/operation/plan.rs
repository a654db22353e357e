//! The controller's words in a publish context, read once and checked whole.

use belay_server::call::Failure;
use belay_server::request::{Access, Capability, Context, VolumeId};

use crate::device::Attached;
use crate::filesystem::FsType;
use crate::kernel::Kernel;

/// What may become of a device without a filesystem. The controller knows the volume's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Never held data.
    New,
    /// May have held data; empty only if all of it reads as zeros.
    Used,
    /// Restored or cloned: never formatted.
    Populated,
}

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
        let transport = required(context, "transport")?;
        if transport != "loop" {
            return Err(invalid(
                "transport",
                &format!("{transport:?} is none that this node has"),
            ));
        }
        let file = required(context, "file")?;
        if file != volume.as_str() {
            return Err(invalid(
                "file",
                &format!("{file:?} is not the volume's own id"),
            ));
        }
        let bytes = required(context, "bytes")?
            .parse()
            .map_err(|_| invalid("bytes", "is not a number of bytes"))?;
        let content = match required(context, "content")? {
            "new" => Content::New,
            "used" => Content::Used,
            "populated" => Content::Populated,
            other => return Err(invalid("content", &format!("{other:?} is not known"))),
        };
        let read_only = match context.get("read_only") {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                return Err(invalid(
                    "read_only",
                    &format!("{other:?} is not true or false"),
                ));
            }
        };
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

fn required<'a>(context: &'a Context, key: &str) -> Result<&'a str, Failure> {
    context.get(key).ok_or_else(|| {
        invalid(
            key,
            "is missing; the volume must be attached by this driver's controller first",
        )
    })
}

fn invalid(key: &str, why: &str) -> Failure {
    Failure::invalid(&format!("publish_context[{key}]"), why)
}
