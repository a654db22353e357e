//! The flags of csc, for commands written for it. They are hidden in the help; belayctl's own flags
//! do the same.

use belay_proto::csi::v1::VolumeCapability;
use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use belay_proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use clap::Args;

use super::{Pair, pair};

/// `--params`: as `--parameter`, but several pairs in one, separated by commas.
#[derive(Args)]
pub(crate) struct Parameters {
    #[arg(long, hide = true, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = pair)]
    params: Vec<Pair>,
}

impl Parameters {
    /// The pairs of both flags.
    pub(crate) fn and(self, mut parameters: Vec<Pair>) -> Vec<Pair> {
        parameters.extend(self.params);
        parameters
    }
}

/// Parses `--cap`: `MODE,block` or `MODE,mount[,TYPE[,MOUNT_FLAG...]]`. Mode and access type may be
/// the numbers of the protocol.
///
/// # Errors
/// An unknown mode or access type, or none.
pub(crate) fn capability(text: &str) -> Result<VolumeCapability, String> {
    let mut parts = text.split(',');
    let mode = mode(parts.next().unwrap_or_default())?;
    let access_type = match parts.next() {
        Some("block" | "1") => AccessType::Block(BlockVolume {}),
        Some("mount" | "2") => AccessType::Mount(MountVolume {
            fs_type: parts.next().unwrap_or_default().to_owned(),
            mount_flags: parts.by_ref().map(str::to_owned).collect(),
            volume_mount_group: String::new(),
        }),
        _ => return Err("must be MODE,block or MODE,mount,TYPE[,MOUNT_FLAG...]".to_owned()),
    };
    if let Some(extra) = parts.next() {
        return Err(format!("block takes nothing else, found: {extra}"));
    }
    Ok(VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode { mode: mode.into() }),
    })
}

fn mode(text: &str) -> Result<Mode, String> {
    let numbered = text.parse::<i32>().ok().and_then(|n| n.try_into().ok());
    let known = numbered.filter(|mode| *mode != Mode::Unknown);
    known.map_or_else(|| super::mode(text), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    use crate::access::{Access, map};
    use crate::context::Contexts;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        access: Access,
        #[command(flatten)]
        contexts: Contexts,
        #[command(flatten)]
        csc: Parameters,
    }

    #[test]
    fn the_flags_of_csc_reach_the_request() {
        let line = "belayctl --cap 1,block --pub-context a=1,b=2 --pub-context=c=3 \
            --vol-context d=4 --params e=5,f=6";
        let flags = Flags::parse_from(line.split(' '));
        let of = |pairs: &[(&str, &str)]| {
            let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect()
        };
        let asked = flags.access.capability_if_asked().unwrap();
        assert_eq!(asked.access_type, Some(AccessType::Block(BlockVolume {})));
        let contexts = flags.contexts.load().unwrap();
        assert_eq!(contexts.publish, of(&[("a", "1"), ("b", "2"), ("c", "3")]));
        assert_eq!(contexts.volume, of(&[("d", "4")]));
        let parameters = flags.csc.and(vec![("g".to_owned(), "7".to_owned())]);
        assert_eq!(map(parameters), of(&[("e", "5"), ("f", "6"), ("g", "7")]));
    }

    #[test]
    fn a_capability_is_parsed_as_csc_does_by_name_or_number() {
        let mount = |fs_type: &str, flags: &[&str]| {
            AccessType::Mount(MountVolume {
                fs_type: fs_type.to_owned(),
                mount_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
                volume_mount_group: String::new(),
            })
        };
        let block = AccessType::Block(BlockVolume {});
        for (text, mode, access_type) in [
            ("SINGLE_NODE_WRITER,block", Mode::SingleNodeWriter, block),
            (
                "5,1",
                Mode::MultiNodeMultiWriter,
                AccessType::Block(BlockVolume {}),
            ),
            (
                "SINGLE_NODE_READER_ONLY,mount,xfs,ro,noatime",
                Mode::SingleNodeReaderOnly,
                mount("xfs", &["ro", "noatime"]),
            ),
            ("1,2", Mode::SingleNodeWriter, mount("", &[])),
        ] {
            let parsed = capability(text).unwrap();
            assert_eq!(parsed.access_mode.unwrap().mode(), mode, "{text}");
            assert_eq!(parsed.access_type, Some(access_type), "{text}");
        }
    }

    #[test]
    fn a_capability_that_is_unclear_is_refused() {
        for text in [
            "",
            "1",
            "mount,ext4",
            "0,block",
            "99,block",
            "1,disk",
            "1,block,ext4",
        ] {
            assert!(capability(text).is_err(), "{text}");
        }
    }
}
