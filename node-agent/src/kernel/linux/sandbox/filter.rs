//! The filters as programs of classic BPF (seccomp(2), bpf(4)). The input of a filter is the
//! number, the architecture and the arguments of a call. The filters use only instructions that the
//! kernel can evaluate in advance (since Linux 5.11), so the kernel does not run the filters for
//! calls whose arguments no rule checks.

use std::mem::offset_of;
use std::ops::RangeInclusive;

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long,
    seccomp_data, sock_filter,
};

use super::calls::{NEWEST, QUIET};

/// The architecture: `AUDIT_ARCH_*` of include/uapi/linux/audit.h. `None` if there is no list of
/// calls for the architecture.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCH: Option<u32> = Some(0xc000_003e);
#[cfg(target_arch = "aarch64")]
pub(super) const ARCH: Option<u32> = Some(0xc000_00b7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const ARCH: Option<u32> = None;

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// The filter's action that fails a call with EPERM, like the kernel for a process that lacks a
/// privilege.
const REFUSE: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
/// The filter's action that fails a call with ENOSYS, like a kernel without the call, so that
/// callers use an older call.
const ABSENT: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned();
const KILL: u32 = libc::SECCOMP_RET_KILL_PROCESS;

/// The namespace flags `CLONE_NEW*` of clone(2).
const NAMESPACES: u32 = 0x7e02_0000;

/// The address families that socket(2) may use: for CSI and logging, the HTTP pages and the
/// metadata service. Netlink has a separate rule.
const FAMILIES: [u32; 3] = [
    libc::AF_UNIX.cast_unsigned(),
    libc::AF_INET.cast_unsigned(),
    libc::AF_INET6.cast_unsigned(),
];

/// The address families that a DNS resolver uses.
const INTERNET: [u32; 2] = [FAMILIES[1], FAMILIES[2]];

/// `NETLINK_KOBJECT_UEVENT` of include/uapi/linux/netlink.h.
const UEVENTS: u32 = 15;

/// Returns the filter that fails clone3, and all calls that are newer than the list, with ENOSYS.
/// The flags of clone3 are in memory, which a filter cannot read. The newer calls include all calls
/// of the x32 ABI, whose numbers have bit 30 set. The filter also refuses the calls of [`QUIET`],
/// since its refusals are not logged.
pub(super) fn absent() -> Vec<sock_filter> {
    let mut program = vec![
        load(offset_of!(seccomp_data, nr)),
        jump(BPF_JGT, NEWEST, 1, 0),
        jump(BPF_JEQ, number(libc::SYS_clone3), 0, 1),
        answer(ABSENT),
    ];
    for call in QUIET {
        rule(&mut program, *call, vec![answer(REFUSE)]);
    }
    program.push(answer(ALLOW));
    program
}

/// Returns the filter that allows the listed calls, for this architecture only, and the calls that
/// [`absent`] fails.
pub(super) fn listed(arch: u32, allowed: [&[c_long]; 2]) -> Vec<sock_filter> {
    let mut program = vec![
        load(offset_of!(seccomp_data, arch)),
        jump(BPF_JEQ, arch, 1, 0),
        answer(KILL),
        load(offset_of!(seccomp_data, nr)),
        jump(BPF_JGT, NEWEST, 0, 1),
        answer(ALLOW),
    ];
    for call in [libc::SYS_clone3].iter().chain(QUIET) {
        rule(&mut program, *call, vec![answer(ALLOW)]);
    }
    rule(&mut program, libc::SYS_socket, socket());
    rule(&mut program, libc::SYS_clone, clone());
    allow(&mut program, allowed);
    program
}

/// Returns the filter that refuses all sockets that a DNS resolver does not need. Some resolvers
/// first try another socket (of nscd), and this attempt must not add a line to the kernel's log.
/// Therefore this filter, whose refusals are not logged, is separate from [`narrowed`].
pub(super) fn resolver() -> Vec<sock_filter> {
    let mut program = vec![load(offset_of!(seccomp_data, nr))];
    let mut sockets = of_families(&INTERNET);
    sockets.push(answer(REFUSE));
    rule(&mut program, libc::SYS_socket, sockets);
    program.push(answer(ALLOW));
    program
}

/// Returns the filter that allows only the listed calls. The filters of [`listed`] and [`resolver`]
/// apply as well.
pub(super) fn narrowed(arch: u32, allowed: [&[c_long]; 2]) -> Vec<sock_filter> {
    let mut program = vec![
        load(offset_of!(seccomp_data, arch)),
        jump(BPF_JEQ, arch, 1, 0),
        answer(KILL),
        load(offset_of!(seccomp_data, nr)),
    ];
    rule(&mut program, libc::SYS_socket, vec![answer(ALLOW)]);
    allow(&mut program, allowed);
    program
}

/// Appends the ranges of allowed calls, and refuses all other calls.
fn allow(program: &mut Vec<sock_filter>, allowed: [&[c_long]; 2]) {
    for range in ranges(allowed.into_iter().flatten()) {
        program.extend([
            jump(BPF_JGE, *range.start(), 0, 2),
            jump(BPF_JGT, *range.end(), 1, 0),
            answer(ALLOW),
        ]);
    }
    program.push(answer(REFUSE));
}

/// Returns the rule for socket(2). Of the netlink protocols, the rule allows only uevents, because
/// other protocols change routes, firewalls and audit rules.
fn socket() -> Vec<sock_filter> {
    let mut rule = of_families(&FAMILIES);
    rule.extend([
        jump(BPF_JEQ, libc::AF_NETLINK.cast_unsigned(), 0, 3),
        load(argument(2)),
        jump(BPF_JEQ, UEVENTS, 0, 1),
        answer(ALLOW),
        answer(REFUSE),
    ]);
    rule
}

/// Returns the beginning of a rule that allows sockets of these families.
fn of_families(families: &[u32]) -> Vec<sock_filter> {
    let mut rule = vec![load(argument(0))];
    for family in families {
        rule.extend([jump(BPF_JEQ, *family, 0, 1), answer(ALLOW)]);
    }
    rule
}

/// Returns the rule for clone(2), which allows threads and children, but no namespaces.
fn clone() -> Vec<sock_filter> {
    vec![
        load(argument(0)),
        jump(BPF_JSET, NAMESPACES, 0, 1),
        answer(REFUSE),
        answer(ALLOW),
    ]
}

/// Appends a rule that decides all calls with this number.
fn rule(program: &mut Vec<sock_filter>, call: c_long, rule: Vec<sock_filter>) {
    // A rule has only a few instructions.
    let beyond = u8::try_from(rule.len()).unwrap_or(u8::MAX);
    program.push(jump(BPF_JEQ, number(call), 0, beyond));
    program.extend(rule);
}

/// Returns the numbers as ascending ranges.
pub(super) fn ranges<'a>(calls: impl Iterator<Item = &'a c_long>) -> Vec<RangeInclusive<u32>> {
    let mut numbers: Vec<_> = calls.map(|call| number(*call)).collect();
    numbers.sort_unstable();
    let mut ranges: Vec<RangeInclusive<u32>> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some(last) if number <= *last.end() + 1 => *last = *last.start()..=number,
            _ => ranges.push(number..=number),
        }
    }
    ranges
}

/// Converts the number of a call. `u32::MAX` is no call's number, so the filter refuses an invalid
/// number.
fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

/// Returns the offset of the lower half of an argument: flags and numbers are of type `int` or fit
/// into it.
fn argument(at: usize) -> usize {
    let big_endian = if cfg!(target_endian = "big") { 4 } else { 0 };
    offset_of!(seccomp_data, args) + at * size_of::<u64>() + big_endian
}

fn load(offset: usize) -> sock_filter {
    // `seccomp_data` has 64 bytes.
    let offset = u32::try_from(offset).unwrap_or(u32::MAX);
    instruction(BPF_LD | BPF_W | BPF_ABS, offset, 0, 0)
}

/// Compares the loaded value, and skips `if_so` instructions if the condition holds, else `if_not`.
fn jump(condition: u32, value: u32, if_so: u8, if_not: u8) -> sock_filter {
    instruction(BPF_JMP | condition | BPF_K, value, if_so, if_not)
}

fn answer(action: u32) -> sock_filter {
    instruction(BPF_RET | BPF_K, action, 0, 0)
}

fn instruction(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    // All opcodes of classic BPF are below 256.
    let code = u16::try_from(code).unwrap_or(u16::MAX);
    sock_filter { code, jt, jf, k }
}
