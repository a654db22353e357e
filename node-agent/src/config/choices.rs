//! Value types of command-line flags: enumerations, a segment of the node's topology, and
//! directories.

use std::path::PathBuf;
use std::str::FromStr;

use belay_contract::drivers::local::{DEFAULT_DISK, disk_name, is_label};
use belay_contract::topology::Topology;
use belay_server::call::Failure;
use belay_server::request::AbsPath;

/// Whether the agent restricts its system calls with seccomp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sandbox {
    /// Only those that they need
    On,
    /// All system calls
    Off,
}

/// The treatment of a blank disk if it is unknown whether it ever contained data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum UnknownContent {
    /// Read all of it, and format it if every byte is zero
    Prove,
    /// Do not format it
    Refuse,
}

/// The treatment of a new disk that has no known signature, but contains bytes other than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Uncleared {
    /// Format it if it has no known signature
    Accept,
    /// Do not format it
    Refuse,
}

/// Maximum length of the part of a label's key after the slash, in bytes (Kubernetes).
const NAME_BYTES_MAX: usize = 63;
const PREFIX_BYTES_MAX: usize = 253;

/// A label of the node, which is also a segment of its topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl FromStr for Segment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text
            .split_once('=')
            .ok_or("not KEY=VALUE, such as topology.kubernetes.io/region=one")?;
        let (prefix, name) = match key.split_once('/') {
            Some((prefix, name)) => (Some(prefix), name),
            None => (None, key),
        };
        // Kubernetes allows the same characters in the name part of a label's key as in a label's
        // value; only the length limits differ.
        let is_name = name.len() <= NAME_BYTES_MAX && Topology::new(key, name).is_ok();
        let is_domain =
            |prefix: &str| prefix.len() <= PREFIX_BYTES_MAX && prefix.split('.').all(is_label);
        if !is_name || !prefix.is_none_or(is_domain) {
            return Err(format!("{key:?}: cannot be the key of a node's label"));
        }
        Topology::new(key, value).map_err(|error| error.to_string())?;
        let (key, value) = (key.to_owned(), value.to_owned());
        Ok(Self { key, value })
    }
}

/// A disk of the node, with the directory that contains the files of the disk's volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDir {
    /// The name of the disk in the volume context.
    pub disk: String,
    /// The directory.
    pub dir: PathBuf,
}

impl FromStr for DiskDir {
    type Err = String;

    /// Parses `NAME=DIR` or `DIR`. A directory whose path contains `=` must begin with `/` or `.`,
    /// or follow a name.
    fn from_str(text: &str) -> Result<Self, String> {
        let named = text
            .split_once('=')
            .filter(|_| !text.starts_with(['/', '.']));
        let (disk, dir) = named.unwrap_or((DEFAULT_DISK, text));
        let (disk, dir) = (disk_name(disk)?, dir.into());
        Ok(Self { disk, dir })
    }
}

pub(super) fn kubelet_dir(text: &str) -> Result<AbsPath, Failure> {
    AbsPath::new("the directory", text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_a_label_that_a_node_can_have() {
        for (text, expected) in [
            ("topology.kubernetes.io/region=one", Some("one")),
            ("rack=R_1.a", Some("R_1.a")),
            ("rack", None),
            ("rack=", None),
            ("=a", None),
            ("/a=a", None),
            ("a/=a", None),
            ("A.b/c=a", None),
            ("a..b/c=a", None),
            ("a/b/c=a", None),
            ("rack=a b", None),
            (&*format!("{}=a", "k".repeat(64)), None),
        ] {
            let found = text.parse::<Segment>();
            assert_eq!(found.as_ref().ok().map(|it| &*it.value), expected, "{text}");
        }
        let segment: Segment = "example.org/rack=a".parse().unwrap();
        assert_eq!(segment.key, "example.org/rack");
    }
}
