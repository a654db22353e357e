//! Tests of the filters: evaluated for all calls, and in the kernel on a separate thread, because a
//! filter lasts until its thread exits.

use std::fs::File;
use std::io::Read as _;
use std::thread;

use libc::{c_long, sock_filter};
use rustix::io::Errno;
use rustix::thread::set_no_new_privs;

use super::calls::{ALLOWED, NEWEST, OF_HELPER, OLD, OLD_OF_HELPER};
use super::{add, enter, filter};
use crate::kernel::linux::mount::last_errno;

const ALLOW: u32 = 0x7fff_0000;
const KILL: u32 = 0x8000_0000;
const EPERM: u32 = 0x0005_0001;
const ENOSYS: u32 = 0x0005_0026;

/// A system call, as a filter sees it.
#[derive(Clone, Copy)]
struct Call {
    number: u32,
    arch: u32,
    arguments: [u32; 6],
}

impl Call {
    fn of(number: c_long, arguments: &[u32]) -> Self {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        Call {
            number: number.try_into().unwrap(),
            arch: filter::ARCH.unwrap(),
            arguments: all,
        }
    }

    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.arch,
            at => self.arguments[(at as usize - 16) / 8],
        }
    }

    /// Evaluates a filter by the rules of bpf(4), and returns its action.
    fn under(&self, program: &[sock_filter]) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let is_so = match step.code {
                0x20 => {
                    loaded = self.word(step.k);
                    continue;
                }
                0x06 => return step.k,
                0x15 => loaded == step.k,
                0x25 => loaded > step.k,
                0x35 => loaded >= step.k,
                0x45 => loaded & step.k != 0,
                code => panic!("{code:#x}"),
            };
            at += usize::from(if is_so { step.jt } else { step.jf });
        }
    }

    /// Returns the action of both filters: the kernel takes the stricter action.
    fn action(&self) -> u32 {
        let listed = filter::listed(filter::ARCH.unwrap(), [ALLOWED, OLD]);
        let actions = [self.under(&filter::absent()), self.under(&listed)];
        match actions {
            [_, KILL] => KILL,
            [ALLOW, action] | [action, ALLOW] => action,
            both => panic!("both refuse: {both:x?}"),
        }
    }
}

#[test]
fn what_is_listed_is_allowed_and_all_else_refused() {
    let by_rule = [libc::SYS_socket, libc::SYS_clone, libc::SYS_clone3];
    for number in 0..1000 {
        let is_listed = ALLOWED.contains(&number) || OLD.contains(&number);
        let expected = match number {
            _ if by_rule.contains(&number) => {
                assert!(!is_listed, "{number} has a rule");
                continue;
            }
            _ if is_listed => ALLOW,
            _ if number > c_long::from(NEWEST) => ENOSYS,
            _ => EPERM,
        };
        assert_eq!(Call::of(number, &[]).action(), expected, "{number}");
    }
}

/// A range adds two instructions to the evaluation of each later call.
#[test]
fn numbers_that_follow_each_other_are_one_range() {
    let numbers: [c_long; 8] = [9, 1, 3, 2, 3, 7, 8, 40];
    let ranges = filter::ranges(numbers.iter());
    assert_eq!(ranges, [1..=3, 7..=9, 40..=40]);
}

#[test]
fn a_helper_process_has_a_part_of_the_list_and_sockets_of_the_internet() {
    let narrowed = filter::narrowed(filter::ARCH.unwrap(), [OF_HELPER, OLD_OF_HELPER]);
    let resolver = filter::resolver();
    for number in 0..1000 {
        let is_listed = OF_HELPER.contains(&number) || OLD_OF_HELPER.contains(&number);
        if number == libc::SYS_socket {
            continue;
        }
        let expected = if is_listed { ALLOW } else { EPERM };
        assert_eq!(Call::of(number, &[]).under(&narrowed), expected, "{number}");
        assert_eq!(Call::of(number, &[]).under(&resolver), ALLOW, "{number}");
        // The agent's filter applies to a helper process, too.
        assert!(
            !is_listed || Call::of(number, &[]).action() == ALLOW,
            "{number}"
        );
    }
    for (family, expected) in [
        (libc::AF_INET, ALLOW),
        (libc::AF_INET6, ALLOW),
        (libc::AF_UNIX, EPERM),
        (libc::AF_NETLINK, EPERM),
        (libc::AF_PACKET, EPERM),
    ] {
        let socket = Call::of(libc::SYS_socket, &[family.cast_unsigned()]);
        assert_eq!(socket.under(&resolver), expected, "{family}");
        // The kernel logs each refusal of this filter, so refusing the socket would add a line to
        // the log for each lookup of a name.
        assert_eq!(socket.under(&narrowed), ALLOW, "{family}");
    }
    let other = Call {
        arch: 0x4000_0003,
        ..Call::of(libc::SYS_read, &[])
    };
    assert_eq!(other.under(&narrowed), KILL);
}

#[test]
fn calls_of_other_architectures_are_refused() {
    let read = Call::of(libc::SYS_read, &[]);
    assert_eq!(read.action(), ALLOW);
    // The architectures i386 and arm.
    for arch in [0x4000_0003, 0x4000_0028] {
        assert_eq!(Call { arch, ..read }.action(), KILL);
    }
    let x32 = Call {
        number: read.number | 0x4000_0000,
        ..read
    };
    assert_eq!(x32.action(), ENOSYS);
}

#[test]
fn sockets_are_of_four_families_and_netlink_has_uevents_only() {
    let socket = |family, protocol| Call::of(libc::SYS_socket, &[family, 1, protocol]).action();
    // AF_UNIX, AF_INET, AF_INET6.
    for family in [1, 2, 10] {
        assert_eq!(socket(family, 0), ALLOW, "{family}");
    }
    assert_eq!(socket(16, 15), ALLOW);
    // Routes, audit, netfilter.
    for protocol in [0, 9, 12] {
        assert_eq!(socket(16, protocol), EPERM, "{protocol}");
    }
    for family in (0..64).filter(|it| ![1, 2, 10, 16].contains(it)) {
        assert_eq!(socket(family, 15), EPERM, "{family}");
    }
}

#[test]
fn threads_and_children_are_cloned_without_namespaces() {
    let clone = |flags| Call::of(libc::SYS_clone, &[flags]).action();
    // The flags of pthread_create, and the flags of fork.
    for flags in [0x003d_0f00, 0x0120_0011, 0x11] {
        assert_eq!(clone(flags), ALLOW, "{flags:#x}");
    }
    let namespaces = [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000];
    for flag in namespaces
        .into_iter()
        .chain([0x1000_0000, 0x2000_0000, 0x4000_0000])
    {
        assert_eq!(clone(flag | 0x11), EPERM, "{flag:#x}");
    }
    assert_eq!(Call::of(libc::SYS_clone3, &[]).action(), ENOSYS);
}

/// Runs the work on a separate thread, whose filters end with the thread. Returns an error if the
/// work panics.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> thread::Result<T> {
    thread::scope(|scope| scope.spawn(work).join())
}

/// Makes a call with arguments that every kernel rejects, and returns its errno.
fn tried(number: c_long, arguments: [c_long; 3]) -> Errno {
    let [a, b, c] = arguments;
    // SAFETY: the kernel accepts none of these calls: each has a null pointer, a descriptor that is
    // not open, or flags that contradict each other.
    let done = unsafe { libc::syscall(number, a, b, c, 0, 0, 0) };
    assert_eq!(done, -1, "{number} succeeded");
    last_errno()
}

const CLOSED: c_long = -1;
/// CLONE_NEWNS and CLONE_FS exclude each other (clone(2)).
const CONTRADICTION: c_long = 0x0002_0200;

/// A call of each class that a compromised agent could misuse, and its arguments.
const FORBIDDEN: [(c_long, [c_long; 3]); 20] = [
    (libc::SYS_ptrace, [9999, 0, 0]),
    (libc::SYS_process_vm_writev, [CLOSED, 0, 9999]),
    (libc::SYS_pidfd_getfd, [CLOSED, 0, 0]),
    (libc::SYS_bpf, [9999, 0, 0]),
    (libc::SYS_perf_event_open, [0, CLOSED, CLOSED]),
    (libc::SYS_userfaultfd, [1 << 30, 0, 0]),
    (libc::SYS_init_module, [0, 0, 0]),
    (libc::SYS_finit_module, [CLOSED, 0, 0]),
    (libc::SYS_kexec_load, [0, 1 << 40, 0]),
    // The call lacks the magic numbers that reboot(2) requires.
    (libc::SYS_reboot, [0, 0, 0]),
    (libc::SYS_swapon, [0, 0, 0]),
    (libc::SYS_keyctl, [9999, 0, 0]),
    (libc::SYS_unshare, [CONTRADICTION | 1, 0, 0]),
    (libc::SYS_setns, [CLOSED, 0, 0]),
    (libc::SYS_clone, [CONTRADICTION, 0, 0]),
    (libc::SYS_mount, [0, 0, 0]),
    (libc::SYS_pivot_root, [0, 0, 0]),
    (libc::SYS_open_by_handle_at, [CLOSED, 0, 0]),
    (libc::SYS_mknodat, [CLOSED, 0, 0]),
    // AF_PACKET with a type that no socket has.
    (libc::SYS_socket, [17, 15, 0]),
];

#[test]
#[ignore = "needs root: make test"]
fn the_kernel_refuses_each_class_of_calls_that_it_would_have_taken() {
    // A machine may refuse some of the calls to every process, such as module loading or kexec.
    let is_open = |(number, arguments): &(_, _)| tried(*number, *arguments) != Errno::PERM;
    let open = FORBIDDEN.iter().filter(|it| is_open(it)).count();
    assert!(open > FORBIDDEN.len() / 2, "only {open} are open to root");
    let inside = apart(|| {
        set_no_new_privs(true).unwrap();
        enter().unwrap();
        for (number, arguments) in FORBIDDEN {
            assert_eq!(tried(number, arguments), Errno::PERM, "{number}");
        }
        assert_eq!(tried(libc::SYS_clone3, [0, 0, 0]), Errno::NOSYS);
        assert_eq!(tried(NEWEST as c_long + 1, [0, 0, 0]), Errno::NOSYS);
    });
    inside.unwrap();
    assert_ne!(tried(libc::SYS_setns, [CLOSED, 0, 0]), Errno::PERM);
}

#[test]
fn a_thread_in_the_sandbox_works_and_so_do_threads_and_panics_in_it() {
    let inside = apart(|| {
        set_no_new_privs(true).unwrap();
        enter().unwrap();
        let mut status = String::new();
        let mut file = File::open("/proc/thread-self/status").unwrap();
        file.read_to_string(&mut status).unwrap();
        let panicked = apart(|| panic!("as asked"));
        (status, panicked.is_err())
    });
    let (status, has_panicked) = inside.unwrap();
    assert!(has_panicked);
    assert!(status.contains("\nSeccomp:\t2\n"), "{status}");
}

#[test]
fn a_program_that_is_none_is_an_error() {
    let added = apart(|| {
        set_no_new_privs(true).unwrap();
        add(&[], 0)
    });
    assert_eq!(added.unwrap(), Err(Errno::INVAL));
}
