//! `local`: volumes that are files on one node, and reachable only there. This module also defines
//! the extended attributes (xattr(7)) of these files, with which the controller and the node agent
//! exchange information, and the limit on hard links that both programs enforce.

use super::{Kubelet, ParameterPolicy, Profile, TRANSPORT_LOOP};
use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;
use std::path::Path;
use std::time::Duration;

/// The attribute that marks a file as never used. The value of the attribute is [`IS_NEW`] when the
/// file is created, then the UUID of the format that has begun, then [`USE_BEGUN`]. The agent
/// removes the attribute before the first use, and never formats a file without it.
pub const NEW: &str = "user.belay.new";
/// The value of [`NEW`] that the controller sets when it creates the file.
pub const IS_NEW: &[u8] = b"1";
/// The value of [`NEW`] while the agent is removing the attribute, because the removal may not be
/// on disk yet.
pub const USE_BEGUN: &[u8] = b"0";

/// The attribute with the size of the volume or snapshot in bytes, in decimal digits. The
/// controller sets the attribute when the file is complete, and after each enlargement, so a
/// smaller file was truncated.
pub const BYTES: &str = "user.belay.bytes";
/// Maximum length of the value of [`BYTES`], in bytes: the number of digits of 2^64.
pub const BYTES_DIGITS_MAX: usize = 20;

/// The attribute with the controller's [`Claim`] on a volume's file.
pub const CLAIM: &str = "user.belay.claim";
/// Maximum length of the value of [`CLAIM`], in bytes.
pub const CLAIM_BYTES_MAX: usize = 64;

/// The operation for which the controller has claimed a volume's file. Depending on the operation,
/// NodeStageVolume removes the claim, or fails because of the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// DeleteVolume was refused, since the node uses the file. The agent unstages the volume if no
    /// pod uses it. NodeStageVolume ends the claim.
    Delete,
    /// The file is being removed, so NodeStageVolume fails.
    Deleting,
    /// The file is being copied to the snapshot with this ID, and must not change during the copy.
    Copy(String),
}

impl Claim {
    /// Returns the value of the attribute for this claim.
    #[must_use]
    pub fn value(&self) -> String {
        match self {
            Claim::Delete => "delete".to_owned(),
            Claim::Deleting => "deleting".to_owned(),
            Claim::Copy(snapshot) => format!("copy {snapshot}"),
        }
    }

    /// Parses the value of the attribute. Returns `None` for an unknown value.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        match str::from_utf8(value).ok()?.split_once(' ') {
            None if value == b"delete" => Some(Claim::Delete),
            None if value == b"deleting" => Some(Claim::Deleting),
            Some(("copy", snapshot)) => Some(Claim::Copy(snapshot.to_owned())),
            _ => None,
        }
    }
}

/// The attribute of the directory with the volumes' files that states where the volumes are: the
/// text of [`home`].
pub const HOME: &str = "user.belay.home";
/// Maximum length of the value of [`HOME`], in bytes: the name of a Node has at most 253, and the
/// value of a label at most 63.
pub const HOME_BYTES_MAX: usize = 253 + 1 + 63;

/// Returns the value of [`HOME`]: the Node that has the volumes, and their place, which is the
/// value of the topology label. The place stays the same when the disks move to another Node.
#[must_use]
pub fn home(node: &str, place: &str) -> String {
    format!("{node} {place}")
}

/// Returns the place in the value of [`HOME`] if the Node is `node`. A copy of a disk at another
/// Node does not have the place.
#[must_use]
pub fn place_at<'a>(value: &'a [u8], node: &str) -> Option<&'a str> {
    let (home, place) = str::from_utf8(value).ok()?.split_once(' ')?;
    (home == node).then_some(place)
}

/// The finalizer by which the store of a node accepts a LocalVolume or LocalSnapshot.
pub const FINALIZER: &str = "belay.dev/store";
/// The version of the specs of LocalVolumes and LocalSnapshots: a release that adds a field without
/// which a spec means something else raises the number for the specs that have the field. A store
/// refuses a larger number than its own. An API server that does not know the field yet may drop it
/// from an object that the store reads, so the store cannot rely on the field itself.
pub const SPEC_VERSION: u32 = 1;

/// The volume in the spec of an adopted snapshot whose volume is not known. The store does not use
/// the volume of an existing snapshot.
pub const UNKNOWN_VOLUME: &str = "vol-00000000000000000000000000000000";

/// The time without a report after which the store of a LocalDisk is silent.
pub const SILENT_AFTER: Duration = Duration::from_secs(180);
/// The description of a silent store.
pub const SILENT: &str = "its store does not report";
/// The age from which an object without a claim is unclaimed. Until then, its PersistentVolume or
/// VolumeSnapshotContent may still be created.
pub const UNCLAIMED_AFTER: Duration = Duration::from_secs(600);

/// The parameter of a StorageClass, and the key of the volume context, that names the disk of the
/// node whose directory has the volume's file.
pub const DISK: &str = "disk";
/// The disk of volumes without the key [`DISK`].
pub const DEFAULT_DISK: &str = "default";
/// The maximum length of a disk's name in bytes, as the definition of LocalDisk has it.
const DISK_NAME_BYTES_MAX: usize = 63;

/// Whether the text can be the name of a disk.
#[must_use]
pub fn is_disk_name(text: &str) -> bool {
    is_label(text) && text.len() <= DISK_NAME_BYTES_MAX
}

/// Returns the name of a disk in a flag.
///
/// # Errors
/// Returns a message for a text that cannot be the name of a disk.
pub fn disk_name(text: &str) -> Result<String, String> {
    match is_disk_name(text) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "disk name {text:?}: use lowercase letters, digits and inner hyphens, at most 63"
        )),
    }
}

/// Whether the text can be a part between dots of an object's name (RFC 1123), apart from its
/// length.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(is_plain)
        && bytes.last().is_some_and(is_plain)
        && bytes.iter().all(|byte| is_plain(byte) || *byte == b'-')
}

/// The part of a LocalDisk's problem that states that its directory is empty, and that only the
/// permission to use the directory is missing.
pub const WAITS: &str = "waiting for the controller's permission";
/// The part of a LocalDisk's problem that states that the directory had a state, and now has none.
pub const STATE_IS_MISSING: &str = "has no state.redb, but this disk had the state";

/// Parses the value of [`BYTES`]; returns 0 if the value is not a number.
#[must_use]
pub fn parse_bytes(value: &[u8]) -> u64 {
    let digits = str::from_utf8(value).ok();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

/// The profile of the driver for local files.
pub const LOCAL: Profile = Profile {
    name: "local.csi.belay.dev",
    topology_key: "topology.local.csi.belay.dev/node",
    place_is_node: true,
    always_topology: false,
    is_regional: false,
    metadata: None,
    instance_file: None,
    capabilities: &[
        PluginCapability::Controller,
        PluginCapability::OnlineExpansion,
    ],
    transport: TRANSPORT_LOOP,
    disk_names: &[],
    disk_name_key: None,
    never_format_keys: &[],
    disk_per_mille: 1000,
    volumes_max: 0,
    limits_all_disks: false,
    parameters: ParameterPolicy::Refuse,
    access_modes: &[
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter,
    ],
    shares_raw_only: false,
    raw_block: true,
    attaches: false,
    stages: true,
    grows_on_node: true,
    knows_room: true,
    kubelet: Kubelet {
        pod_info_on_mount: false,
        fs_group_policy: "File",
        selinux_mount: true,
    },
};

/// The divisor for the part of the filesystem with the backing files that should remain free: 5 %.
const RESERVE_PART: u64 = 20;
/// Maximum number of bytes that should remain free, also on a large filesystem: 10 GiB.
const RESERVE_BYTES_MAX: u64 = 10 << 30;

/// Returns the number of bytes that should remain free on the filesystem with the backing files,
/// which are sparse. `total` is the size of the filesystem in bytes.
#[must_use]
pub fn reserve_bytes(total: u64) -> u64 {
    (total / RESERVE_PART).min(RESERVE_BYTES_MAX)
}

/// Explains why the file at `path` must not be used if it has several names (hard links): it may
/// also be the file of another volume or snapshot. The text contains the path, the number of names,
/// and the remedy. Returns `None` if the file has one name.
#[must_use]
pub fn names_refusal(path: &Path, names: u64) -> Option<String> {
    if names <= 1 {
        return None;
    }
    let state_dir = path.parent().and_then(Path::parent);
    let (dir, path) = (state_dir.unwrap_or(path).display(), path.display());
    Some(format!(
        "{path}: has {names} names (hard links) instead of one, as after a deduplicating tool, so \
         it may be the file of other volumes or snapshots too; `find {dir} -samefile {path}` lists \
         the names; remove those that belong to no volume or snapshot, or, while no volume that \
         has the file is staged, make a separate file: `cp --archive --reflink=auto {path} \
         {path}.new && mv {path}.new {path}` (docs/health.md, A file with several names)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_name_is_refused_with_the_file_the_number_and_the_remedy() {
        let path = Path::new("/state/volumes/vol-1");
        for names in [0, 1] {
            assert_eq!(names_refusal(path, names), None, "{names}");
        }
        let why = names_refusal(path, 2).unwrap();
        for part in [
            "/state/volumes/vol-1: has 2 names (hard links) instead of one, ",
            "`find /state -samefile /state/volumes/vol-1`",
            "cp --archive --reflink=auto /state/volumes/vol-1 /state/volumes/vol-1.new && mv ",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }

    #[test]
    fn a_disk_is_named_like_a_label_of_dns() {
        let longest = "a".repeat(DISK_NAME_BYTES_MAX);
        for name in [DEFAULT_DISK, "a", "7", "fast-1", &longest] {
            assert!(is_disk_name(name), "{name:?}");
        }
        let too_long = format!("{longest}a");
        for text in ["", "-a", "a-", "Fast", "a.b", "a/b", "a b", &too_long] {
            assert!(!is_disk_name(text), "{text:?}");
        }
    }

    #[test]
    fn what_one_program_writes_the_other_reads() {
        let copy = Claim::Copy("snap-1".to_owned());
        for claim in [Claim::Delete, Claim::Deleting, copy] {
            let value = claim.value();
            assert_eq!(Claim::parse(value.as_bytes()), Some(claim));
            assert!(value.len() <= CLAIM_BYTES_MAX);
        }
        let value = home("node1.example", "node0");
        assert_eq!(place_at(value.as_bytes(), "node1.example"), Some("node0"));
        assert_eq!(place_at(value.as_bytes(), "node1"), None);
        assert_eq!(place_at(b"node1", "node1"), None);
        for value in ["", "1", "copy", "delete x", "delete "] {
            assert_eq!(Claim::parse(value.as_bytes()), None, "{value:?}");
        }
        for (value, bytes) in [("0", 0), ("", 0), ("-1", 0), ("4096", 4096), ("x", 0)] {
            assert_eq!(parse_bytes(value.as_bytes()), bytes, "{value:?}");
        }
        let most = u64::MAX.to_string();
        assert_eq!(parse_bytes(most.as_bytes()), u64::MAX);
        assert_eq!(most.len(), BYTES_DIGITS_MAX);
    }
}
