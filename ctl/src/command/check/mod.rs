//! `belayctl check`: what can be seen of a driver's conformance without changing anything. Real
//! conformance is what csi-sanity tests; it needs a driver that may lose its volumes.

mod controller;
mod identity;
mod node;

use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::failure::Failure;
use crate::render::Answer;
use crate::report::{Report, Verdict};
use crate::target::Target;
use belay_proto::code;

/// Makes the calls.
///
/// # Errors
/// No driver answers on the socket.
pub(crate) async fn run(target: &Target) -> Result<Answer, Failure> {
    let mut check = Check {
        target,
        channel: target.connect().await?,
        report: Report::default(),
    };
    check.identity().await?;
    let absent = "not served on this socket";
    if !check.controller().await {
        check
            .report
            .add(Verdict::Skip, "Controller service", absent);
    }
    if !check.node().await {
        check.report.add(Verdict::Skip, "Node service", absent);
    }
    Ok(Answer::Report(check.report))
}

struct Check<'a> {
    target: &'a Target,
    channel: Channel,
    report: Report,
}

/// An id that no driver has made.
const UNKNOWN: &str = "belayctl-check-no-such-id";

impl Check<'_> {
    /// The result of a call, or its status.
    async fn call<T>(
        &self,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Status> {
        match self.target.wait_for(call).await {
            Ok(answer) => Ok(answer),
            Err(Failure::Status(status)) => Err(*status),
            Err(other) => Err(Status::deadline_exceeded(other.to_string())),
        }
    }

    /// A call that must fail with this code.
    fn expect<T>(&mut self, name: &str, result: &Result<T, Status>, expected: Code, why: &str) {
        let wanted = code::name(expected);
        let (verdict, found) = match result {
            Ok(_) => (Verdict::No, format!("succeeds; {wanted} is required {why}")),
            Err(status) if status.code() == expected => (Verdict::Ok, format!("{wanted} {why}")),
            Err(status) => {
                let found = code::describe(status);
                (
                    Verdict::No,
                    format!("{wanted} is required {why}, not {found}"),
                )
            }
        };
        self.report.add(verdict, name, found);
    }

    /// A rule about an answer.
    fn rule(&mut self, name: &str, holds: bool, found: impl Into<String>) {
        let verdict = if holds { Verdict::Ok } else { Verdict::No };
        self.report.add(verdict, name, found);
    }

    /// A call that must succeed; its answer.
    fn succeed<T>(&mut self, name: &str, result: Result<T, Status>) -> Option<T> {
        match result {
            Ok(answer) => Some(answer),
            Err(status) => {
                self.report.add(Verdict::No, name, code::describe(&status));
                None
            }
        }
    }

    /// Names without those that are not known, twice or unset.
    fn capabilities(&mut self, name: &str, all: &[Option<&'static str>]) -> Vec<&'static str> {
        let known: Vec<_> = all.iter().flatten().copied().collect();
        let mut unique = known.clone();
        unique.sort_unstable();
        unique.dedup();
        let holds = unique.len() == all.len() && !known.contains(&"UNKNOWN");
        let found = match all.len() {
            0 => "none".to_owned(),
            _ => known.join(", "),
        };
        let found = match holds {
            true => found,
            false => format!("each must be known, and listed once: {found}"),
        };
        self.rule(name, holds, found);
        unique
    }
}
