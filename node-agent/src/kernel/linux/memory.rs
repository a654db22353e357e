//! The memory that a child may use for a key derivation.
//!
//! A header of another program may ask for much memory, and a header that somebody has prepared
//! for as much as he likes. Without a limit, the kernel would kill the agent and all its children
//! at the limit of their control group, again at each retry.

use std::path::Path;

/// The control groups, in the mount namespace of the agent.
const GROUPS: &str = "/sys/fs/cgroup";

/// Returns the size in bytes to which the address space of a child is limited: half of the memory
/// of the node, or of the control group of this process. The other half is for the agent and its
/// other children.
pub(super) fn share() -> u64 {
    let node = rustix::system::sysinfo();
    // The fields have other types on other architectures.
    let node = u64::from(node.totalram).saturating_mul(u64::from(node.mem_unit));
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    least(Path::new(GROUPS), &own).map_or(node, |group| group.min(node)) / 2
}

/// Returns the least limit of the control group that `own` names, in the format of
/// /proc/self/cgroup, and of the groups that contain it; `None` if there is no limit, or if the
/// groups are not those of the second version.
fn least(root: &Path, own: &str) -> Option<u64> {
    let group = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let limits = Path::new(group).ancestors().filter_map(|group| {
        let limit = std::fs::read_to_string(root.join(group).join("memory.max"));
        limit.ok()?.trim().parse().ok()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_of_the_groups_around_the_process_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let limit = |group: &str, limit: &str| {
            let group = root.join(group);
            std::fs::create_dir_all(&group).unwrap();
            std::fs::write(group.join("memory.max"), format!("{limit}\n")).unwrap();
        };
        limit("pod/agent", "max");
        let own = "1:name=systemd:/other\n0::/pod/agent\n";
        assert_eq!(least(root, own), None);
        limit("pod", "268435456");
        assert_eq!(least(root, own), Some(256 << 20));
        limit("pod/agent", "1048576");
        assert_eq!(least(root, own), Some(1 << 20));
        // The root group has no limit, unless it is that of a container.
        assert_eq!(least(root, "0::/\n"), None);
        limit("", "4096");
        assert_eq!(least(root, "0::/\n"), Some(4096));
        assert_eq!(least(root, "1:memory:/pod/agent\n"), None);
        assert!(share() > 0);
    }
}
