//! A list of objects that is kept up to date: first the list itself, and then each change. A watch
//! survives lost connections, and lists the objects again if the server no longer has all changes
//! since the last received change.

use super::answer::Refusal;
use super::object::{Object, Resource};
use super::verbs::Selector;
use super::{Client, Lines, Opened, Request};
use belay_server::call::{Failure, Kind};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The time after which the server ends a watch, so that a lost connection is noticed. Two seconds
/// before, the server reports the current version, at which the next watch begins: without it, the
/// watch of a quiet node would expire while other nodes' objects change.
const WATCH: Duration = Duration::from_secs(60);
/// The additional time that the server may take to end a watch.
const GRACE: Duration = Duration::from_secs(10);
/// The minimum duration of a watch after which the next watch is opened without a pause.
const WATCH_MIN: Duration = Duration::from_secs(1);
/// The pause after the first failure, and its maximum. Each pause is twice as long as the previous
/// pause.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(15)];

/// A change of the selected objects.
pub enum Event<R: Resource> {
    /// The complete list of the selected objects, at the start and whenever changes were missed.
    Listed(Vec<Object<R>>),
    /// An object was created or changed.
    Changed(Object<R>),
    /// An object was deleted, or is no longer selected. Contains its last state.
    Deleted(Object<R>),
}

/// A list of objects that is kept up to date.
pub struct Watch<R: Resource> {
    client: Arc<Client>,
    selector: Selector,
    /// The version after which the next changes are requested; `None` if the objects must be listed
    /// first.
    version: Option<String>,
    lines: Option<Lines>,
    /// The time at which `lines` was opened.
    opened: Instant,
    /// After a failed call, the time before which no call is made, and the duration of that pause;
    /// `None` if the last call has succeeded.
    retry: Option<(Instant, Duration)>,
    of: PhantomData<fn() -> R>,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// The meaning of a line in the response to a watch.
enum Next<R: Resource> {
    Event(Event<R>),
    /// No object has changed up to the version of the watch (a bookmark).
    Progress,
    /// The server no longer has the changes since the version of the watch.
    Expired,
}

impl<R: Resource> Watch<R> {
    /// Creates a watch, which begins with the first call of [`Self::next`].
    #[must_use]
    pub fn new(client: Arc<Client>, selector: Selector) -> Self {
        Self {
            client,
            selector,
            version: None,
            lines: None,
            opened: Instant::now(),
            retry: None,
            of: PhantomData,
        }
    }

    /// Waits for the next event. The caller may cancel this call without missing an event.
    ///
    /// # Errors
    /// Returns the reason why no events can be received at present. The next call continues after a
    /// pause, and misses no change.
    pub async fn next(&mut self) -> Result<Event<R>, Failure> {
        if let Some((at, _)) = self.retry {
            sleep_until(at).await;
        }
        let event = self.attempt().await;
        self.retry = match &event {
            Ok(_) => None,
            Err(_) => {
                self.lines = None;
                let [first, max] = PAUSES;
                let pause = self.retry.map_or(first, |(_, pause)| max.min(pause * 2));
                Some((Instant::now() + pause, pause))
            }
        };
        event
    }

    async fn attempt(&mut self) -> Result<Event<R>, Failure> {
        loop {
            let Some(version) = &self.version else {
                let list = self.client.list(&self.selector).await?;
                self.version = Some(list.version);
                return Ok(Event::Listed(list.items));
            };
            let Some(lines) = &mut self.lines else {
                match self.client.watch::<R>(&self.selector, version).await? {
                    Some(lines) => (self.lines, self.opened) = (Some(lines), Instant::now()),
                    None => self.version = None,
                }
                continue;
            };
            match lines.next(WATCH + GRACE).await? {
                None if self.opened.elapsed() < WATCH_MIN => {
                    let message = format!("watch of {}: closed at once", R::PLURAL);
                    return Err(Failure::new(Kind::Unreachable, message));
                }
                None => self.lines = None,
                Some(line) => match self.understand(&line)? {
                    Next::Event(event) => return Ok(event),
                    Next::Progress => {}
                    Next::Expired => (self.version, self.lines) = (None, None),
                },
            }
        }
    }

    /// Returns the meaning of a line, and records the version that the line contains.
    fn understand(&mut self, line: &[u8]) -> Result<Next<R>, Failure> {
        let not_understood = |error: serde_json::Error| {
            let message = format!("watch of {}: {error}", R::PLURAL);
            Failure::new(Kind::Unreachable, message)
        };
        let Line { kind, object } = serde_json::from_slice(line).map_err(not_understood)?;
        if kind == "ERROR" {
            let code = object.get("code").and_then(Value::as_u64);
            if code == Some(StatusCode::GONE.as_u16().into()) {
                return Ok(Next::Expired);
            }
            let why = object.get("message").and_then(Value::as_str);
            let message = format!("watch of {}: {}", R::PLURAL, why.unwrap_or_default());
            return Err(Failure::new(Kind::Unreachable, message));
        }
        let version = object.pointer("/metadata/resourceVersion");
        let version = version.and_then(Value::as_str).map(str::to_owned);
        let next = match kind.as_str() {
            "BOOKMARK" => Next::Progress,
            kind => {
                let object = Object::deserialize(object).map_err(not_understood)?;
                Next::Event(match kind {
                    "DELETED" => Event::Deleted(object),
                    _ => Event::Changed(object),
                })
            }
        };
        if version.is_some() {
            self.version = version;
        }
        Ok(next)
    }
}

impl Client {
    /// Opens a watch that begins after this version; `None` if the server no longer has it.
    async fn watch<R: Resource>(
        &self,
        selector: &Selector,
        version: &str,
    ) -> Result<Option<Lines>, Failure> {
        let path = format!(
            "{}&watch=1&allowWatchBookmarks=true&timeoutSeconds={}&resourceVersion={version}",
            selector.path::<R>(),
            WATCH.as_secs()
        );
        let opened = self.open(Request {
            verb: "watch",
            method: Method::GET,
            path: &path,
            body: None,
        });
        match opened.await? {
            Opened::Lines(lines) => Ok(Some(lines)),
            Opened::Refused(answer) => match Refusal::of(&answer, R::PLURAL, None) {
                Refusal::Expired => Ok(None),
                other => Err(other.into_failure(&answer).nothing_happened()),
            },
        }
    }
}
