//! A small HTTP client for the APIs of clouds: deadlines, repetition where it is safe,
//! `Retry-After`, a pace that 429 lowers, proxies, TLS, metrics. Knows no cloud. No secret comes
//! into an error, a log or a metric.

mod answer;
mod connect;
mod pace;
mod proxies;
#[cfg(test)]
mod tests;
mod trust;
mod tunnel;
mod unproxied;
mod words;

pub use answer::Answer;
use answer::{Asked, code};
use belay_server::call::{Failure, Kind};
use bytes::Bytes;
use connect::Connector;
use http::header::{HeaderMap, PROXY_AUTHORIZATION};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use metrics::{Label, Unit};
use pace::Pace;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
pub use proxies::BadProxy;
use proxies::{Proxies, Proxy};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout_at};
pub use trust::{BadCertificates, TlsFiles, Trust};
use words::Secrets;

const DURATION: &str = "belay_cloud_duration_seconds";

/// Longest body of an answer. A page of a thousand volumes takes 2 MiB in Cinder.
const BODY_BYTES_MAX: usize = 16 << 20;
/// How long a connection is kept without a call; less than servers keep theirs (uWSGI: 60 s or
/// more), so that a call hardly meets one that closes.
const IDLE: Duration = Duration::from_secs(30);
/// Attempts of a call that fails; those refused for their pace do not count.
const ATTEMPTS_MAX: u32 = 4;
/// Between the first two attempts. Each later pause is twice as long.
const PAUSE: Duration = Duration::from_millis(250);

/// The client of one account of a cloud.
pub struct Client {
    pool: Pool<Connector, Full<Bytes>>,
    connector: Connector,
    cloud: &'static str,
    section: Option<Arc<str>>,
    pace: Pace,
    is_too_fast: fn(&Answer) -> bool,
}

/// A call.
pub struct Call<'a> {
    /// What it is for: the label `verb` of the metric.
    pub verb: &'static str,
    /// Its method.
    pub method: Method,
    /// Its URL, which has no secret.
    pub uri: Uri,
    /// Secrets among them must be marked ([`http::HeaderValue::set_sensitive`]).
    pub headers: HeaderMap,
    /// Its body, or nothing.
    pub body: Bytes,
    /// Secrets in the body: no error quotes them.
    pub secrets: &'a [&'a str],
    /// A second one does no harm, although its method is POST or PUT.
    pub repeats: bool,
    /// How long it may take, with all attempts and pauses.
    pub deadline: Duration,
}

/// Why an attempt has no answer.
struct Broken {
    /// Whether any of it may have arrived.
    is_sent: bool,
    why: String,
}

/// A client cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BadClient {
    /// By its certificates.
    #[error(transparent)]
    Certificates(#[from] BadCertificates),
    /// By the proxies that the environment names.
    #[error(transparent)]
    Proxy(#[from] BadProxy),
}

impl Client {
    /// A client for the cloud of that name (the label `cloud`), by the proxy that the environment
    /// names, with these certificates.
    ///
    /// # Errors
    /// A file without a certificate or key, or a variable that names no proxy that can be used.
    pub fn new(cloud: &'static str, files: &TlsFiles) -> Result<Self, BadClient> {
        let proxies = Proxies::read(|name| std::env::var_os(name))?;
        Ok(Self::by_proxy(cloud, files, proxies)?)
    }

    fn by_proxy(
        cloud: &'static str,
        files: &TlsFiles,
        proxies: Proxies,
    ) -> Result<Self, BadCertificates> {
        let connector = Connector::new(Arc::new(Trust::new(files)?), proxies);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector.clone());
        let pace = Pace::new();
        Ok(Self {
            pool,
            connector,
            cloud,
            section: None,
            pace,
            is_too_fast: |_| true,
        })
    }

    /// For one of several clouds of that kind: its name, the label `section`.
    #[must_use]
    pub fn of_section(self, section: Option<Arc<str>>) -> Self {
        Self { section, ..self }
    }

    /// For a service that has other uses of 429: whether such an answer is about the rate of all
    /// calls. Any other is the answer to its call, and slows down none.
    #[must_use]
    pub fn too_fast_if(self, is_too_fast: fn(&Answer) -> bool) -> Self {
        Self {
            is_too_fast,
            ..self
        }
    }

    /// The authorities that later connections trust.
    #[must_use]
    pub fn trust(&self) -> Arc<Trust> {
        self.connector.trust()
    }

    /// The answer to a call. It is repeated while it is refused for its pace, if it cannot have
    /// arrived, or if a second one does no harm.
    ///
    /// # Errors
    /// `Unreachable` and `Timeout`; with an unknown state left behind if it may have arrived and
    /// changes something.
    pub async fn call(&self, call: &Call<'_>) -> Result<Answer, Failure> {
        self.run(call, false).await
    }

    /// Like [`Self::call`], but before the calls that wait, and one that is refused for its pace is
    /// not repeated: for a change whose reason may soon not exist any longer.
    ///
    /// # Errors
    /// Those of [`Self::call`].
    pub async fn call_once(&self, call: &Call<'_>) -> Result<Answer, Failure> {
        self.run(call, true).await
    }

    async fn run(&self, call: &Call<'_>, is_once: bool) -> Result<Answer, Failure> {
        let until = Instant::now() + call.deadline;
        let (mut attempt, mut pause, mut is_sent) = (1, PAUSE, false);
        let mut was_refused = is_once;
        loop {
            let turn = self.pace.turn(was_refused);
            if timeout_at(until, turn).await.is_err() {
                let why = "the service has limited the rate of calls";
                return Err(self.failed(call, Kind::Timeout, is_sent, why));
            }
            let sent = Instant::now();
            let Ok(tried) = timeout_at(until, self.attempt(call)).await else {
                self.measure(call, "none", sent);
                let why = format!("no answer within {} s", call.deadline.as_secs_f32());
                return Err(self.failed(call, Kind::Timeout, true, &why));
            };
            was_refused = false;
            let wait = match &tried {
                Ok(answer) if self.refuses_pace(answer) => {
                    was_refused = true;
                    self.pace
                        .refused(sent, answer.retry_after().unwrap_or(pause));
                    match is_once {
                        true => Duration::MAX,
                        false => Duration::ZERO,
                    }
                }
                Ok(answer) if answer.is_overload() && call.is_harmless() => {
                    attempt += 1;
                    answer.retry_after().unwrap_or(pause)
                }
                Ok(_) => {
                    self.pace.answered();
                    return tried.map_err(|broken| self.broken(call, &broken));
                }
                Err(broken) => {
                    attempt += 1;
                    is_sent |= broken.is_sent;
                    match broken.is_sent && !call.is_harmless() {
                        true => Duration::MAX,
                        false => pause,
                    }
                }
            };
            let is_last = attempt > ATTEMPTS_MAX || wait > until - Instant::now();
            if is_last {
                return tried.map_err(|broken| self.broken(call, &Broken { is_sent, ..broken }));
            }
            sleep(wait).await;
            pause *= 2;
        }
    }

    fn refuses_pace(&self, answer: &Answer) -> bool {
        answer.status == StatusCode::TOO_MANY_REQUESTS && (self.is_too_fast)(answer)
    }

    async fn attempt(&self, call: &Call<'_>) -> Result<Answer, Broken> {
        let begun = Instant::now();
        let answer = self.exchange(call).await;
        let code = answer.as_ref().map_or("none", |answer| code(answer.status));
        self.measure(call, code, begun);
        answer
    }

    async fn exchange(&self, call: &Call<'_>) -> Result<Answer, Broken> {
        let proxy = self.connector.proxy(&call.uri);
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = call.uri.clone();
        *request.headers_mut() = call.headers.clone();
        // Without a tunnel, the proxy sees each request.
        let is_plain = call.uri.scheme_str() == Some("http");
        let relay = proxy.filter(|_| is_plain);
        if let Some(value) = relay.and_then(|proxy| proxy.authorization.as_ref()) {
            let headers = request.headers_mut();
            headers.insert(PROXY_AUTHORIZATION, value.clone());
        }
        let secrets = Secrets::new(request.headers(), call.secrets);
        let broken = |is_sent: bool, error: &(dyn Error + 'static)| Broken {
            is_sent,
            why: secrets.masked(&chain(error)),
        };
        let answer = self.pool.request(request).await;
        let answer = answer.map_err(|error| broken(!error.is_connect(), &error))?;
        if let Some(proxy) = relay
            && answer.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED
        {
            let (status, cure) = (answer.status(), needs_user(proxy));
            return Err(Broken {
                is_sent: false,
                why: format!("the proxy refuses the call: {status}; {cure}"),
            });
        }
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
        let body = body
            .map_err(|error| broken(true, error.as_ref()))?
            .to_bytes();
        Ok(Answer::new(head, body, self.asked(call), secrets))
    }

    fn asked(&self, call: &Call<'_>) -> Asked {
        Asked {
            what: call.what(),
            host: self.host(call),
            is_safe: call.method.is_safe(),
        }
    }

    /// The host of a call, and the proxy by which it is reached, for errors.
    fn host(&self, call: &Call<'_>) -> String {
        // Without the user and the password that a URL may have.
        let host = call.uri.authority().map_or("", |host| host.as_str());
        let host = host.rsplit('@').next().unwrap_or_default();
        match self.connector.proxy(&call.uri) {
            None => host.to_owned(),
            Some(proxy) => format!("{host}, by {proxy}"),
        }
    }

    /// The failure of a call that has no answer, and may have arrived.
    fn failed(&self, call: &Call<'_>, kind: Kind, is_sent: bool, why: &str) -> Failure {
        let (what, host) = (call.what(), self.host(call));
        let failure = Failure::new(kind, format!("{what} at {host}: {why}"));
        match is_sent && !call.method.is_safe() {
            true => failure.may_be_running(),
            false => failure,
        }
    }

    fn broken(&self, call: &Call<'_>, broken: &Broken) -> Failure {
        self.failed(call, Kind::Unreachable, broken.is_sent, &broken.why)
    }

    fn measure(&self, call: &Call<'_>, code: &'static str, begun: Instant) {
        let labels = [("cloud", self.cloud), ("verb", call.verb), ("code", code)];
        let labels = labels.map(|(key, value)| Label::from_static_parts(key, value));
        let section = self.section.clone();
        let section = section.map(|section| Label::new("section", section));
        let labels: Vec<_> = labels.into_iter().chain(section).collect();
        metrics::histogram!(DURATION, labels).record(begun.elapsed());
    }
}

/// Errors quote paths, so the IDs in them stay as they are (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// The text as part of a URL, whatever it is.
pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// Describes the histogram.
pub fn describe() {
    let help = "How long calls to the cloud took, by their HTTP status.";
    metrics::describe_histogram!(DURATION, Unit::Seconds, help);
}

/// What to do after a status 407.
fn needs_user(proxy: &Proxy) -> String {
    format!("correct the user and password in {}", proxy.variable)
}

/// An error and its causes, in one line.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl Call<'_> {
    fn what(&self) -> String {
        format!("{} {}", self.method, self.uri.path())
    }

    /// Whether a second one changes no more than the first. Some clouds begin actions by PUT.
    fn is_harmless(&self) -> bool {
        self.repeats || self.method.is_idempotent() && self.method != Method::PUT
    }
}
