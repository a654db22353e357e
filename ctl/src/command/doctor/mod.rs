//! `belayctl doctor`: whether this node has what Belay needs, and what to do where it has not.
//! Changes nothing.

mod host;
mod programs;

use crate::command::ls::Search;
use crate::failure::Failure;
use crate::machine::mounts;
use crate::render::Answer;
use crate::report::Report;

/// Looks.
///
/// # Errors
/// /proc is not readable.
pub(crate) async fn run(search: &Search) -> Result<Answer, Failure> {
    let mut report = Report::default();
    host::kernel(&mut report);
    host::mount_calls(&mut report);
    host::loop_devices(&mut report);
    host::filesystems(&mut report);
    host::tools(&mut report);
    host::propagation(&mut report, &mounts::all()?, &search.kubelet_dir);
    host::udev(&mut report);
    host::space(&mut report, &search.kubelet_dir);
    programs::check(&mut report, &search.look().await);
    Ok(Answer::Report(report))
}
