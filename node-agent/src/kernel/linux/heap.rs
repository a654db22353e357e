//! The one setting of the allocator that matters to an agent with 5 MiB.

#![expect(unsafe_code, reason = "mimalloc's options have no safe interface")]

use libc::{c_int, c_long};
// Linked for its option functions; the binary makes it the global allocator.
use mimalloc as _;

/// `mi_option_purge_delay` (mimalloc.h, versions 2 and 3).
const MI_OPTION_PURGE_DELAY: c_int = 15;

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Gives freed pages back to the kernel at once. By default mimalloc does so 10 ms later, but only
/// when the thread that freed them allocates again: threads of a pool that wait do not, and after a
/// burst of stages 12 MiB stayed.
pub(crate) fn give_back_at_once() {
    // SAFETY: the function takes two numbers, is safe to call from any thread at any time, and
    // ignores an option that it does not know.
    unsafe { mi_option_set(MI_OPTION_PURGE_DELAY, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" {
        fn mi_option_get(option: c_int) -> c_long;
    }

    fn delay_ms() -> c_long {
        // SAFETY: as above, and it only reads.
        unsafe { mi_option_get(MI_OPTION_PURGE_DELAY) }
    }

    #[test]
    fn the_number_is_that_of_the_purge_delay() {
        // The default tells it from its neighbours, which are 0 and 1.
        assert_eq!(delay_ms(), 10);
        give_back_at_once();
        assert_eq!(delay_ms(), 0);
    }
}
