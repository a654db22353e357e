//! `Debug` for the messages that hold secrets, written by the build from the descriptor set's own
//! markers. Must not know any message by name: a new secret field is covered once it is marked.

use std::fmt;

/// Stands in for a secret field: tells whether there is something, never what.
struct Hidden {
    empty: bool,
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.empty { "<none>" } else { "<secret>" })
    }
}

include!(concat!(env!("OUT_DIR"), "/redacted.rs"));

#[cfg(test)]
mod tests;
