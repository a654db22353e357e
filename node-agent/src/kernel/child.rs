//! A tool that runs on a device: what it gets, and how it ends.

use std::time::Duration;

/// A program to run on a device. It finds the device as `/proc/self/fd/0`.
pub(crate) struct Child<'a, Fd> {
    /// The tool's file name; searched in the system directories, never in `PATH`.
    pub(crate) program: &'static str,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// The device, passed as standard input so that no name can be swapped under the tool.
    pub(crate) device: &'a Fd,
    /// It is killed after this long.
    pub(crate) deadline: Duration,
    /// It is killed soon after this is true.
    pub(crate) is_given_up: &'a dyn Fn() -> bool,
    /// It checks a filesystem: its messages are on standard output too.
    pub(crate) is_fsck: bool,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChildEnd {
    /// Its exit status; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    /// It exceeded its deadline and was killed.
    pub(crate) timed_out: bool,
    /// The end of its messages, on one line.
    pub(crate) stderr: String,
}
