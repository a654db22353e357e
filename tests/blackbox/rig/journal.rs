//! The calls of many callers and their responses, in order, so that a failure can be analysed:
//! shows the calls about a volume, and the calls without a response.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use belay_proto::code::name;
use tonic::{Code, Status};

use super::calls::{Answer, has_left};

/// Maximum number of recorded calls; the most recent ones are kept, since they show what went
/// wrong.
const LINES_MAX: usize = 100_000;
/// Maximum number of calls that are shown per volume.
const SHOWN_MAX: usize = 60;

/// The record of a test's calls.
pub(crate) struct Journal {
    start: Instant,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    lines: VecDeque<String>,
    outstanding: BTreeMap<u64, Outstanding>,
    next: u64,
    answers: BTreeMap<&'static str, BTreeMap<String, u64>>,
}

struct Outstanding {
    since: Instant,
    what: String,
}

/// A call, before it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked<'a> {
    /// The caller.
    pub(crate) who: &'a str,
    /// The name of the RPC.
    pub(crate) rpc: &'static str,
    /// The IDs, names and paths that the call concerns.
    pub(crate) about: &'a str,
}

impl Journal {
    /// Creates an empty journal.
    pub(crate) fn new() -> Self {
        Journal {
            start: Instant::now(),
            inner: Mutex::default(),
        }
    }

    /// Makes the call, and records it.
    pub(crate) fn call<T>(&self, asked: Asked<'_>, act: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let what = format!("{}: {} {}", asked.who, asked.rpc, asked.about);
        let begun = self.now();
        let since = Instant::now();
        let key = {
            let mut inner = self.inner();
            inner.next += 1;
            let key = inner.next;
            let what = what.clone();
            inner.outstanding.insert(key, Outstanding { since, what });
            key
        };
        let answer = act();
        let reported = reported(&answer);
        let code = reported.split(": ").next().unwrap_or_default().to_owned();
        let took = since.elapsed();
        let mut inner = self.inner();
        inner.outstanding.remove(&key);
        let counts = inner.answers.entry(asked.rpc).or_default();
        *counts.entry(code).or_default() += 1;
        inner.add(format!("{begun} +{took:.1?} {what} -> {reported}"));
        drop(inner);
        answer
    }

    /// Records another event.
    pub(crate) fn note(&self, what: &str) {
        let line = format!("{} {what}", self.now());
        self.inner().add(line);
    }

    /// Returns the records that contain any of these words, the latest last.
    pub(crate) fn about(&self, words: &[&str]) -> String {
        let inner = self.inner();
        let matches = |line: &&String| words.iter().any(|word| line.contains(word));
        let mut lines: Vec<_> = inner.lines.iter().rev().filter(matches).collect();
        lines.truncate(SHOWN_MAX);
        lines.reverse();
        lines
            .iter()
            .fold(String::new(), |text, line| text + line + "\n")
    }

    /// Returns the calls without a response yet, the oldest first.
    pub(crate) fn outstanding(&self) -> String {
        let inner = self.inner();
        let mut text = String::new();
        for call in inner.outstanding.values() {
            let age = call.since.elapsed();
            writeln!(text, "for {age:.1?}: {}", call.what).expect("a string");
        }
        text
    }

    /// Returns how often a call ended with this code.
    pub(crate) fn count(&self, rpc: &str, code: &str) -> u64 {
        let inner = self.inner();
        let count = inner.answers.get(rpc).and_then(|codes| codes.get(code));
        count.copied().unwrap_or_default()
    }

    /// Returns all calls and their codes, as a table.
    pub(crate) fn table(&self) -> String {
        let inner = self.inner();
        let mut text = String::new();
        for (rpc, codes) in &inner.answers {
            writeln!(text, "{rpc:26} {codes:?}").expect("a string");
        }
        text
    }

    fn now(&self) -> String {
        let since: Duration = self.start.elapsed();
        format!("{:9.4}", since.as_secs_f64())
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A caller that failed has left the journal consistent.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn add(&mut self, line: String) {
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }
}

/// Formats a response as it is shown and counted.
fn reported<T>(answer: &Answer<T>) -> String {
    match answer {
        Ok(_) => name(Code::Ok).to_owned(),
        Err(status) if has_left(status) => "left".to_owned(),
        Err(status) => shown(status),
    }
}

/// Returns code and message of a refusal.
pub(crate) fn shown(status: &Status) -> String {
    format!("{}: {}", name(status.code()), status.message())
}
