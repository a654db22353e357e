//! Reduces the resident memory of the programs: all threads of the node agent share one heap, and
//! free memory is returned to the kernel when work ends. This module does not depend on calls.
//!
//! Savings measured in the node agent, whose limit is 5 MiB of resident memory (benches/BUDGET.md):
//! one heap saves 80 to 90 KiB for each thread of the pool. Returning the read-only pages of the
//! program saves 0.8 MiB after the start, and 1.7 MiB after a demo. Returning free memory saves 1.9
//! to 3.6 MiB after a burst of calls.

#![expect(
    unsafe_code,
    reason = "the allocator's functions have no safe interface"
)]

use std::ffi::{c_int, c_void};
use std::fs;
use std::ptr;

use libc::{PF_W, PT_LOAD, dl_phdr_info, size_t};

/// The step in which the heap grows, and the number of free bytes that remain at its end, in bytes.
/// Unused bytes take up no memory. The unused bytes are also a reserve for calls in an agent that
/// reaches the limit of its address space (setrlimit(2), `RLIMIT_AS`).
#[cfg(target_env = "gnu")]
const HEAP_STEP_BYTES: c_int = 16 << 20;

/// The resident memory, in bytes, up to which [`rest`] does not return memory to the kernel. The
/// agent's limit is 5 MiB.
const RESTING_BYTES_MAX: usize = 4 << 20;

/// Makes all threads share one heap. By default, glibc creates a separate heap, with separate free
/// memory, for each concurrent thread. Call this function before a second thread exists.
///
/// With a fixed step, buffers of 128 KiB and more, such as the buffers of long lists, are always
/// mapped, and unmapped when they are freed (mallopt(3), `M_TOP_PAD` and `M_MMAP_THRESHOLD`).
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes two numbers, and no other thread allocates at the same time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_TOP_PAD, HEAP_STEP_BYTES);
    }
}

/// Calls [`give_back`] if more than 4 MiB are resident, as after a burst of calls, or if the
/// resident memory is unknown.
pub fn rest() {
    if resident_bytes().is_none_or(|bytes| bytes > RESTING_BYTES_MAX) {
        give_back();
    }
}

/// Returns the resident memory in bytes, from the second field of `/proc/self/statm`
/// (proc_pid_statm(5)).
fn resident_bytes() -> Option<usize> {
    let statm = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split(' ').nth(1)?.parse().ok()?;
    pages.checked_mul(page_bytes()?)
}

fn page_bytes() -> Option<usize> {
    // SAFETY: the function takes a number, and changes nothing.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()
}

/// Returns the free memory of the heap and the read-only pages of the program to the kernel. The
/// next calls map the needed pages again from the page cache, with about 30 page faults and no I/O.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes the allocator's lock, and releases only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
    // SAFETY: the callback matches the declared type, and needs no data.
    unsafe {
        libc::dl_iterate_phdr(Some(unmap_program), ptr::null_mut());
    }
}

/// Drops the read-only pages of the program. dl_iterate_phdr(3) calls this callback for the program
/// itself first; its result ends the iteration.
unsafe extern "C" fn unmap_program(
    program: *mut dl_phdr_info,
    _bytes: size_t,
    _data: *mut c_void,
) -> c_int {
    let Some(page) = page_bytes() else {
        return 1;
    };
    // SAFETY: the C library passes a valid description of the program, whose headers stay mapped
    // for as long as the program runs.
    let (base, headers) = unsafe {
        let program = &*program;
        let count = usize::from(program.dlpi_phnum);
        let headers = std::slice::from_raw_parts(program.dlpi_phdr, count);
        (program.dlpi_addr, headers)
    };
    for segment in headers {
        if segment.p_type != PT_LOAD || segment.p_flags & PF_W != 0 {
            continue;
        }
        let (Ok(start), Ok(end)) = (
            usize::try_from(base + segment.p_vaddr),
            usize::try_from(base + segment.p_vaddr + segment.p_memsz),
        ) else {
            continue;
        };
        // Drop only pages that are entirely within the segment, since a writable segment may share
        // its first and last page.
        let (start, end) = (start.next_multiple_of(page), end - end % page);
        // SAFETY: the range is a private mapping of the program's file that was never written, so
        // each later access finds the same bytes in the file. If the kernel refuses, the pages stay
        // mapped.
        unsafe {
            libc::madvise(
                ptr::with_exposed_provenance_mut(start),
                end.saturating_sub(start),
                libc::MADV_DONTNEED,
            );
        }
    }
    1
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::hint::black_box;
    use std::os::unix::fs::FileExt as _;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A large constant. The kernel maps 64 KiB around a page fault, and no data of other threads
    /// is this close to the middle of the constant.
    static CONSTANT: [u8; 256 << 10] = [7; 256 << 10];
    static WRITTEN: AtomicU32 = AtomicU32::new(1);

    /// Whether the page with this byte is resident: the top bit of its entry in /proc/self/pagemap
    /// (proc_pid_pagemap(5)).
    fn is_resident(byte: &u8) -> bool {
        let page = ptr::from_ref(byte).addr() / page_bytes().unwrap();
        let mut entry = [0; 8];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        pagemap.read_exact_at(&mut entry, page as u64 * 8).unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    }

    #[test]
    fn constant_pages_are_given_back_and_what_was_written_is_kept() {
        let middle = &CONSTANT[CONSTANT.len() / 2];
        WRITTEN.store(2, Ordering::Relaxed);
        assert_eq!(*black_box(middle), 7);
        assert!(is_resident(middle));
        give_back();
        assert!(!is_resident(middle));
        assert_eq!(*black_box(middle), 7);
        assert_eq!(WRITTEN.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_resident_memory_is_that_of_a_program() {
        let bytes = resident_bytes().unwrap();
        assert!((256 << 10..1 << 36).contains(&bytes), "{bytes}");
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn free_memory_between_used_memory_is_given_back() {
        // The blocks take more memory than other tests allocate at the same time. The last block
        // keeps the other blocks in the heap.
        let mut blocks: Vec<_> = (0..128 << 10).map(|_| vec![1_u8; 1 << 10]).collect();
        let last = blocks.pop();
        drop(blocks);
        let before = resident_bytes().unwrap();
        give_back();
        let after = resident_bytes().unwrap();
        assert!(before > 96 << 20 && after < before / 2, "{before} {after}");
        drop(black_box(last));
    }
}
