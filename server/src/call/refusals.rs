//! The last failed calls, for the status page. The number of listed calls and the length of their
//! texts are limited, so that requests cannot make the list grow. This module does not depend on
//! individual calls.

use super::start_of;
use crate::lock::Lock;
use belay_proto::code::name as code_name;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Code;

/// Maximum number of kept refusals (failed calls). With texts of the maximum length, all refusals
/// take at most 16 KiB.
const KEPT_MAX: usize = 16;

/// Maximum length of a kept message, in bytes. The log contains the whole message.
const MESSAGE_BYTES_MAX: usize = 512;

/// The last refusals (failed calls) of a server. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Refusals(Arc<Lock<VecDeque<Refusal>>>);

/// Calls with the same driver, name and subject that failed with the same code. The message is the
/// message of the last call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// The driver that refused the call.
    pub(crate) driver: Arc<str>,
    /// The name of the call, or the path of an unknown call.
    pub(crate) call: Box<str>,
    /// The identifier or name in the request, as the caller wrote it; empty if the request has
    /// none.
    pub(crate) subject: Box<str>,
    /// The gRPC code.
    pub(crate) code: Code,
    /// The message that the caller received. It contains no secrets.
    pub(crate) message: Box<str>,
    /// Number of consecutive failures of the call.
    pub(crate) times: u32,
    last: Instant,
}

impl Refusal {
    /// Creates the refusal of a call that has just failed.
    pub(crate) fn new(
        driver: &Arc<str>,
        call: &str,
        subject: &str,
        code: Code,
        message: &str,
    ) -> Self {
        Self {
            driver: Arc::clone(driver),
            call: call.into(),
            subject: subject.into(),
            code,
            message: start_of(message, MESSAGE_BYTES_MAX).into(),
            times: 1,
            last: Instant::now(),
        }
    }

    /// Returns the time since the call failed.
    pub(crate) fn age(&self) -> Duration {
        self.last.elapsed()
    }

    /// Returns the name of the code in the specification.
    pub(crate) fn code_name(&self) -> &'static str {
        code_name(self.code)
    }

    fn repeats(&self, other: &Self) -> bool {
        let key = |it: &Self| (Arc::clone(&it.driver), it.code);
        key(self) == key(other) && self.call == other.call && self.subject == other.subject
    }
}

impl Refusals {
    /// Adds a refusal. A repeated refusal, e.g. of a call that the kubelet retries every few
    /// minutes, replaces the earlier refusal of the same call.
    pub(crate) fn add(&self, mut new: Refusal) {
        let mut kept = self.0.lock();
        if let Some(at) = kept.iter().position(|known| known.repeats(&new))
            && let Some(known) = kept.remove(at)
        {
            new.times = known.times.saturating_add(1);
        }
        kept.truncate(KEPT_MAX - 1);
        kept.push_front(new);
    }

    /// Returns all kept refusals (failed calls), the latest first.
    pub(crate) fn list(&self) -> Vec<Refusal> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(subject: &str, message: &str) -> Refusal {
        let driver = "test.csi.belay.dev".into();
        Refusal::new(&driver, "NodeStageVolume", subject, Code::Internal, message)
    }

    fn subjects(refusals: &Refusals) -> Vec<String> {
        let list = refusals.list();
        list.iter().map(|it| it.subject.to_string()).collect()
    }

    #[test]
    fn only_the_last_sixteen_are_kept_and_the_newest_is_first() {
        let refusals = Refusals::default();
        for n in 0..40 {
            refusals.add(refusal(&format!("vol-{n}"), "EIO"));
        }
        let expected: Vec<_> = (24..40).rev().map(|n| format!("vol-{n}")).collect();
        assert_eq!(subjects(&refusals), expected);
    }

    #[test]
    fn a_repeated_refusal_is_counted_and_has_the_last_message() {
        let refusals = Refusals::default();
        for (subject, message) in [("a", "1 s"), ("b", ""), ("a", "2 s"), ("a", "3 s")] {
            refusals.add(refusal(subject, message));
        }
        assert_eq!(subjects(&refusals), ["a", "b"]);
        let first = &refusals.list()[0];
        assert_eq!((&*first.message, first.times), ("3 s", 3));
        let other = Refusal {
            code: Code::Aborted,
            ..refusal("a", "")
        };
        refusals.add(other);
        assert_eq!(subjects(&refusals), ["a", "a", "b"]);
    }

    #[test]
    fn a_long_message_is_cut() {
        let refusals = Refusals::default();
        refusals.add(refusal("a", &"\u{e9}".repeat(1000)));
        assert_eq!(refusals.list()[0].message.len(), MESSAGE_BYTES_MAX);
    }
}
