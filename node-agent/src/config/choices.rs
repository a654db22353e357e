//! The flags that choose one of a few words.

/// The sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sandbox {
    /// Only those that they need
    On,
    /// All system calls
    Off,
}

/// What becomes of a blank disk of unknown history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum UnknownContent {
    /// Read all of it, and format it if every byte is zero
    Prove,
    /// Do not format it
    Refuse,
}

/// What becomes of a new disk that has other bytes than zeros, and no signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Uncleared {
    /// Format it if it has no known signature
    Accept,
    /// Do not format it
    Refuse,
}
