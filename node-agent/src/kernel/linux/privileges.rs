//! Reduces the capabilities of this process, and of the tools that it starts, to the capabilities
//! that the agent needs. Kubernetes propagates mounts only from privileged containers, which start
//! with all capabilities.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use crate::kernel::{Error, Result};

/// A capability that is kept, its name, and the operations that fail without it.
type Need = (CapabilitySet, &'static str, &'static str);

/// The capabilities that the agent keeps, as docs/configuration.md lists them.
const NEEDS: [Need; 3] = [
    (
        CapabilitySet::SYS_ADMIN,
        "CAP_SYS_ADMIN",
        "mount, unmount, bind loop devices or mark a volume's file",
    ),
    (
        CapabilitySet::SYS_RESOURCE,
        "CAP_SYS_RESOURCE",
        "grow a mounted ext4",
    ),
    (
        CapabilitySet::DAC_READ_SEARCH,
        "CAP_DAC_READ_SEARCH",
        "grow, thaw or check the health of a filesystem whose root directory only its owner can \
         open",
    ),
];

/// A required capability that this process does not have.
pub(crate) struct Missing {
    /// Whether the agent cannot run without the capability.
    pub(crate) is_vital: bool,
    /// The operations that the agent cannot perform; a lowercase fragment.
    pub(crate) why: String,
}

/// Disables core files of this process and of its children, because their memory contains
/// passphrases and keys of volumes.
///
/// # Errors
/// Returns the kernel's error.
pub(crate) fn forbid_core_files() -> Result<()> {
    // A limit of 0 does not apply to a core file that is piped to a program. The value 1 stops such
    // files too (fs/coredump.c of the kernel).
    let limit = Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    match setrlimit(Resource::Core, limit) {
        // The limit is 0, and may only be raised with CAP_SYS_RESOURCE.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(Error::new("setrlimit", "of this process", errno)),
    }
}

/// Permanently drops all other capabilities in the calling thread and in threads that it starts.
/// Must be called before another thread is started. Returns the required capabilities that are
/// missing.
///
/// # Errors
/// Returns the error of the call that the kernel refused.
pub(crate) fn keep_needed() -> Result<Vec<Missing>> {
    let failed = |call| move |errno| Error::new(call, "of this process", errno);
    let needed = NEEDS.iter().map(|need| need.0);
    let needed = needed.fold(CapabilitySet::empty(), CapabilitySet::union);
    let had = capabilities(None).map_err(failed("capget"))?;
    set_no_new_privs(true).map_err(failed("PR_SET_NO_NEW_PRIVS"))?;
    bound(needed).map_err(failed("PR_CAPBSET_DROP"))?;
    let permitted = had.permitted.intersection(needed);
    let kept = CapabilitySets {
        effective: permitted,
        permitted,
        // The kernel keeps the ambient set within this set and the permitted set.
        inheritable: had.inheritable.intersection(needed),
    };
    set_capabilities(None, kept).map_err(failed("capset"))?;
    let missing = NEEDS.iter().filter(|need| !permitted.contains(need.0));
    Ok(missing
        .map(|(capability, name, what)| Missing {
            is_vital: *capability == CapabilitySet::SYS_ADMIN,
            why: format!("without {name} this agent cannot {what}"),
        })
        .collect())
}

/// Keeps only the capabilities that a helper process needs: `CAP_SYS_ADMIN` if the process mounts
/// or unmounts, otherwise no capability.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn keep_for_helper(mounts: bool) -> rustix::io::Result<()> {
    let had = capabilities(None)?;
    let needed = match mounts {
        true => CapabilitySet::SYS_ADMIN,
        false => CapabilitySet::empty(),
    };
    let permitted = had.permitted.intersection(needed);
    set_capabilities(
        None,
        CapabilitySets {
            effective: permitted,
            permitted,
            inheritable: CapabilitySet::empty(),
        },
    )
}

fn bound(needed: CapabilitySet) -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if needed.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // EINVAL: the number is beyond the last capability that the kernel knows. EPERM:
            // CAP_SETPCAP is missing; the bounding set then remains, and only no_new_privs keeps
            // tools from getting more capabilities than this process has.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_core_file_is_written_even_by_a_program() {
        forbid_core_files().unwrap();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max core"));
        let words: Vec<_> = line.unwrap().split_whitespace().collect();
        assert!(
            words[4..6] == ["1", "1"] || words[4..6] == ["0", "0"],
            "{words:?}"
        );
    }
}
