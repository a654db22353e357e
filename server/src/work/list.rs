//! The running jobs as lines of text, one job per line, for tools. Made only when it is asked for.

use super::gauges::for_all;
use super::view::JobView;
use std::fmt::Write as _;

/// Keeps the page small; at most 64 changes and 16 reads may hang per driver.
const JOBS_MAX: usize = 1000;

/// A job with its key.
pub(super) type Listed = (String, JobView);

/// All jobs of this process, the oldest first: age in seconds, state, call, key and current work,
/// separated by tabs. The state is `running`, `waiting` or `hung`; the work may be empty.
pub(crate) fn lines() -> String {
    let mut jobs = Vec::new();
    for_all(|some| jobs.extend(some.list()));
    shown(jobs)
}

fn shown(mut jobs: Vec<Listed>) -> String {
    jobs.sort_by_key(|(_, job)| std::cmp::Reverse(job.age));
    let mut lines = String::new();
    for (key, job) in jobs.iter().take(JOBS_MAX) {
        let state = match (job.is_hung, job.awaited) {
            (true, _) => "hung",
            (false, Some(_)) => "waiting",
            (false, None) => "running",
        };
        let awaited = job.awaited.map(str::to_owned);
        let work = awaited.or(job.doing.map(|doing| doing.to_string()));
        let work = work.unwrap_or_default();
        // A caller chose the key: it must not add lines.
        let key = key.replace(char::is_control, "\u{fffd}");
        let (age, call) = (job.age.as_secs_f64(), job.rpc.name());
        // A String takes everything.
        writeln!(lines, "{age:.1}\t{state}\t{call}\t{key}\t{work}").unwrap_or_default();
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Failure, Rpc};
    use crate::work::tests::{Plain, key};
    use crate::work::{Doing, Jobs};
    use std::future::pending;
    use std::time::Duration;
    use tokio::task::yield_now;

    fn job(seconds: u64, is_hung: bool, awaited: Option<&'static str>) -> JobView {
        JobView {
            rpc: Rpc::NodeStageVolume,
            age: Duration::from_secs(seconds),
            is_hung,
            doing: Some(Doing {
                step: "mount",
                amount: None,
            }),
            awaited,
        }
    }

    #[test]
    fn the_oldest_is_first_and_a_key_makes_no_lines() {
        let jobs = vec![
            ("a\tb\nc".to_owned(), job(1, false, None)),
            ("vol-2".to_owned(), job(200, true, None)),
            ("vol-3".to_owned(), job(3, false, Some("its disk"))),
        ];
        assert_eq!(
            shown(jobs),
            "200.0\thung\tNodeStageVolume\tvol-2\tmount\n\
             3.0\twaiting\tNodeStageVolume\tvol-3\tits disk\n\
             1.0\trunning\tNodeStageVolume\ta\u{fffd}b\u{fffd}c\tmount\n"
        );
    }

    #[tokio::test]
    async fn a_job_is_listed_while_it_runs() {
        let jobs = Jobs::<Plain, ()>::default();
        let key = key("listed-while-it-runs");
        let work = |_| pending::<Result<(), Failure>>();
        let running = jobs.clone();
        tokio::spawn(async move { running.run(key, Rpc::NodeStageVolume, 0, work).await });
        yield_now().await;
        // Other tests in this process may have more.
        assert!(lines().contains("\trunning\tNodeStageVolume\tlisted-while-it-runs\t\n"));
    }
}
