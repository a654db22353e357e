//! The allowed system calls: the calls of the agent, of mkfs and of e2fsck; the calls of xfs_repair
//! and resize2fs, so that a later version may start them; and the variants with which other C
//! libraries (musl, newer glibc) and other architectures make the same calls.
//!
//! Deliberately missing: ptrace, process_vm_*, pidfd_getfd, kcmp; bpf, perf_event_open,
//! userfaultfd, io_uring_setup and io_uring_register; init_module, kexec_*, reboot, swapon;
//! unshare, setns, pivot_root, chroot, mount; open_by_handle_at, mknod; add_key, keyctl; and all
//! calls that set users, clocks or quotas.

use libc::*;

/// The newest call that was known when this list was written: file_setattr of Linux 6.17. Since
/// Linux 5.1, new calls have the same numbers on all architectures.
pub(super) const NEWEST: u32 = 469;

/// New calls that the libc crate lacks, from include/uapi/asm-generic/unistd.h.
mod young {
    use libc::c_long;

    pub(super) const CACHESTAT: c_long = 451;
    pub(super) const FCHMODAT2: c_long = 452;
    pub(super) const FUTEX_WAKE: c_long = 454;
    pub(super) const FUTEX_WAIT: c_long = 455;
    pub(super) const FUTEX_REQUEUE: c_long = 456;
    pub(super) const STATMOUNT: c_long = 457;
    pub(super) const LISTMOUNT: c_long = 458;
    pub(super) const MSEAL: c_long = 462;
}

/// The calls that are allowed on all architectures. [`super::filter`] also checks the arguments of
/// socket and clone.
#[rustfmt::skip]
pub(super) const ALLOWED: &[c_long] = &[
    // Files.
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv,
    SYS_pwritev, SYS_preadv2, SYS_pwritev2, SYS_openat, SYS_openat2, SYS_close, SYS_close_range,
    SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_faccessat,
    SYS_faccessat2, SYS_fcntl, SYS_flock, SYS_ioctl, SYS_dup, SYS_dup3, SYS_pipe2,
    SYS_getdents64, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_readlinkat, SYS_mkdirat,
    SYS_unlinkat, SYS_linkat, SYS_fchmod, SYS_fchmodat, young::FCHMODAT2, SYS_umask,
    SYS_fgetxattr, SYS_fsetxattr, SYS_fremovexattr, SYS_getxattr, SYS_lgetxattr,
    // The agent's rings are restricted to reads (super::super::ring).
    SYS_io_uring_enter,
    // Calls that sync, allocate, truncate or prefetch file data.
    SYS_fsync, SYS_fdatasync, SYS_syncfs, SYS_sync, SYS_fallocate, SYS_ftruncate, SYS_fadvise64,
    SYS_readahead, young::CACHESTAT,
    // The calls for mounts by descriptor. mount(2) is not allowed.
    SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick, SYS_open_tree, SYS_move_mount,
    SYS_mount_setattr, SYS_umount2, young::STATMOUNT, young::LISTMOUNT,
    // Events.
    SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, SYS_epoll_pwait2, SYS_ppoll,
    SYS_pselect6, SYS_eventfd2, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch,
    SYS_memfd_create,
    // Sockets.
    SYS_socketpair, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_shutdown,
    SYS_getsockname, SYS_getpeername, SYS_getsockopt, SYS_setsockopt, SYS_sendto, SYS_recvfrom,
    SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg,
    // Threads and children.
    SYS_execve, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, SYS_pidfd_open,
    SYS_pidfd_send_signal, SYS_kill, SYS_tkill, SYS_tgkill, SYS_prctl, SYS_setpgid, SYS_getpgid,
    SYS_getpid, SYS_getppid, SYS_gettid, SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid,
    SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_capget, SYS_set_tid_address,
    SYS_set_robust_list, SYS_get_robust_list, SYS_rseq, SYS_futex, SYS_futex_waitv,
    young::FUTEX_WAKE, young::FUTEX_WAIT, young::FUTEX_REQUEUE, SYS_membarrier, SYS_sched_yield,
    SYS_sched_getaffinity, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_getcpu, SYS_getrusage,
    SYS_prlimit64, SYS_sysinfo, SYS_uname,
    // A helper process drops more of its privileges. Neither capset nor seccomp can add privileges.
    SYS_capset, SYS_seccomp,
    // Memory.
    SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_mincore, SYS_msync,
    SYS_mlock, SYS_munlock, SYS_brk, young::MSEAL, SYS_getrandom,
    // Time and signals.
    SYS_clock_gettime, SYS_clock_getres, SYS_clock_nanosleep, SYS_nanosleep, SYS_gettimeofday,
    SYS_setitimer, SYS_getitimer, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending,
    SYS_rt_sigreturn, SYS_rt_sigsuspend, SYS_rt_sigtimedwait, SYS_sigaltstack,
    SYS_restart_syscall,
];

/// Calls that cryptsetup makes and does without. They are refused, but not logged. libdevmapper
/// creates nodes in /dev/mapper, which the agent does not use, and asks for a semaphore of udev.
#[rustfmt::skip]
pub(super) const QUIET: &[c_long] = &[
    SYS_mknodat, SYS_semctl, SYS_semget, SYS_add_key, SYS_keyctl, SYS_request_key, SYS_mlockall,
    SYS_munlockall, SYS_setpriority, SYS_getpriority,
];

/// Calls that only x86-64 has. Other architectures use calls of [`ALLOWED`] instead.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(super) const OLD: &[c_long] = &[
    SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_dup2, SYS_pipe, SYS_readlink, SYS_mkdir,
    SYS_rmdir, SYS_unlink, SYS_link, SYS_chmod, SYS_poll, SYS_select, SYS_epoll_wait, SYS_fork,
    SYS_vfork, SYS_getpgrp, SYS_getrlimit, SYS_arch_prctl, SYS_time, SYS_alarm, SYS_pause,
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLD: &[c_long] = &[];

/// The calls of a helper process: to mount, unmount and statfs, to resolve a host name, and to
/// return the answer. A helper starts no program and no thread. [`super::filter`] also checks the
/// arguments of socket.
#[rustfmt::skip]
pub(super) const OF_HELPER: &[c_long] = &[
    // The file system calls.
    SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_umount2, SYS_statfs, SYS_openat, SYS_fchmod,
    // The resolver and the files that it reads.
    SYS_read, SYS_lseek, SYS_fstat, SYS_newfstatat, SYS_statx, SYS_faccessat, SYS_faccessat2,
    SYS_readlinkat, SYS_fcntl, SYS_ioctl, SYS_bind, SYS_connect, SYS_getsockname,
    SYS_getpeername, SYS_getsockopt, SYS_setsockopt, SYS_sendto, SYS_sendmmsg, SYS_recvfrom,
    SYS_ppoll, SYS_uname,
    // The transfer of the answer.
    SYS_sendmsg, SYS_recvmsg, SYS_write, SYS_close,
    // Memory, time, signals and exit.
    SYS_mmap, SYS_munmap, SYS_mremap, SYS_mprotect, SYS_madvise, SYS_brk, SYS_futex,
    SYS_getrandom, SYS_getpid, SYS_gettid, SYS_tgkill, SYS_clock_gettime, SYS_clock_nanosleep,
    SYS_nanosleep, SYS_gettimeofday, SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigreturn,
    SYS_sigaltstack, SYS_restart_syscall, SYS_exit, SYS_exit_group,
];

/// Calls of a helper process that only x86-64 has, like [`OLD`] for the agent.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(super) const OLD_OF_HELPER: &[c_long] = &[
    SYS_open, SYS_stat, SYS_lstat, SYS_access, SYS_readlink, SYS_poll, SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const OLD_OF_HELPER: &[c_long] = &[];
