//! A mutex without poisoning.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex that ignores poisoning. Code that holds the lock must keep the value consistent after
/// every statement, so that the next holder can continue after a panic.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// Creates an unlocked mutex that contains the value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until no other thread holds the lock, and acquires it.
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
