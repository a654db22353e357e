//! A mutex without poisoning. Does not know the guarded value.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex whose holders leave the value consistent between any two statements, so that a panic
/// while it is held spoils nothing, and the next holder continues.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// Creates an unlocked value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until no other thread holds the value, and returns it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_of_one_holder_leaves_the_value_to_the_next() {
        let value = Lock::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            *value.lock() = 2;
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert_eq!(*value.lock(), 2);
    }
}
