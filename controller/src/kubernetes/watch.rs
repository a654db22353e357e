//! A list of objects that is kept up to date: first the list itself, and then each change. A watch
//! lists the objects again after each failure, and if the server no longer has all changes since
//! the last received change.
//!
//! After a failure, the server may have been restored from a backup, and its versions may be lower
//! than the version of the watch. The server would accept that version and send no changes, so only
//! a new list shows the objects that it has.

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
/// The minimum duration of a watch that ends because of its time. An earlier end is a failure: the
/// server is stopping.
const WATCH_MIN: Duration = Duration::from_secs(57);
/// The pause after the first failure, and its maximum. Each pause is twice as long as the previous
/// pause. After a watch that has lasted for the maximum pause, the pauses begin again.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(15)];

/// A change of the selected objects.
pub enum Event<R: Resource> {
    /// The complete list of the selected objects, at the start and whenever changes may have been
    /// missed.
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
    /// Whether the version is from a list after which the server has not reported a version.
    is_of_list: bool,
    /// After a failure, the time before which no call is made, and the duration of that pause;
    /// `None` after a report of the server since the failure. A list is no such report.
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
            is_of_list: false,
            retry: None,
            of: PhantomData,
        }
    }

    /// Waits for the next event. The caller may cancel this call without missing an event.
    ///
    /// # Errors
    /// Returns the reason why no events can be received at present. After a pause, the next call
    /// lists the objects again: the list includes all changes, but not the states between them.
    pub async fn next(&mut self) -> Result<Event<R>, Failure> {
        if let Some((at, _)) = self.retry {
            sleep_until(at).await;
        }
        let event = self.attempt().await;
        if event.is_err() {
            let [first, max] = PAUSES;
            let has_lasted = self.lines.is_some() && self.opened.elapsed() >= max;
            let last = self.retry.filter(|_| !has_lasted);
            let pause = last.map_or(first, |(_, pause)| max.min(pause * 2));
            (self.version, self.lines) = (None, None);
            self.retry = Some((Instant::now() + pause, pause));
        }
        event
    }

    async fn attempt(&mut self) -> Result<Event<R>, Failure> {
        loop {
            let Some(version) = &self.version else {
                let list = self.client.list(&self.selector).await?;
                (self.version, self.is_of_list) = (Some(list.version), true);
                return Ok(Event::Listed(list.items));
            };
            let Some(lines) = &mut self.lines else {
                match self.client.watch::<R>(&self.selector, version).await? {
                    Some(lines) => (self.lines, self.opened) = (Some(lines), Instant::now()),
                    None => self.expire()?,
                }
                continue;
            };
            let Some(line) = lines.next(self.opened + WATCH + GRACE).await? else {
                if self.opened.elapsed() < WATCH_MIN {
                    return Err(failed::<R>("the server has ended it early"));
                }
                self.lines = None;
                self.proceed();
                continue;
            };
            let understood = understood(&line);
            let (next, version) = understood.map_err(|why| failed::<R>(&lines.quoted(&why)))?;
            if version.is_some() {
                self.version = version;
            }
            match next {
                Next::Expired => self.expire()?,
                Next::Progress => self.proceed(),
                Next::Event(event) => {
                    self.proceed();
                    return Ok(event);
                }
            }
        }
    }

    /// Records that the server has reported an event or a version, or that a watch has ended
    /// because of its time.
    fn proceed(&mut self) {
        (self.is_of_list, self.retry) = (false, None);
    }

    /// Discards a version that the server no longer has.
    ///
    /// # Errors
    /// Returns a failure, and so causes a pause, if the version is from a list.
    fn expire(&mut self) -> Result<(), Failure> {
        (self.version, self.lines) = (None, None);
        match self.is_of_list {
            true => Err(failed::<R>(
                "the server no longer has the version of its last list",
            )),
            false => Ok(()),
        }
    }
}

fn failed<R: Resource>(why: &str) -> Failure {
    Failure::new(Kind::Unreachable, format!("watch of {}: {why}", R::PLURAL))
}

/// Returns the meaning of a line, and the version that the line contains. Returns the reason if the
/// line reports an error or is not understood.
fn understood<R: Resource>(line: &[u8]) -> Result<(Next<R>, Option<String>), String> {
    let why = |error: serde_json::Error| error.to_string();
    let Line { kind, object } = serde_json::from_slice(line).map_err(why)?;
    if kind == "ERROR" {
        let code = object.get("code").and_then(Value::as_u64);
        if code == Some(StatusCode::GONE.as_u16().into()) {
            return Ok((Next::Expired, None));
        }
        let message = object.get("message").and_then(Value::as_str);
        return Err(message.unwrap_or("an error without a message").to_owned());
    }
    let version = object.pointer("/metadata/resourceVersion");
    let version = version.and_then(Value::as_str).map(str::to_owned);
    let next = match kind.as_str() {
        "BOOKMARK" => Next::Progress,
        kind => {
            let object = Object::deserialize(object).map_err(why)?;
            Next::Event(match kind {
                "DELETED" => Event::Deleted(object),
                _ => Event::Changed(object),
            })
        }
    };
    Ok((next, version))
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

#[cfg(test)]
mod tests {
    use super::super::LocalVolume;
    use super::*;
    use crate::http::tests::{Act, OPEN, Server};
    use tokio::time::{pause, timeout};

    const LIST: &str = r#"{"metadata": {"resourceVersion": "7"}, "items": []}"#;
    const EXPIRED: &str = r#"{"type": "ERROR", "object": {"code": 410}}"#;
    const CHANGE: &str = r#"{"type": "ADDED", "object": {"metadata": {"name": "a",
        "resourceVersion": "8"}, "spec": {}}}"#;

    fn list() -> Act {
        Act::answer("200 OK", LIST)
    }

    /// Responds to a watch with these lines and ends it.
    fn ended(lines: &[&str]) -> Act {
        let lines: Vec<_> = lines.iter().map(|line| line.replace('\n', " ")).collect();
        Act::answer("200 OK", &(lines.join("\n") + "\n"))
    }

    /// Returns a watch of a server with these acts.
    async fn watch(acts: Vec<Act>) -> (Watch<LocalVolume>, Server, tempfile::TempDir) {
        let server = Server::start(acts).await;
        let (client, dir) = Client::example(&server);
        let watch = Watch::new(Arc::new(client), Selector::node("node1"));
        (watch, server, dir)
    }

    /// Returns the name of the next event, or the failure.
    async fn next(watch: &mut Watch<LocalVolume>) -> String {
        match watch.next().await {
            Ok(Event::Listed(_)) => "listed".to_owned(),
            Ok(Event::Changed(_)) => "changed".to_owned(),
            Ok(Event::Deleted(_)) => "deleted".to_owned(),
            Err(failure) => failure.message,
        }
    }

    #[tokio::test]
    async fn a_silent_connection_is_noticed_although_each_wait_is_cancelled() {
        let (mut watch, _server, _dir) = watch(vec![list(), Act::Stall(OPEN)]).await;
        assert_eq!(next(&mut watch).await, "listed");
        while watch.lines.is_none() {
            let wait = timeout(Duration::from_millis(200), watch.next());
            assert!(wait.await.is_err());
        }
        pause();
        let failure = loop {
            if let Ok(event) = timeout(Duration::from_secs(7), watch.next()).await {
                break event.err().unwrap();
            }
            assert!(
                watch.opened.elapsed() < WATCH + GRACE,
                "the silence is not noticed"
            );
        };
        assert_eq!(failure.kind, Kind::Timeout, "{failure}");
    }

    #[tokio::test]
    async fn each_failure_lists_the_objects_again_after_a_pause() {
        for (act, why) in [
            (Act::Cut(""), "connection closed"),
            (
                Act::Cut(Box::leak(format!("{OPEN}5\r\n{{").into())),
                "localvolumes at ",
            ),
            (Act::answer("200 OK", ""), "ended it early"),
            (ended(&["{}"]), "missing field"),
            (
                ended(&[r#"{"type": "ADDED", "object": {}}"#]),
                "missing field",
            ),
            (Act::answer("403 Forbidden", "no"), "403"),
        ] {
            let (mut watch, _server, _dir) = watch(vec![list(), act, list()]).await;
            assert_eq!(next(&mut watch).await, "listed");
            let failure = next(&mut watch).await;
            assert!(failure.contains(why), "{why}: {failure}");
            let (_, first) = watch.retry.unwrap();
            assert_eq!(next(&mut watch).await, "listed", "{why}");
            assert_eq!(watch.retry.unwrap().1, first);
        }
    }

    #[tokio::test]
    async fn an_expiry_lists_again_and_one_of_the_list_itself_pauses() {
        let refused = Act::answer("410 Gone", r#"{"kind": "Status"}"#);
        for expiry in [ended(&[EXPIRED]), refused] {
            let acts = vec![list(), expiry.clone(), list(), expiry.clone(), list()];
            let (mut watch, _server, _dir) = watch(acts).await;
            for pause in [PAUSES[0], PAUSES[0] * 2] {
                assert_eq!(next(&mut watch).await, "listed");
                let failure = next(&mut watch).await;
                assert!(failure.contains("last list"), "{failure}");
                assert_eq!(watch.retry.unwrap().1, pause);
            }
        }
        let acts = vec![list(), ended(&[CHANGE, EXPIRED]), list()];
        let (mut watch, _server, _dir) = watch(acts).await;
        for expected in ["listed", "changed", "listed"] {
            assert_eq!(next(&mut watch).await, expected);
            assert_eq!(watch.retry, None);
        }
    }

    #[tokio::test]
    async fn a_reported_error_is_quoted_in_part_and_without_the_token() {
        let long = "canary-of-token ".repeat(100);
        let line =
            format!(r#"{{"type": "ERROR", "object": {{"code": 500, "message": "{long}"}}}}"#);
        let (mut watch, _server, _dir) = watch(vec![list(), ended(&[&line])]).await;
        assert_eq!(next(&mut watch).await, "listed");
        let failure = next(&mut watch).await;
        assert!(failure.contains("localvolumes: *** ***"), "{failure}");
        assert!(
            !failure.contains("canary") && failure.len() < 500,
            "{failure}"
        );
    }
}
