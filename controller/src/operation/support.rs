//! The supported capabilities and filesystems, and the reason if one is not supported. The node
//! agent supports the same filesystems.

use crate::backend::Usage;
use belay_server::call::Failure;
use belay_server::request::{Access, Capability, Context};

/// Prefixes of keys that the external-provisioner adds to the parameters and the context of a
/// volume.
const PROVISIONER_PREFIXES: [&str; 2] = ["csi.storage.k8s.io/", "storage.kubernetes.io/"];

/// The filesystem of a blank volume if the request names none.
const DEFAULT_FILESYSTEM: &str = "ext4";

/// Filesystems that the node makes, and the smallest volume for each, in bytes: the mark at byte
/// 100 MiB must fit, mkfs.xfs refuses less than 300 MiB, and the kernel resizes no btrfs to less
/// than 256 MiB.
const FILESYSTEMS: &[(&str, u64)] = &[
    (DEFAULT_FILESYSTEM, 128 << 20),
    ("xfs", 300 << 20),
    ("btrfs", 256 << 20),
];

/// Why the capability is not supported; none if it is.
pub(super) fn refusal(capability: &Capability) -> Option<String> {
    if capability.mode.is_multi_node() {
        return Some(format!(
            "access mode {}: a volume is attached to one node at a time; use SINGLE_NODE_WRITER",
            capability.mode.name()
        ));
    }
    match &capability.access {
        Access::Mount { fs_type, .. } if smallest(fs_type).is_none() => {
            let known: Vec<_> = FILESYSTEMS.iter().map(|(name, _)| *name).collect();
            Some(format!(
                "fs_type {fs_type:?}: not one of {}",
                known.join(", ")
            ))
        }
        Access::Mount { .. } | Access::Block => None,
    }
}

/// The filesystem that a blank volume gets. Empty = the default.
pub(super) fn filesystem(fs_type: &str) -> &str {
    match fs_type {
        "" => DEFAULT_FILESYSTEM,
        named => named,
    }
}

/// The smallest volume for that filesystem, in bytes; none if it is unknown. Empty = the default.
pub(super) fn smallest(fs_type: &str) -> Option<u64> {
    let name = filesystem(fs_type);
    FILESYSTEMS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bytes)| *bytes)
}

/// The usage that a request's capabilities, which do not conflict, ask for.
pub(super) fn usage(capabilities: &[Capability]) -> Usage {
    let mut usage = Usage::Block;
    for capability in capabilities {
        if let Access::Mount { fs_type, .. } = &capability.access {
            if !fs_type.is_empty() {
                return Usage::Filesystem(fs_type.clone());
            }
            usage = Usage::Filesystem(String::new());
        }
    }
    usage
}

/// Refuses unknown parameters: a typo must not be ignored silently.
pub(super) fn refuse_unknown(
    field: &str,
    parameters: &Context,
    known: &[&str],
) -> Result<(), Failure> {
    let stranger = parameters.iter().map(|(key, _)| key).find(|key| {
        !known.contains(key) && !PROVISIONER_PREFIXES.iter().any(|own| key.starts_with(own))
    });
    let Some(key) = stranger else { return Ok(()) };
    let known = if known.is_empty() {
        "none".to_owned()
    } else {
        known.join(", ")
    };
    Err(Failure::invalid(
        field,
        format_args!("{key:?} is unknown; this driver knows {known}"),
    ))
}
