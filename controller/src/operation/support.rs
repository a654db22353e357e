//! The capabilities and filesystems that volumes support, and the reasons for refusing all others.
//! The node agent supports the same filesystems.

use crate::backend::Usage;
use belay_contract::drivers::Profile;
use belay_contract::encryption::{self, ENCRYPTED, Encryption};
use belay_contract::format;
use belay_server::call::Failure;
use belay_server::request::{Access, Capability, Context, MountFlags};

/// Prefixes of the keys that the external-provisioner adds to the parameters and the context of a
/// volume.
const PROVISIONER_PREFIXES: [&str; 2] = ["csi.storage.k8s.io/", "storage.kubernetes.io/"];

/// The filesystem of a blank volume if the request names no filesystem.
const DEFAULT_FILESYSTEM: &str = "ext4";

/// The filesystems that the node can create, each with its minimum volume size in bytes. The volume
/// must have room for the format mark at offset 100 MiB. mkfs.xfs refuses volumes under 300 MiB,
/// and the kernel does not resize a btrfs to less than 256 MiB.
const FILESYSTEMS: &[(&str, u64)] = &[
    (DEFAULT_FILESYSTEM, 128 << 20),
    ("xfs", 300 << 20),
    ("btrfs", 256 << 20),
];

/// The reason why several nodes cannot use a volume at once.
pub(super) const ONE_NODE: &str = "it can be attached to one node at a time";

/// Explains why volumes of this driver do not support the capability; returns `None` if the volumes
/// support it.
pub(super) fn refusal(profile: &Profile, capability: &Capability) -> Option<String> {
    if is_shared(profile, capability) && !matches!(capability.access, Access::Block) {
        return Some(format!(
            "access mode {}: several nodes would damage a filesystem; use volumeMode Block, or \
             SINGLE_NODE_WRITER",
            capability.mode.name()
        ));
    }
    unattachable(profile, capability)
}

/// Explains why no volume of this driver can be attached with the capability; returns `None` if
/// volumes can be attached with it. Unlike [`refusal`], accepts a filesystem with a supported
/// access mode for several nodes, since each call attaches the volume to a single node.
pub(super) fn unattachable(profile: &Profile, capability: &Capability) -> Option<String> {
    if capability.mode.is_multi_node() && !profile.access_modes.contains(&capability.mode) {
        return Some(format!(
            "access mode {}: a volume is attached to one node at a time; use SINGLE_NODE_WRITER",
            capability.mode.name()
        ));
    }
    match &capability.access {
        Access::Block if !profile.raw_block => Some(
            "block: this driver has no raw block volumes; use volumeMode Filesystem".to_owned(),
        ),
        // The volume is not a device, so the node does not format it.
        Access::Mount { .. } if !profile.has_device() => None,
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

/// Whether the volume itself must be checked for this capability. Returns true if several nodes
/// must be able to use the volume at once, which only some volumes of the driver support.
pub(super) fn is_shared(profile: &Profile, capability: &Capability) -> bool {
    profile.shares_raw_only && capability.mode.is_multi_node()
}

/// Returns the filesystem type for a blank volume; the default if `fs_type` is empty.
pub(super) fn filesystem(fs_type: &str) -> &str {
    match fs_type {
        "" => DEFAULT_FILESYSTEM,
        named => named,
    }
}

/// Returns the minimum size of a volume with this filesystem, in bytes; `None` if the type is
/// unknown. If `fs_type` is empty, the default applies.
pub(super) fn smallest(fs_type: &str) -> Option<u64> {
    let name = filesystem(fs_type);
    FILESYSTEMS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, bytes)| *bytes)
}

/// Returns the minimum size of an encrypted volume, in bytes: its header comes in addition to the
/// filesystem, or to the format mark of a raw volume.
pub(super) fn smallest_encrypted(usage: &Usage) -> u64 {
    let inside = match usage {
        Usage::Block => None,
        Usage::Filesystem(fs_type) => smallest(fs_type),
    };
    inside.unwrap_or(format::MARK_AT) + encryption::HEADER_BYTES
}

/// Returns the encryption of a new volume. Refuses an encrypted volume that several nodes may
/// write: they would create its header, or replace its passphrase, at the same time.
pub(super) fn encryption(
    field: &str,
    parameters: &Context,
    capabilities: &[Capability],
) -> Result<Option<Encryption>, Failure> {
    let encryption = Encryption::wanted(field, parameters)?;
    let modes = capabilities.iter().map(|it| it.mode);
    let mut modes = modes.filter(|mode| mode.is_multi_node() && !mode.is_read_only());
    match encryption.and(modes.next()) {
        None => Ok(encryption),
        Some(_) => Err(Failure::invalid(
            "volume_capabilities",
            "an encrypted volume cannot be written on several nodes; use the access mode \
             ReadWriteOnce, or a class without encryption",
        )),
    }
}

/// Returns the usage that the capabilities of a request specify. The capabilities must not
/// contradict each other.
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

/// Returns the mount flags of a request's capabilities.
pub(super) fn mount_flags(capabilities: &[Capability]) -> MountFlags {
    let flags = capabilities.iter().find_map(|it| match &it.access {
        Access::Mount { flags, .. } => Some(flags.clone()),
        Access::Block => None,
    });
    flags.unwrap_or_default()
}

/// Adds entries for the node to a volume context.
pub(super) fn with_entries(
    context: Context,
    added: impl Iterator<Item = (String, String)>,
) -> Result<Context, Failure> {
    let own = context.iter();
    let own = own.map(|(key, value)| (key.to_owned(), value.to_owned()));
    Context::new("volume_context", own.chain(added))
}

/// Refuses unknown parameters: a typo must not be ignored silently.
pub(super) fn refuse_unknown(
    field: &str,
    parameters: &Context,
    known: &[&str],
) -> Result<(), Failure> {
    refuse_others(field, parameters, known, |key, known| key == known)
}

/// Refuses unknown parameters like [`refuse_unknown`], but ignores the case of keys.
pub(super) fn refuse_unknown_of_any_case(
    field: &str,
    parameters: &Context,
    known: &[&str],
) -> Result<(), Failure> {
    refuse_others(field, parameters, known, str::eq_ignore_ascii_case)
}

/// Refuses an unknown parameter that requests encryption, also for drivers that ignore other
/// unknown parameters. If this parameter were ignored, the data would be stored unencrypted.
pub(super) fn refuse_encryption(
    field: &str,
    parameters: &Context,
    known: &[&str],
) -> Result<(), Failure> {
    let asks = |(key, value): &(&str, &str)| {
        !is_known(known, key, str::eq) && format::is_encryption_requested(key, value)
    };
    match parameters.iter().find(asks) {
        None => Ok(()),
        Some((key, _)) => Err(Failure::invalid(
            field,
            format_args!(
                "{key:?} is unknown, and the data would be stored unencrypted; {}",
                match known.contains(&ENCRYPTED) {
                    true => "use the parameter encrypted: \"true\"",
                    false => "this driver does not encrypt: remove the parameter if that is meant",
                }
            ),
        )),
    }
}

/// Whether the key is one of the known keys, or another driver's name for one of them.
fn is_known(known: &[&str], key: &str, is_same: fn(&str, &str) -> bool) -> bool {
    known.iter().any(|known| is_same(key, known))
        || known.contains(&ENCRYPTED) && encryption::is_parameter_of_others(key)
}

fn refuse_others(
    field: &str,
    parameters: &Context,
    known: &[&str],
    is_same: fn(&str, &str) -> bool,
) -> Result<(), Failure> {
    let stranger = parameters.iter().map(|(key, _)| key).find(|key| {
        !is_known(known, key, is_same)
            && !PROVISIONER_PREFIXES.iter().any(|own| key.starts_with(own))
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
    use belay_contract::drivers::{LOCAL, NFS};
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
            assert_eq!(refusal(&LOCAL, &mount(fs_type, one)), None);
        }
        let why = refusal(&LOCAL, &mount("zfs", one)).unwrap();
        assert_eq!(why, "fs_type \"zfs\": not one of ext4, xfs, btrfs");
        let access = Access::Block;
        assert_eq!(refusal(&LOCAL, &Capability { access, mode: one }), None);
        let several = AccessMode::MultiNodeMultiWriter;
        let why = refusal(&LOCAL, &mount("ext4", several)).unwrap();
        assert!(why.starts_with("access mode MULTI_NODE_MULTI_WRITER: "));
    }

    #[test]
    fn a_directory_of_a_server_has_all_modes_no_device_and_any_filesystem() {
        for mode in NFS.access_modes {
            assert_eq!(refusal(&NFS, &mount("nfs", *mode)), None);
        }
        let raw = Capability {
            access: Access::Block,
            mode: AccessMode::SingleNodeWriter,
        };
        let why = refusal(&NFS, &raw).unwrap();
        assert!(why.contains("no raw block volumes"), "{why}");
    }

    #[test]
    fn the_mount_flags_are_those_of_a_mount() {
        let one = AccessMode::SingleNodeWriter;
        let mut flagged = mount("", one);
        if let Access::Mount { flags, .. } = &mut flagged.access {
            *flags = MountFlags::new(vec!["hard".to_owned()]);
        }
        assert_eq!(mount_flags(&[flagged]).as_slice(), ["hard"]);
        assert!(mount_flags(&[]).as_slice().is_empty());
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
    fn encryption_is_refused_by_any_of_its_names_unless_it_is_off() {
        let refused = |key: &str, value: &str| {
            let entry = [(key.to_owned(), value.to_owned())];
            let parameters = Context::new("parameters", entry).unwrap();
            refuse_encryption("parameters", &parameters, &["blockSize"])
        };
        for key in [
            "luksEncrypted",
            "encrypted",
            "example.com/Encryption",
            "luksCipher",
        ] {
            let why = refused(key, "true").unwrap_err();
            let message = why.message;
            assert!(
                message.starts_with(&format!("parameters: {key:?} is unknown, ")),
                "{message}"
            );
            for off in ["false", "False", "no", "0", ""] {
                refused(key, off).unwrap();
            }
        }
        refused("type", "encrypted-standard").unwrap();
        let entry = [("a/luks-encrypted".to_owned(), "true".to_owned())];
        let parameters = Context::new("parameters", entry).unwrap();
        refuse_encryption("parameters", &parameters, &[ENCRYPTED]).unwrap();
        refuse_unknown("parameters", &parameters, &[ENCRYPTED]).unwrap();
    }

    #[test]
    fn an_encrypted_volume_has_one_writing_node() {
        use belay_server::request::AccessMode;
        for (mode, is_refused) in [
            (AccessMode::SingleNodeMultiWriter, false),
            (AccessMode::MultiNodeReaderOnly, false),
            (AccessMode::MultiNodeSingleWriter, true),
            (AccessMode::MultiNodeMultiWriter, true),
        ] {
            let capability = Capability {
                access: Access::Block,
                mode,
            };
            for is_encrypted in [true, false] {
                let entry = [(ENCRYPTED.to_owned(), is_encrypted.to_string())];
                let parameters = Context::new("parameters", entry).unwrap();
                let read = encryption("parameters", &parameters, std::slice::from_ref(&capability));
                let is_error = is_refused && is_encrypted;
                assert_eq!(read.is_err(), is_error, "{mode:?}, {is_encrypted}");
            }
        }
    }

    #[test]
    fn an_encrypted_volume_has_room_for_its_header() {
        let ext4 = Usage::Filesystem(String::new());
        assert_eq!(smallest_encrypted(&ext4), (128 + 16) << 20);
        assert_eq!(smallest_encrypted(&Usage::Block), (100 + 16) << 20);
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
        let upper = [("TYPE".to_owned(), String::new())];
        let upper = Context::new("parameters", upper).unwrap();
        assert!(refuse_unknown("parameters", &upper, &["type"]).is_err());
        assert_eq!(
            refuse_unknown_of_any_case("parameters", &upper, &["type"]),
            Ok(())
        );
        assert!(refuse_unknown_of_any_case("parameters", &upper, &["types"]).is_err());
        for (known, list) in [(&["type", "class"][..], "type, class"), (&[], "none")] {
            let why = refused("tpye", known).unwrap().message;
            let expected = format!("\"tpye\" is unknown; this driver knows {list}");
            assert!(why.ends_with(&expected), "{why}");
        }
    }
}
