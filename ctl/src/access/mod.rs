//! The flags for the use of a volume: filesystem or block, access mode, mount flags; and the
//! `key=value` flags that several commands share. Hidden flags are those of csc.

pub(crate) mod csc;

use std::collections::HashMap;

use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use belay_proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use belay_proto::csi::v1::{Topology, VolumeCapability};
use clap::Args;

/// One `key=value` flag.
pub(crate) type Pair = (String, String);

/// The flags for a volume capability.
#[derive(Args, Default)]
pub(crate) struct Access {
    /// Use as a filesystem of this type [default without --block: the driver's]
    #[arg(long, value_name = "TYPE", conflicts_with = "block")]
    fs_type: Option<String>,
    /// Use as a raw block device
    #[arg(long)]
    block: bool,
    /// Access mode by its name in the specification [default: SINGLE_NODE_WRITER]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<Mode>,
    /// Mount flag as in fstab; may be repeated
    #[arg(long = "mount-flag", value_name = "FLAG", conflicts_with = "block")]
    mount_flags: Vec<String>,
    /// MODE,block or MODE,mount,TYPE[,FLAG...]: all of these at once
    #[arg(long, hide = true, value_name = "CAPABILITY", value_parser = csc::capability,
          conflicts_with_all = ["fs_type", "block", "mode", "mount_flags"])]
    cap: Option<VolumeCapability>,
}

impl Access {
    /// The capability that the flags describe.
    pub(crate) fn capability(self) -> VolumeCapability {
        if let Some(capability) = self.cap {
            return capability;
        }
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.unwrap_or_default(),
                mount_flags: self.mount_flags,
                volume_mount_group: String::new(),
            })
        };
        let mode = self.mode.unwrap_or(Mode::SingleNodeWriter);
        VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(AccessMode { mode: mode.into() }),
        }
    }

    /// The capability if one of the flags was given, for calls where it is optional.
    pub(crate) fn capability_if_asked(self) -> Option<VolumeCapability> {
        let asked = self.block
            || self.fs_type.is_some()
            || self.mode.is_some()
            || self.cap.is_some()
            || !self.mount_flags.is_empty();
        asked.then(|| self.capability())
    }
}

/// Parses the name of an access mode.
///
/// # Errors
/// It is not in the specification.
pub(crate) fn mode(text: &str) -> Result<Mode, String> {
    match Mode::from_str_name(text) {
        None | Some(Mode::Unknown) => {
            let known = (1..).map_while(|number| Mode::try_from(number).ok());
            let names: Vec<_> = known.map(|mode| mode.as_str_name()).collect();
            Err(format!("unknown; one of {}", names.join(", ")))
        }
        Some(mode) => Ok(mode),
    }
}

/// Parses one `key=value`.
///
/// # Errors
/// No `=`, or an empty key.
pub(crate) fn pair(text: &str) -> Result<Pair, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be key=value".to_owned()),
    }
}

/// Flags as the map of a request; the last value for a key wins.
pub(crate) fn map(pairs: Vec<Pair>) -> HashMap<String, String> {
    pairs.into_iter().collect()
}

/// Flags as one topology; `None` without flags.
pub(crate) fn topology(pairs: Vec<Pair>) -> Option<Topology> {
    (!pairs.is_empty()).then(|| Topology {
        segments: map(pairs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing() -> Access {
        Access {
            fs_type: None,
            block: false,
            mode: None,
            mount_flags: Vec::new(),
            cap: None,
        }
    }

    #[test]
    fn without_flags_it_is_the_drivers_default_filesystem_for_one_writer() {
        let capability = nothing().capability();
        assert_eq!(
            capability.access_mode.unwrap().mode(),
            Mode::SingleNodeWriter
        );
        assert_eq!(
            capability.access_type,
            Some(AccessType::Mount(MountVolume::default()))
        );
        assert_eq!(nothing().capability_if_asked(), None);
    }

    #[test]
    fn block_is_requested_by_its_flag_alone() {
        let asked = Access {
            block: true,
            ..nothing()
        }
        .capability_if_asked()
        .unwrap();
        assert_eq!(asked.access_type, Some(AccessType::Block(BlockVolume {})));
    }

    #[test]
    fn every_mode_of_the_specification_has_its_name() {
        assert_eq!(
            mode("SINGLE_NODE_MULTI_WRITER"),
            Ok(Mode::SingleNodeMultiWriter)
        );
        assert_eq!(
            mode("MULTI_NODE_READER_ONLY"),
            Ok(Mode::MultiNodeReaderOnly)
        );
        for wrong in ["UNKNOWN", "", "single_node_writer"] {
            let error = mode(wrong).unwrap_err();
            assert!(
                error.contains("SINGLE_NODE_SINGLE_WRITER"),
                "{wrong}: {error}"
            );
        }
    }

    #[test]
    fn a_pair_is_split_at_its_first_equals_sign() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert!(pair("a").is_err() && pair("=b").is_err());
    }
}
