//! The rate limits of a token: a maximum number of calls per minute, and per sliding hour.

use crate::http::Response;
use serde_json::json;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A limit: at most `most` calls are allowed within `span`.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) most: usize,
    pub(super) span: Duration,
    served: VecDeque<Instant>,
}

impl Window {
    pub(super) fn new(most: usize, span: Duration) -> Self {
        Self {
            most,
            span,
            served: VecDeque::new(),
        }
    }

    fn left(&mut self, now: Instant) -> usize {
        while let Some(first) = self.served.front()
            && now.duration_since(*first) >= self.span
        {
            self.served.pop_front();
        }
        self.most.saturating_sub(self.served.len())
    }

    /// Returns the time until the oldest call no longer counts towards the limit.
    fn reset(&self, now: Instant) -> Duration {
        let oldest = self.served.front();
        oldest.map_or(Duration::ZERO, |first| {
            (*first + self.span).saturating_duration_since(now)
        })
    }
}

/// The limits per minute and per hour.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) minute: Window,
    pub(super) hour: Window,
}

impl Limits {
    pub(super) fn new() -> Self {
        Self {
            minute: Window::new(250, Duration::from_secs(60)),
            hour: Window::new(5000, Duration::from_secs(3600)),
        }
    }

    /// Counts a call. Returns the refusal if the call exceeds a limit; `None` otherwise.
    pub(super) fn take(&mut self) -> Option<Response> {
        let now = Instant::now();
        let (minute, hour) = (self.minute.left(now), self.hour.left(now));
        if minute > 0 && hour > 0 {
            self.minute.served.push_back(now);
            self.hour.served.push_back(now);
            return None;
        }
        let mut response = Response::json(
            429,
            &json!({"id": "too_many_requests", "message": "API Rate limit exceeded."}),
        );
        // Omit retry-after for the hourly limit, for which clients use the reset time in the other
        // headers.
        if hour > 0 {
            let seconds = self.minute.reset(now).as_secs_f32().ceil();
            response.headers.push(("retry-after", format!("{seconds}")));
        }
        Some(response)
    }

    /// Returns the headers about the hourly limit, which every response has.
    pub(super) fn headers(&mut self) -> [(&'static str, String); 3] {
        let now = Instant::now();
        let left = self.hour.left(now);
        let at = SystemTime::now() + self.hour.reset(now);
        let at = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        [
            ("ratelimit-limit", self.hour.most.to_string()),
            ("ratelimit-remaining", left.to_string()),
            ("ratelimit-reset", (at.as_secs() + 1).to_string()),
        ]
    }
}
