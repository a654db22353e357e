//! Shifts the clock of one running program: only its CLOCK_REALTIME, and no clock of other
//! programs. A program reads the time through the vDSO (vdso(7)), of which it has its own mapping;
//! there, clock_gettime is replaced with the system call and an addition. Times that the kernel
//! itself sets, such as file times, are not affected.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use belay_bed::patience::until;
use rustix::process::{Pid, Signal, kill_process};

/// The code of `clock_gettime(edi, rsi)` for x86-64. The seconds to add follow it.
#[rustfmt::skip]
const CODE: [u8; 32] = [
    0xb8, 0xe4, 0x00, 0x00, 0x00,             // mov eax, __NR_clock_gettime
    0x0f, 0x05,                               // syscall
    0x85, 0xff,                               // test edi, edi (CLOCK_REALTIME)
    0x74, 0x05,                               // je 1f
    0x83, 0xff, 0x05,                         // cmp edi, CLOCK_REALTIME_COARSE
    0x75, 0x0a,                               // jne 2f
    0x48, 0x8b, 0x0d, 0x09, 0x00, 0x00, 0x00, // 1: mov rcx, [rip + 9]
    0x48, 0x01, 0x0e,                         // add [rsi], rcx
    0xc3,                                     // 2: ret
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
];

/// The space for the code and the seconds, at the unused end of the vDSO.
const ROOM: usize = 64;

/// The length of a jump to the code, at the entry of the replaced function.
const JUMP: usize = 5;

/// The shifted clock, until it is reset or the program ends.
pub(crate) struct Clock {
    pid: u32,
    memory: File,
    entry: u64,
    code: u64,
    original: [u8; JUMP],
}

impl Clock {
    /// Prepares the clock of a process, without shifting it yet.
    ///
    /// # Panics
    /// Panics if the process's vDSO is not as expected.
    pub(crate) fn of(pid: u32) -> Self {
        if !cfg!(target_arch = "x86_64") {
            panic!("the clock of a program is shifted by code for x86-64");
        }
        let mem = format!("/proc/{pid}/mem");
        let memory = File::options().read(true).write(true).open(mem);
        let memory = memory.expect("its memory");
        let (start, bytes) = vdso(pid);
        let mut image = vec![0; bytes];
        memory.read_exact_at(&mut image, start).expect("the vDSO");
        let entry = symbol(&image, "__vdso_clock_gettime");
        let code = bytes - ROOM;
        let room = &image[code..];
        let is_free = room.iter().all(|&byte| byte == 0);
        assert!(is_free || room.starts_with(&CODE), "the vDSO is full");
        let original = image[entry..entry + JUMP].try_into().expect("its entry");
        let jump = u32::try_from(code - entry - JUMP).expect("a near jump");
        let clock = Clock {
            pid,
            memory,
            entry: start + entry as u64,
            code: start + code as u64,
            original,
        };
        clock.write(&[
            (clock.code, &CODE),
            (clock.entry, &[&[0xe9], &jump.to_le_bytes()[..]].concat()),
        ]);
        clock
    }

    /// Shifts the clock by this many seconds from now on.
    pub(crate) fn shift(&self, seconds: i64) {
        self.write(&[(self.code + CODE.len() as u64, &seconds.to_le_bytes())]);
    }

    /// Resets the clock to the true time.
    pub(crate) fn put_back(self) {
        self.shift(0);
        self.write(&[(self.entry, &self.original)]);
    }

    /// Changes the vDSO while the program is stopped, and not executing the changed code. A program
    /// that was already stopped stays stopped.
    fn write(&self, changes: &[(u64, &[u8])]) {
        let process = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let process = process.expect("a process");
        let was_stopped = self.is_stopped();
        until("the program stands still", || {
            if !was_stopped {
                kill_process(process, Signal::STOP).expect("kill");
                until("all its threads stand still", || self.is_stopped());
            }
            let is_ready = !self.is_at_entry();
            if !is_ready && !was_stopped {
                kill_process(process, Signal::CONT).expect("kill");
            }
            is_ready
        });
        for (at, bytes) in changes {
            self.memory.write_all_at(bytes, *at).expect("its memory");
        }
        if !was_stopped {
            kill_process(process, Signal::CONT).expect("kill");
        }
    }

    fn threads(&self, file: &str) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).expect("its threads");
        let files = tasks.flatten().map(|task| task.path().join(file));
        // A thread may just have exited.
        files.flat_map(fs::read_to_string::<PathBuf>).collect()
    }

    fn is_stopped(&self) -> bool {
        let mut states = self.threads("stat").into_iter();
        states.all(|stat| stat.contains(") T "))
    }

    /// Whether a thread is executing the first instructions; the last word of the line is its
    /// position (proc_pid_syscall(5)).
    fn is_at_entry(&self) -> bool {
        let mut lines = self.threads("syscall").into_iter();
        lines.any(|line| {
            let counter = line.split_whitespace().next_back();
            let counter = counter.and_then(|word| word.strip_prefix("0x"));
            let counter = counter.and_then(|word| u64::from_str_radix(word, 16).ok());
            // A thread that has not stopped yet shows "running".
            counter.is_none_or(|at| (1..JUMP as u64).contains(&at.wrapping_sub(self.entry)))
        })
    }
}

/// Returns the address and length of the vDSO.
fn vdso(pid: u32) -> (u64, usize) {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("its maps");
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    let range = line.and_then(|line| line.split(' ').next()?.split_once('-'));
    let (start, end) = range.expect("a vDSO");
    let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
    let bytes = usize::try_from(number(end) - number(start)).expect("a length");
    (number(start), bytes)
}

/// Returns the value of a symbol (elf(5)).
fn symbol(image: &[u8], name: &str) -> usize {
    let number = |at: usize, bytes: usize| {
        let digits = image[at..at + bytes].iter().rev();
        digits.fold(0, |value, &byte| (value << 8) | usize::from(byte))
    };
    // These are e_shoff and e_shnum; then sh_type, sh_link, sh_offset and sh_size.
    let section = |index: usize| number(40, 8) + index * 64;
    let mut sections = (0..number(60, 2)).map(section);
    let dynsym = sections.find(|at| number(at + 4, 4) == 11);
    let dynsym = dynsym.expect("SHT_DYNSYM");
    let names = number(section(number(dynsym + 40, 4)) + 24, 8);
    let (first, bytes) = (number(dynsym + 24, 8), number(dynsym + 32, 8));
    // These are st_name and st_value.
    let mut symbols = (first..first + bytes).step_by(24);
    let is_it = |at: &usize| image[names + number(*at, 4)..].starts_with(name.as_bytes());
    number(symbols.find(is_it).expect(name) + 8, 8)
}
