//! The benches live beside this file; it is empty on purpose.
