//! What this process and the tools that it starts may do: what the agent needs, and nothing else
//! of what it was started with. A privileged container, without which Kubernetes lets no mount out,
//! is started with everything.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};

use crate::kernel::{Error, Result};

/// A capability that is kept, its name, and what cannot be done without it.
type Need = (CapabilitySet, &'static str, &'static str);

/// All of them, as docs/configuration.md has them.
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
        "grow or thaw a filesystem whose root only its user may open",
    ),
];

/// A needed capability that this process was not given.
pub(crate) struct Missing {
    /// Without it the agent can do nothing at all.
    pub(crate) is_vital: bool,
    /// What cannot be done; a lowercase fragment.
    pub(crate) why: String,
}

/// Gives up everything else, for good, in the calling thread and all that come from it: so before
/// there is any other. Returns what is missing of the needed.
///
/// # Errors
/// What the kernel refused.
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
        // The ambient set is never more than this and the permitted one have in common.
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

fn bound(needed: CapabilitySet) -> rustix::io::Result<()> {
    for number in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if needed.contains(one) {
            continue;
        }
        match remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // Beyond the last that the kernel knows. Or CAP_SETPCAP is missing: then the set stays,
            // and no_new_privs alone keeps tools from having more than this process.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
