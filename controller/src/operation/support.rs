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

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::request::{AccessMode, MountFlags};

    fn mount(fs_type: &str, mode: AccessMode) -> Capability {
        let access = Access::Mount {
            fs_type: fs_type.to_owned(),
            flags: MountFlags::default(),
            group: String::new(),
        };
        Capability { access, mode }
    }

    #[test]
    fn each_filesystem_of_one_node_is_supported_and_others_are_named() {
        let one = AccessMode::SingleNodeWriter;
        for fs_type in ["", "ext4", "xfs", "btrfs"] {
            assert_eq!(refusal(&mount(fs_type, one)), None);
        }
        let why = refusal(&mount("zfs", one)).unwrap();
        assert_eq!(why, "fs_type \"zfs\": not one of ext4, xfs, btrfs");
        let access = Access::Block;
        assert_eq!(refusal(&Capability { access, mode: one }), None);
        let several = AccessMode::MultiNodeMultiWriter;
        let why = refusal(&mount("ext4", several)).unwrap();
        assert!(why.starts_with("access mode MULTI_NODE_MULTI_WRITER: "));
    }

    #[test]
    fn the_first_filesystem_that_is_named_is_the_usage_and_none_is_raw() {
        let one = AccessMode::SingleNodeWriter;
        let block = || Capability {
            access: Access::Block,
            mode: one,
        };
        let of = |fs_type: &str| Usage::Filesystem(fs_type.to_owned());
        assert_eq!(usage(&[]), Usage::Block);
        assert_eq!(usage(&[block()]), Usage::Block);
        assert_eq!(usage(&[block(), mount("", one)]), of(""));
        let both = [mount("", one), mount("xfs", one), mount("ext4", one)];
        assert_eq!(usage(&both), of("xfs"));
    }

    #[test]
    fn a_parameter_is_known_by_its_name_or_by_the_provisioners_prefix() {
        let refused = |key: &str, known: &[&str]| {
            let parameters = [(key.to_owned(), String::new())];
            let parameters = Context::new("parameters", parameters).unwrap();
            refuse_unknown("parameters", &parameters, known).err()
        };
        for key in [
            "type",
            "csi.storage.k8s.io/pv/name",
            "storage.kubernetes.io/x",
        ] {
            assert_eq!(refused(key, &["type"]), None, "{key}");
        }
        for (known, list) in [(&["type", "class"][..], "type, class"), (&[], "none")] {
            let why = refused("tpye", known).unwrap().message;
            let expected = format!("\"tpye\" is unknown; this driver knows {list}");
            assert!(why.ends_with(&expected), "{why}");
        }
    }
}
