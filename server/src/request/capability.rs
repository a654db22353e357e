//! The requested use of a volume: access mode, and block device or filesystem.

use super::text::{STRING_BYTES_MAX, at_most, without_controls};
use crate::call::Failure;
use belay_proto::csi::v1 as csi;
use csi::volume_capability::AccessType;
use csi::volume_capability::access_mode::Mode;
use std::fmt;

/// Maximum total size of the mount flags of a capability, in bytes (CSI 1.13,
/// `MountVolume.mount_flags`).
const MOUNT_FLAGS_BYTES_MAX: usize = 4096;

/// A requested use of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    /// Access as a block device or as a filesystem.
    pub access: Access,
    /// The nodes and workloads that may use the volume, and whether they may write.
    pub mode: AccessMode,
}

/// The form in which a workload accesses the volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// The workload gets a block device node.
    Block,
    /// The workload gets a mounted filesystem.
    Mount {
        /// The type of the filesystem, e.g. `ext4`; empty if not specified.
        fs_type: String,
        /// The mount options.
        flags: MountFlags,
        /// The group that owns the files; empty if not specified.
        group: String,
    },
}

/// The nodes and workloads that may use the volume at the same time, and their access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AccessMode {
    /// The volume is read and written on one node.
    SingleNodeWriter,
    /// The volume is only read, on one node.
    SingleNodeReaderOnly,
    /// The volume is only read, on several nodes.
    MultiNodeReaderOnly,
    /// The volume is written on one node, and read on several nodes.
    MultiNodeSingleWriter,
    /// The volume is read and written on several nodes.
    MultiNodeMultiWriter,
    /// The volume is read and written by one workload on one node.
    SingleNodeSingleWriter,
    /// The volume is read and written by several workloads on one node.
    SingleNodeMultiWriter,
}

impl AccessMode {
    /// Whether the mode forbids writes.
    #[must_use]
    pub const fn is_read_only(self) -> bool {
        matches!(self, Self::SingleNodeReaderOnly | Self::MultiNodeReaderOnly)
    }

    /// Whether several nodes may use the volume at the same time.
    #[must_use]
    pub const fn is_multi_node(self) -> bool {
        matches!(
            self,
            Self::MultiNodeReaderOnly | Self::MultiNodeSingleWriter | Self::MultiNodeMultiWriter
        )
    }

    /// Whether one node may publish the volume at several target paths (CSI 1.13, the second table
    /// of `NodePublishVolume`).
    #[must_use]
    pub const fn allows_several_targets(self) -> bool {
        self.is_multi_node() || matches!(self, Self::SingleNodeMultiWriter)
    }

    /// Returns the name in the specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SingleNodeWriter => "SINGLE_NODE_WRITER",
            Self::SingleNodeReaderOnly => "SINGLE_NODE_READER_ONLY",
            Self::MultiNodeReaderOnly => "MULTI_NODE_READER_ONLY",
            Self::MultiNodeSingleWriter => "MULTI_NODE_SINGLE_WRITER",
            Self::MultiNodeMultiWriter => "MULTI_NODE_MULTI_WRITER",
            Self::SingleNodeSingleWriter => "SINGLE_NODE_SINGLE_WRITER",
            Self::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
        }
    }

    fn known(mode: Mode) -> Option<Self> {
        Some(match mode {
            Mode::Unknown => return None,
            Mode::SingleNodeWriter => Self::SingleNodeWriter,
            Mode::SingleNodeReaderOnly => Self::SingleNodeReaderOnly,
            Mode::MultiNodeReaderOnly => Self::MultiNodeReaderOnly,
            Mode::MultiNodeSingleWriter => Self::MultiNodeSingleWriter,
            Mode::MultiNodeMultiWriter => Self::MultiNodeMultiWriter,
            Mode::SingleNodeSingleWriter => Self::SingleNodeSingleWriter,
            Mode::SingleNodeMultiWriter => Self::SingleNodeMultiWriter,
        })
    }
}

/// Mount options. The mount options are never printed, since some filesystems accept credentials as
/// options.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct MountFlags(Vec<String>);

impl MountFlags {
    /// Creates mount flags from these options.
    #[must_use]
    pub fn new(options: Vec<String>) -> Self {
        Self(options)
    }

    /// Returns the options as received.
    #[must_use]
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Debug for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() {
            "<none>"
        } else {
            "<secret>"
        })
    }
}

impl Capability {
    /// Reads the capability in `field`, which is required.
    pub(super) fn required(
        field: &str,
        capability: Option<csi::VolumeCapability>,
    ) -> Result<Self, Failure> {
        Self::optional(field, capability)?
            .ok_or_else(|| Failure::invalid(field, "is required, but not set"))
    }

    /// Reads the capability in `field`; returns `None` if the field is not set.
    pub(super) fn optional(
        field: &str,
        capability: Option<csi::VolumeCapability>,
    ) -> Result<Option<Self>, Failure> {
        capability
            .map(|capability| Self::checked(field, capability))
            .transpose()
    }

    /// Reads the capabilities in `volume_capabilities`. A failure contains the index of the
    /// capability.
    pub(super) fn list(capabilities: Vec<csi::VolumeCapability>) -> Result<Vec<Self>, Failure> {
        let numbered = capabilities.into_iter().enumerate();
        numbered
            .map(|(n, capability)| Self::checked(&format!("volume_capabilities[{n}]"), capability))
            .collect()
    }

    /// Reads the capabilities in `volume_capabilities`, of which at least one is required.
    pub(super) fn list_of_some(
        capabilities: Vec<csi::VolumeCapability>,
    ) -> Result<Vec<Self>, Failure> {
        if capabilities.is_empty() {
            return Err(Failure::invalid(
                "volume_capabilities",
                "needs at least one element; add one with an access_mode, and with mount or block",
            ));
        }
        Self::list(capabilities)
    }

    fn checked(field: &str, capability: csi::VolumeCapability) -> Result<Self, Failure> {
        let access = match capability.access_type {
            None => return Err(Failure::invalid(field, "must set block or mount")),
            Some(AccessType::Block(_)) => Access::Block,
            Some(AccessType::Mount(mount)) => mounted(field, mount)?,
        };
        let number = capability.access_mode.map_or(0, |mode| mode.mode);
        let mode = Mode::try_from(number)
            .ok()
            .and_then(AccessMode::known)
            .ok_or_else(|| {
                let why = format_args!("access_mode {number} is not defined in CSI 1.13");
                Failure::invalid(field, why)
            })?;
        Ok(Self { access, mode })
    }
}

fn mounted(field: &str, mount: csi::volume_capability::MountVolume) -> Result<Access, Failure> {
    for (part, text) in [
        ("fs_type", &mount.fs_type),
        ("volume_mount_group", &mount.volume_mount_group),
    ] {
        at_most(part, text, STRING_BYTES_MAX)
            .and_then(|()| without_controls(part, text))
            .map_err(|failure| Failure::invalid(field, failure))?;
    }
    let bytes: usize = mount.mount_flags.iter().map(String::len).sum();
    if bytes > MOUNT_FLAGS_BYTES_MAX {
        let why = format_args!(
            "mount_flags have {bytes} bytes in total; at most {MOUNT_FLAGS_BYTES_MAX} are allowed"
        );
        return Err(Failure::invalid(field, why));
    }
    for (n, flag) in mount.mount_flags.iter().enumerate() {
        without_controls(&format!("{field}.mount_flags[{n}]"), flag)?;
    }
    Ok(Access::Mount {
        fs_type: mount.fs_type,
        flags: MountFlags(mount.mount_flags),
        group: mount.volume_mount_group,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use csi::volume_capability::{BlockVolume, MountVolume};

    fn block(mode: i32) -> csi::VolumeCapability {
        csi::VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            access_mode: Some(csi::volume_capability::AccessMode { mode }),
        }
    }

    fn mount(volume: MountVolume) -> csi::VolumeCapability {
        csi::VolumeCapability {
            access_type: Some(AccessType::Mount(volume)),
            ..block(1)
        }
    }

    fn refused(capability: csi::VolumeCapability) -> String {
        Capability::required("volume_capability", Some(capability))
            .unwrap_err()
            .message
    }

    #[test]
    fn every_mode_is_known_by_its_number_and_has_the_properties_of_the_specification() {
        use AccessMode::*;
        // Each row has the mode, and whether it is read-only, allows several nodes, and allows
        // several targets on one node.
        let modes = [
            (SingleNodeWriter, false, false, false),
            (SingleNodeReaderOnly, true, false, false),
            (MultiNodeReaderOnly, true, true, true),
            (MultiNodeSingleWriter, false, true, true),
            (MultiNodeMultiWriter, false, true, true),
            (SingleNodeSingleWriter, false, false, false),
            (SingleNodeMultiWriter, false, false, true),
        ];
        for (number, (mode, read_only, multi_node, several_targets)) in (1..).zip(modes) {
            let capability = Capability::required("", Some(block(number))).unwrap();
            assert_eq!(
                capability,
                Capability {
                    access: Access::Block,
                    mode
                }
            );
            assert_eq!(Mode::try_from(number).unwrap().as_str_name(), mode.name());
            assert_eq!(mode.is_read_only(), read_only, "{mode:?}");
            assert_eq!(mode.is_multi_node(), multi_node, "{mode:?}");
            assert_eq!(mode.allows_several_targets(), several_targets, "{mode:?}");
        }
    }

    #[test]
    fn an_incomplete_capability_is_refused() {
        for number in [0, 8, -1] {
            let why = format!("volume_capability: access_mode {number} is not defined in CSI 1.13");
            assert_eq!(refused(block(number)), why);
        }
        let no_mode = csi::VolumeCapability {
            access_mode: None,
            ..block(1)
        };
        assert_eq!(
            refused(no_mode),
            "volume_capability: access_mode 0 is not defined in CSI 1.13"
        );
        let no_type = csi::VolumeCapability {
            access_type: None,
            ..block(1)
        };
        assert_eq!(
            refused(no_type),
            "volume_capability: must set block or mount"
        );
        let absent = Capability::required("volume_capability", None).unwrap_err();
        assert_eq!(
            absent.message,
            "volume_capability: is required, but not set"
        );
        let none = Capability::list_of_some(Vec::new()).unwrap_err();
        assert_eq!(
            none.message,
            "volume_capabilities: needs at least one element; add one with an access_mode, and \
             with mount or block"
        );
        let second = Capability::list(vec![block(1), block(0)]).unwrap_err();
        assert!(
            second.message.starts_with("volume_capabilities[1]: "),
            "{second}"
        );
    }

    #[test]
    fn mount_options_have_limits_and_are_never_shown() {
        let with_flags = |mount_flags: Vec<String>| MountVolume {
            mount_flags,
            ..Default::default()
        };
        let flags = vec!["password=canary".to_owned(), "x".repeat(4096 - 15)];
        let longest = mount(with_flags(flags.clone()));
        let taken = Capability::required("volume_capability", Some(longest)).unwrap();
        assert!(!format!("{taken:?}").contains("canary"), "{taken:?}");
        let Access::Mount { flags: kept, .. } = taken.access else {
            panic!("a mount")
        };
        assert_eq!(kept.as_slice(), flags);

        let too_long = refused(mount(with_flags(vec!["canary".repeat(700)])));
        assert!(
            too_long.contains("4200 bytes") && !too_long.contains("canary"),
            "{too_long}"
        );
        let control = refused(mount(with_flags(vec![
            "ro".to_owned(),
            "canary\n".to_owned(),
        ])));
        assert!(
            control.starts_with("volume_capability.mount_flags[1]: "),
            "{control}"
        );
        assert!(!control.contains("canary"), "{control}");
    }

    #[test]
    fn filesystem_and_group_are_bounded_strings() {
        let fs_type = mount(MountVolume {
            fs_type: "x".repeat(129),
            ..Default::default()
        });
        let why = "volume_capability: fs_type: has 129 bytes; at most 128 are allowed";
        assert_eq!(refused(fs_type), why);
        let group = MountVolume {
            volume_mount_group: "1\0".to_owned(),
            ..Default::default()
        };
        let why =
            "volume_capability: volume_mount_group: has the control character U+0000 at byte 1";
        assert_eq!(refused(mount(group)), why);
    }
}
