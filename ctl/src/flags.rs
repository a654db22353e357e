//! Flags that several commands share: the volume capability, `key=value` pairs, and files.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::Path;

use belay_proto::csi::v1::volume_capability::access_mode::Mode;
use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;

/// A `key=value` flag.
pub(crate) type Pair = (String, String);

/// The flags for a volume capability.
#[derive(Args, Default)]
pub(crate) struct Access {
    /// Use as a filesystem of this type [default without --block: the driver's]
    #[arg(long, value_name = "TYPE", conflicts_with = "block")]
    fs_type: Option<String>,
    /// Use as a raw block device
    #[arg(long)]
    pub(crate) block: bool,
    /// Access mode by its name in the specification [default: SINGLE_NODE_WRITER]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<Mode>,
    /// Mount flag as in fstab; may be repeated
    #[arg(long = "mount-flag", value_name = "FLAG", conflicts_with = "block")]
    mount_flags: Vec<String>,
}

impl Access {
    /// Returns the VolumeCapability message that the flags describe, in JSON.
    pub(crate) fn capability(&self) -> Value {
        let mode = self.mode.unwrap_or(Mode::SingleNodeWriter).as_str_name();
        let mut capability = json!({"access_mode": {"mode": mode}});
        match self.block {
            true => capability["block"] = json!({}),
            false => {
                capability["mount"] = json!({
                    "fs_type": self.fs_type.as_deref().unwrap_or_default(),
                    "mount_flags": self.mount_flags,
                });
            }
        }
        capability
    }

    /// Whether one of the flags was given, for calls in which a capability is optional.
    pub(crate) fn is_given(&self) -> bool {
        let is_mount = self.fs_type.is_some() || !self.mount_flags.is_empty();
        self.block || is_mount || self.mode.is_some()
    }
}

/// Parses the name of an access mode.
///
/// # Errors
/// Fails if the specification does not define the mode.
fn mode(text: &str) -> Result<Mode, String> {
    match Mode::from_str_name(text) {
        None | Some(Mode::Unknown) => {
            let known = (1..).map_while(|number| Mode::try_from(number).ok());
            let names: Vec<_> = known.map(|mode| mode.as_str_name()).collect();
            Err(format!("unknown; one of {}", names.join(", ")))
        }
        Some(mode) => Ok(mode),
    }
}

/// Parses a `key=value` pair.
///
/// # Errors
/// Fails if there is no `=`, or the key is empty.
pub(crate) fn pair(text: &str) -> Result<Pair, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("must be key=value".to_owned()),
    }
}

/// Converts pairs to a map; the last value for a key wins.
pub(crate) fn map(pairs: impl IntoIterator<Item = Pair>) -> HashMap<String, String> {
    pairs.into_iter().collect()
}

/// Maximum size of a secret, saved response or request, in bytes. This limit also ends reads from a
/// device or an endless pipe.
const BYTES_MAX: u64 = 4 << 20;

/// Returns the text of a file; `-` is standard input.
///
/// # Errors
/// Fails if the file cannot be read, is larger than 4 MiB, or is not UTF-8.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    read_up_to(file, BYTES_MAX)
}

/// Returns the text of a file of at most `bytes_max` bytes; `-` is standard input. The error
/// message gives the limit in whole MiB.
///
/// # Errors
/// Fails if the file cannot be read, is larger, or is not UTF-8.
pub(crate) fn read_up_to(file: &Path, bytes_max: u64) -> Result<String, Failure> {
    let fail = |error: io::Error| Failure::Usage(format!("{}: {error}", file.display()));
    let text = if file == Path::new("-") {
        limited(io::stdin().lock(), bytes_max)
    } else {
        File::open(file).and_then(|file| limited(file, bytes_max))
    };
    text.map_err(fail)
}

/// Parses the address of an HTTP port.
///
/// # Errors
/// Fails unless the text is an IP address and a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, String> {
    let parsed = text.parse();
    parsed.map_err(|_| "expected ADDRESS:PORT, such as 127.0.0.1:9808 or [::1]:9808".to_owned())
}

/// Returns an error that names the flag whose file cannot be read, and the remedy.
pub(crate) fn unread(flag: &str, failure: &Failure) -> Failure {
    Failure::Usage(format!("{flag} {failure}; name a file that can be read"))
}

fn limited(from: impl Read, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = from.take(bytes_max + 1).read_to_string(&mut text)?;
    if read as u64 > bytes_max {
        let message = format!("larger than {} MiB", bytes_max >> 20);
        return Err(io::Error::other(message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_flags_it_is_the_drivers_default_filesystem_for_one_writer() {
        let access = Access::default();
        let expected = json!({"access_mode": {"mode": "SINGLE_NODE_WRITER"},
            "mount": {"fs_type": "", "mount_flags": []}});
        assert_eq!((access.capability(), access.is_given()), (expected, false));
    }

    #[test]
    fn block_is_requested_by_its_flag_alone() {
        let access = Access {
            block: true,
            ..Access::default()
        };
        let capability = access.capability();
        assert!(access.is_given() && capability["block"].is_object());
        assert_eq!(capability.get("mount"), None);
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

    #[test]
    fn an_endless_file_is_refused() {
        let error = limited(io::repeat(b'a'), BYTES_MAX).unwrap_err();
        assert_eq!(error.to_string(), "larger than 4 MiB");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/nonexistent/a")).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/a: No such file"), "{error}");
    }
}
