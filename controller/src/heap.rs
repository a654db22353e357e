//! Returns the memory of the controller's threads to the kernel. mimalloc keeps freed memory for
//! the thread that freed it, so each thread must release its own free memory when it becomes idle
//! after calls. This module does not depend on the calls.

#![expect(unsafe_code, reason = "mi_collect has no safe interface")]

use belay_server::memory;
use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t, mi_option_use_numa_nodes};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The idle time after which threads for blocking work exit, which frees their memory.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(2);

/// The number of tasks that are spawned to wake all worker threads. The number exceeds the number
/// of workers, since several tasks may run on the same worker.
const WAKING_TASKS: usize = 16;

/// The option `mi_option_purge_delay` of mimalloc.h, in milliseconds. The crate for mimalloc does
/// not define this option. The option directly precedes `use_numa_nodes` in mimalloc.h.
const PURGE_DELAY: mi_option_t = mi_option_use_numa_nodes - 1;

/// The number of calls of [`rest`] so far.
static RESTS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The value of [`RESTS`] when this thread last released its free memory.
    static SEEN: Cell<usize> = const { Cell::new(0) };
}

/// Makes the allocator return free pages to the kernel at once. Must be called first.
pub(crate) fn begin() {
    // SAFETY: the function only stores a number, which later calls of the allocator read.
    unsafe { mi_option_set(PURGE_DELAY, 0) }
}

/// Releases the free memory of this thread, and makes the other threads release theirs when they
/// park. This function is called on a thread of the runtime after CSI calls have ended.
pub(crate) fn rest() {
    RESTS.fetch_add(1, Ordering::Relaxed);
    collect();
    memory::rest();
    for _ in 0..WAKING_TASKS {
        tokio::spawn(tokio::task::yield_now());
    }
}

/// Releases the free memory of a worker thread that is about to park, once after each [`rest`].
pub(crate) fn park() {
    let rests = RESTS.load(Ordering::Relaxed);
    if SEEN.replace(rests) != rests {
        collect();
    }
}

fn collect() {
    // SAFETY: the function only releases free memory of the calling thread and of threads that have
    // ended.
    unsafe { mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libmimalloc_sys::{mi_option_eager_commit_delay, mi_option_get};

    #[test]
    fn the_delay_is_the_option_between_its_neighbours_with_10_ms_by_default() {
        assert_eq!(PURGE_DELAY, mi_option_eager_commit_delay + 1);
        // SAFETY: the function only reads a number.
        assert_eq!(unsafe { mi_option_get(PURGE_DELAY) }, 10);
    }
}
