//! HTTP/1.1 and TLS for the twin, and its rate limit.

use crate::twin::{Request, Twin};
use belay_bed::scrape;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio_rustls::TlsAcceptor;

/// The duration of a change in tests that depend on it: several requests, and kills, fall in
/// between.
pub(crate) const CHANGE: Duration = Duration::from_millis(300);

/// A twin that serves.
pub(crate) struct Cloud {
    twin: Arc<Mutex<Twin>>,
    limit: Arc<Limit>,
    trap: Arc<Trap>,
}

/// A trap for a request that gets no response, after a number of others that do. The request may
/// take effect or not.
#[derive(Default)]
struct Trap {
    state: Mutex<Option<(usize, Fate)>>,
    sprung: Notify,
}

/// The fate of a request that gets no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Done,
}

impl Trap {
    /// Returns the fate of the next request, if the trap is for it.
    fn next(&self) -> Option<Fate> {
        let mut state = self.state.lock().unwrap();
        match &mut *state {
            Some((0, _)) => state.take().map(|(_, fate)| fate),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        }
    }
}

/// Maximum number of requests served per second; 0: no limit. Others get 429.
struct Limit {
    state: Mutex<(usize, VecDeque<Instant>, usize)>,
    /// Whether requests must wait.
    is_held: watch::Sender<bool>,
}

impl Limit {
    /// Whether the request is refused.
    fn refuses(&self) -> bool {
        let mut state = self.state.lock().unwrap();
        let (most, served, refused) = &mut *state;
        let now = Instant::now();
        while served
            .front()
            .is_some_and(|first| now - *first >= Duration::from_secs(1))
        {
            served.pop_front();
        }
        if *most > 0 && served.len() >= *most {
            *refused += 1;
            return true;
        }
        served.push_back(now);
        false
    }
}

impl Cloud {
    /// Serves a twin whose changes take this time, over HTTP, or over HTTPS with an acceptor.
    pub(crate) fn start(delay: Duration, tls: Option<TlsAcceptor>) -> Self {
        let listener = scrape::listen().unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let twin = Twin::new(delay, format!("{scheme}://{address}"));
        let cloud = Self {
            twin: Arc::new(Mutex::new(twin)),
            limit: Arc::new(Limit {
                state: Mutex::default(),
                is_held: watch::Sender::new(false),
            }),
            trap: Arc::default(),
        };
        let (twin, limit) = (Arc::clone(&cloud.twin), Arc::clone(&cloud.limit));
        let trap = Arc::clone(&cloud.trap);
        let runtime = Handle::current();
        // The thread accepts connections until the test's process exits.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (twin, limit, tls) = (Arc::clone(&twin), Arc::clone(&limit), tls.clone());
                runtime.spawn(welcome(stream, tls, twin, (limit, Arc::clone(&trap))));
            }
        });
        cloud
    }

    pub(crate) fn twin(&self) -> MutexGuard<'_, Twin> {
        self.twin.lock().unwrap()
    }

    /// Sets whether requests must wait.
    pub(crate) fn hold(&self, is_held: bool) {
        self.limit.is_held.send_replace(is_held);
    }

    /// Sets the maximum number of requests served per second.
    pub(crate) fn limit(&self, per_second: usize) {
        self.limit.state.lock().unwrap().0 = per_second;
    }

    /// Sets a trap: this number of requests get responses, and the next one does not.
    pub(crate) fn set_trap(&self, answered: usize, fate: Fate) {
        *self.trap.state.lock().unwrap() = Some((answered, fate));
    }

    /// Waits until the trapped request has arrived.
    pub(crate) async fn trapped(&self) {
        self.trap.sprung.notified().await;
    }

    /// Returns the number of requests that were refused for their rate.
    pub(crate) fn refused(&self) -> usize {
        self.limit.state.lock().unwrap().2
    }

    pub(crate) fn url(&self) -> String {
        self.twin().url.clone()
    }
}

async fn welcome(
    stream: std::net::TcpStream,
    tls: Option<TlsAcceptor>,
    twin: Arc<Mutex<Twin>>,
    rules: (Arc<Limit>, Arc<Trap>),
) {
    stream.set_nonblocking(true).unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    let Some(tls) = tls else {
        return serve(stream, twin, rules).await;
    };
    // A client that does not trust the certificate disconnects.
    if let Ok(stream) = tls.accept(stream).await {
        serve(stream, twin, rules).await;
    }
}

/// Responds to the requests of a connection, until the client closes it or is killed.
async fn serve<S>(mut stream: S, twin: Arc<Mutex<Twin>>, rules: (Arc<Limit>, Arc<Trap>))
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (limit, trap) = rules;
    let mut bytes = Vec::new();
    while stream.read_buf(&mut bytes).await.is_ok_and(|read| read > 0) {
        // Data that is not HTTP, such as a client's part of TLS, gets no response.
        if !bytes.first().is_some_and(u8::is_ascii_uppercase) {
            return;
        }
        let Some((head, body)) = whole(&bytes) else {
            continue;
        };
        let mut held = limit.is_held.subscribe();
        held.wait_for(|is_held| !is_held).await.unwrap();
        let fate = trap.next();
        if let Some(fate) = fate {
            if fate == Fate::Done {
                drop(answer(&twin, head, body));
            }
            trap.sprung.notify_one();
            // The caller is being killed.
            return std::future::pending().await;
        }
        let answer = match limit.refuses() {
            true => "HTTP/1.1 429 X\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n".to_owned(),
            false => answer(&twin, head, body),
        };
        bytes.clear();
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Returns the head and the body of a request, if it has arrived completely.
fn whole(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).unwrap();
    let body = &bytes[end + 4..];
    let length = header(head, "content-length").map_or(0, |length| length.parse().unwrap());
    (body.len() >= length).then_some((head, body))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(": "));
    let found = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value)
}

fn answer(twin: &Mutex<Twin>, head: &str, body: &[u8]) -> String {
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap(), words.next().unwrap());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let request = Request {
        method,
        path,
        query,
        token: header(head, "x-auth-token"),
        body: serde_json::from_slice(body).unwrap_or(Value::Null),
    };
    let (status, token, body) = twin.lock().unwrap().answer(&request);
    let token = token.map(|token| format!("x-subject-token: {token}\r\n"));
    let body = match body {
        Value::Null => String::new(),
        body => body.to_string(),
    };
    let (token, length) = (token.unwrap_or_default(), body.len());
    format!("HTTP/1.1 {status} X\r\n{token}content-length: {length}\r\n\r\n{body}")
}
