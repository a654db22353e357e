//! The black-box tests live beside this file; it holds what they share.
