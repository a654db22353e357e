//! `local`: volumes that are files on one node, and reachable only there. Also: the attribute that
//! the controller sets on these files for the agent, and the limit on their hard links that both
//! enforce.

use super::{Kubelet, ParameterPolicy, Profile, TRANSPORT_LOOP};
use belay_server::identity::PluginCapability;
use belay_server::request::AccessMode;
use std::path::Path;

/// The extended attribute (xattr(7)) of a volume's file that marks a pending detach: the controller
/// refuses a detach while the volume is bound on the node. It sets the attribute with each refusal
/// and removes it with the next attach; the agent watches for it.
pub const DETACH: &str = "user.belay.detach";

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
    parameters: ParameterPolicy::Refuse,
    access_modes: &[
        AccessMode::SingleNodeWriter,
        AccessMode::SingleNodeReaderOnly,
        AccessMode::SingleNodeSingleWriter,
        AccessMode::SingleNodeMultiWriter,
    ],
    shares_raw_only: false,
    raw_block: true,
    attaches: true,
    stages: true,
    grows_on_node: true,
    knows_room: true,
    kubelet: Kubelet {
        pod_info_on_mount: false,
        fs_group_policy: "File",
        selinux_mount: true,
    },
};

/// The divisor for the part of the filesystem with the volumes' files that should stay free: 5 %.
const RESERVE_PART: u64 = 20;
/// Maximum number of bytes that should stay free, also on a large filesystem: 10 GiB.
const RESERVE_BYTES_MAX: u64 = 10 << 30;

/// Returns the number of bytes that should stay free on a filesystem of `total` bytes with the
/// volumes' files, which are sparse.
#[must_use]
pub fn reserve_bytes(total: u64) -> u64 {
    (total / RESERVE_PART).min(RESERVE_BYTES_MAX)
}

/// Explains why the file at `path`, which has `names` hard links, must not be used: with more links
/// than Belay has created, several volumes or snapshots may share one file. The text contains the
/// path, both numbers and the remedy. Returns `None` if the file has at most `allowed` links.
#[must_use]
pub fn names_refusal(path: &Path, names: u64, allowed: u64) -> Option<String> {
    if names <= allowed {
        return None;
    }
    let state_dir = path.parent().and_then(Path::parent);
    let (dir, path) = (state_dir.unwrap_or(path).display(), path.display());
    Some(format!(
        "{path}: has {names} names (hard links) and may have {allowed}, as after a deduplicating \
         tool, so it may be the file of other volumes or snapshots too; `find {dir} -samefile \
         {path}` lists the names; remove those that belong to no volume or snapshot, or, while no \
         volume that has the file is attached, make a separate file: `cp --archive --reflink=auto \
         {path} {path}.new && mv {path}.new {path}` (docs/health.md, A file with several names)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_names_than_allowed_are_refused_with_the_file_the_numbers_and_the_remedy() {
        let path = Path::new("/state/volumes/vol-1");
        for (names, allowed) in [(0, 1), (1, 1), (1, 2), (2, 2)] {
            assert_eq!(
                names_refusal(path, names, allowed),
                None,
                "{names} of {allowed}"
            );
        }
        let why = names_refusal(path, 3, 2).unwrap();
        for part in [
            "/state/volumes/vol-1: has 3 names (hard links) and may have 2, ",
            "`find /state -samefile /state/volumes/vol-1`",
            "cp --archive --reflink=auto /state/volumes/vol-1 /state/volumes/vol-1.new && mv ",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
