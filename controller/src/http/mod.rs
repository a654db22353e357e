//! A small HTTP client for the APIs of clouds, with deadlines, safe retries, proxies, TLS and
//! metrics. It observes `Retry-After`, and sends fewer calls per second after a response with
//! status 429. This module does not depend on a particular cloud. Secrets never appear in errors,
//! logs or metrics.

mod answer;
mod call;
mod connect;
mod pace;
mod proxies;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod trust;
mod tunnel;
mod unproxied;
mod words;

pub use answer::Answer;
use answer::{Asked, code};
use belay_server::call::{Failure, Kind};
use bytes::Bytes;
use call::Broken;
pub(crate) use call::encoded;
pub use call::{Call, Repeat};
use connect::Connector;
use http::header::PROXY_AUTHORIZATION;
use http::response::Parts;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use metrics::{Label, Unit};
use pace::Pace;
pub use proxies::BadProxy;
use proxies::{Proxies, Proxy};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;
pub use stream::{Lines, Opened};
use tokio::time::{Instant, sleep, timeout_at};
pub use trust::{BadCertificates, TlsFiles, Trust};
use words::Secrets;

const DURATION: &str = "belay_cloud_duration_seconds";
/// The reason of a call that was not sent before its deadline.
const LIMITED: &str = "the service has limited the rate of calls";

/// The maximum size of a response body, in bytes. For comparison, a page of a thousand Cinder
/// volumes takes 2 MiB.
const BODY_BYTES_MAX: usize = 16 << 20;
/// The time for which an idle connection is kept. Servers keep idle connections longer (uWSGI: 60 s
/// or more), so a request is rarely sent on a connection that the server is closing.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum number of attempts of a failing call. Attempts that were refused by the rate limit are
/// not counted.
const ATTEMPTS_MAX: u32 = 4;
/// The pause between the first two attempts. Each later pause is twice as long.
const PAUSE: Duration = Duration::from_millis(250);

/// The HTTP client for one account of a cloud.
pub struct Client {
    pool: Pool<Connector, Full<Bytes>>,
    connector: Connector,
    cloud: &'static str,
    section: Option<Arc<str>>,
    pace: Pace,
    is_too_fast: fn(&Answer) -> bool,
}

/// The error of [`Client::new`].
#[derive(Debug, thiserror::Error)]
pub enum BadClient {
    /// The files with the certificates or keys cannot be used.
    #[error(transparent)]
    Certificates(#[from] BadCertificates),
    /// The proxy that an environment variable names cannot be used.
    #[error(transparent)]
    Proxy(#[from] BadProxy),
}

impl Client {
    /// Creates a client for the cloud with this name, which is the value of the label `cloud`. Uses
    /// the certificates in these files, and the proxy that the environment variables name.
    ///
    /// # Errors
    /// Fails if a file contains no usable certificate or key, or if an environment variable does
    /// not name a usable proxy.
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

    /// Sets the value of the label `section`, which distinguishes several clouds of the same kind.
    #[must_use]
    pub fn of_section(self, section: Option<Arc<str>>) -> Self {
        Self { section, ..self }
    }

    /// Sets the test for whether a response with status 429 refers to the rate of all calls, for
    /// services that use 429 for several purposes. A 429 that does not pass the test affects only
    /// its own call, and does not reduce the rate.
    #[must_use]
    pub fn too_fast_if(self, is_too_fast: fn(&Answer) -> bool) -> Self {
        Self {
            is_too_fast,
            ..self
        }
    }

    /// Returns the certificate authorities that new connections trust.
    #[must_use]
    pub fn trust(&self) -> Arc<Trust> {
        self.connector.trust()
    }

    /// Makes a call and returns its response, which may have any status. Retries the call if the
    /// rate limit refused the call, if the service cannot have received the call, or if a retry is
    /// harmless.
    ///
    /// # Errors
    /// Returns `Unreachable` or `Timeout`. If the service may have received the call, and the call
    /// may change something, the failure has `Certainty::MayBeRunning`.
    pub async fn call(&self, call: &Call<'_>) -> Result<Answer, Failure> {
        self.run(call, false).await
    }

    /// Makes a call like [`Self::call`], but ahead of waiting calls, and without a retry if the
    /// rate limit refuses it. Intended for a change that may become unnecessary if it is delayed.
    ///
    /// # Errors
    /// Returns the errors of [`Self::call`].
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
                return Err(self.failed(call, Kind::Timeout, is_sent, LIMITED));
            }
            let sent = Instant::now();
            let Ok(tried) = timeout_at(until, self.attempt(call)).await else {
                return Err(self.unanswered(call, sent));
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
        let status = answer.as_ref().ok().map(|answer| answer.status);
        self.measure(call, status, begun);
        answer
    }

    async fn exchange(&self, call: &Call<'_>) -> Result<Answer, Broken> {
        let (head, body, secrets) = self.send(call).await?;
        self.whole(call, head, body, secrets).await
    }

    /// Receives the rest of a response.
    async fn whole(
        &self,
        call: &Call<'_>,
        head: Parts,
        body: Incoming,
        secrets: Secrets,
    ) -> Result<Answer, Broken> {
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await;
        let body = body.map_err(|error| Broken {
            is_sent: true,
            why: secrets.masked(&chain(error.as_ref())),
        })?;
        let asked = self.asked(call);
        Ok(Answer::new(head, body.to_bytes(), asked, secrets))
    }

    /// Sends the request and receives the head of its response.
    async fn send(&self, call: &Call<'_>) -> Result<(Parts, Incoming, Secrets), Broken> {
        let proxy = self.connector.proxy(&call.uri);
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = call.uri.clone();
        *request.headers_mut() = call.headers.clone();
        // The proxy reads a request that is not sent through a tunnel, so the request must contain
        // the credentials for the proxy.
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
        let answer = answer.map_err(|error| {
            let mut broken = broken(!error.is_connect(), &error);
            if error.is_connect() {
                broken.why += "; check the URL and the network";
            }
            broken
        })?;
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
        Ok((head, body, secrets))
    }

    fn asked(&self, call: &Call<'_>) -> Asked {
        Asked {
            what: call.what(),
            host: self.host(call),
            is_safe: call.method.is_safe(),
        }
    }

    /// Returns the host of a call, and the proxy if one is used, for error messages.
    fn host(&self, call: &Call<'_>) -> String {
        // Omit the user and the password that a URL may contain.
        let host = call.uri.authority().map_or("", |host| host.as_str());
        let host = host.rsplit('@').next().unwrap_or_default();
        match self.connector.proxy(&call.uri) {
            None => host.to_owned(),
            Some(proxy) => format!("{host}, by {proxy}"),
        }
    }

    /// Returns the failure of a call without a response. `is_sent` states whether the service may
    /// have received the call.
    fn failed(&self, call: &Call<'_>, kind: Kind, is_sent: bool, why: &str) -> Failure {
        let (what, host) = (call.what(), self.host(call));
        let failure = Failure::new(kind, format!("{what} at {host}: {why}"));
        match is_sent && !call.method.is_safe() {
            true => failure.may_be_running(),
            false => failure,
        }
    }

    /// Measures a call that was not answered before its deadline, and returns its failure.
    fn unanswered(&self, call: &Call<'_>, sent: Instant) -> Failure {
        self.measure(call, None, sent);
        let why = format!("no answer within {} s", call.deadline.as_secs_f32());
        self.failed(call, Kind::Timeout, true, &why)
    }

    fn broken(&self, call: &Call<'_>, broken: &Broken) -> Failure {
        self.failed(call, Kind::Unreachable, broken.is_sent, &broken.why)
    }

    fn measure(&self, call: &Call<'_>, status: Option<StatusCode>, begun: Instant) {
        let code = status.map_or_else(|| "none".to_owned(), code);
        let labels = [("cloud", self.cloud), ("verb", call.verb)];
        let labels = labels.map(|(key, value)| Label::from_static_parts(key, value));
        let section = self.section.clone();
        let section = section.map(|section| Label::new("section", section));
        let labels = labels.into_iter().chain([Label::new("code", code)]);
        let labels: Vec<_> = labels.chain(section).collect();
        metrics::histogram!(DURATION, labels).record(begun.elapsed());
    }
}

/// Registers the help text and unit of the histogram.
pub fn describe() {
    let help = "How long calls to the cloud took, by their HTTP status.";
    metrics::describe_histogram!(DURATION, Unit::Seconds, help);
}

/// Returns the remedy if the proxy responds with status 407 (Proxy Authentication Required).
fn needs_user(proxy: &Proxy) -> String {
    format!("correct the user and password in {}", proxy.variable)
}

/// Returns the messages of an error and of its causes in one line.
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
