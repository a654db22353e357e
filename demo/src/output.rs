//! The form of the demo's output.

use clap::ValueEnum;

/// How the results are printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Output {
    /// Lines and tables for people
    Table,
    /// One JSON document, times in microseconds
    Json,
}
