//! The sandbox: after [`enter`], the kernel refuses all system calls that neither the agent nor the
//! tools that it starts need (seccomp(2), by an allow list). A compromised process cannot trace or
//! read other processes, load code into the kernel, or enter or create namespaces. Allowed calls
//! can still do everything that the agent's capabilities permit, such as a mount, because seccomp
//! sees numbers and flags, but no paths.
//!
//! | system call | result |
//! |---|---|
//! | listed | executed |
//! | not listed, and older than this list | EPERM, and a line with its number in the kernel's log |
//! | optional for cryptsetup | EPERM |
//! | clone3, or newer than this list | ENOSYS, as on an older kernel |
//! | of another architecture (`int 0x80`) | the process is killed |
//!
//! docs/adr/0017 has the reasons.

#![expect(unsafe_code, reason = "rustix has no function for seccomp filters")]

mod calls;
mod filter;
#[cfg(test)]
mod tests;

use libc::{c_ulong, sock_filter, sock_fprog};
use rustix::io::Errno;

use super::mount::last_errno;
use crate::kernel::{Error, Result};

/// The filters do not disable speculation: by default, kernels before Linux 5.16 would restrict the
/// process's speculation, which slows it down and protects only processes that run foreign code.
const FLAGS: c_ulong = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;

/// Enters the sandbox permanently, for the calling thread and for threads and processes that it
/// starts. Must be called before another thread is started, and after
/// [`super::privileges::keep_needed`], whose `no_new_privs` it requires.
///
/// # Errors
/// Returns ENOSYS or EINVAL if the kernel has no seccomp filters, ENOSYS on an architecture without
/// a list of calls.
pub(crate) fn enter() -> Result<()> {
    let failed = |errno| Error::new("seccomp", "of this process", errno);
    let Some(arch) = filter::ARCH else {
        return Err(failed(Errno::NOSYS));
    };
    // Two filters are needed, because the kernel logs either all refusals of a filter or none. Each
    // of the two filters allows the calls that the other filter refuses.
    add(&filter::absent(), FLAGS).map_err(failed)?;
    let listed = filter::listed(arch, [calls::ALLOWED, calls::OLD]);
    add(&listed, FLAGS | libc::SECCOMP_FILTER_FLAG_LOG).map_err(failed)
}

/// Narrows the sandbox of a helper process to the calls that the helper needs. Does nothing if the
/// agent has no sandbox.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn narrow() -> rustix::io::Result<()> {
    // SAFETY: this operation of prctl takes no pointer.
    let mode = unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) };
    match filter::ARCH {
        Some(arch) if mode == SECCOMP_MODE_FILTER => {
            add(&filter::resolver(), FLAGS)?;
            let listed = filter::narrowed(arch, [calls::OF_HELPER, calls::OLD_OF_HELPER]);
            add(&listed, FLAGS | libc::SECCOMP_FILTER_FLAG_LOG)
        }
        _ => Ok(()),
    }
}

/// `SECCOMP_MODE_FILTER` of include/uapi/linux/seccomp.h.
const SECCOMP_MODE_FILTER: i32 = 2;

/// Adds a filter to the calling thread.
fn add(program: &[sock_filter], flags: c_ulong) -> rustix::io::Result<()> {
    let program = sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel reads `len` instructions from the slice, only during the call, and
    // validates the instructions itself.
    let done = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    if done == 0 { Ok(()) } else { Err(last_errno()) }
}
