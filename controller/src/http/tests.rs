//! Tests of the client with a small server on the loopback interface. Each test sets the behaviour
//! of the server.

use super::answer::PAUSE_MAX;
use super::*;
use belay_server::call::Certainty;
use http::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use http::{Method, Uri};
use metrics_exporter_prometheus::PrometheusBuilder;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const CANARY: &str = "canary-gAAAA";

/// The action of the server in response to a request.
#[derive(Clone)]
pub(crate) enum Act {
    /// The server responds with a status, headers and a body.
    Answer(&'static str, &'static [&'static str], Vec<u8>),
    /// The server writes the text, then closes the connection.
    Cut(&'static str),
    /// The server writes the text, then keeps the connection open without writing more.
    Stall(&'static str),
}

impl Act {
    pub(crate) fn answer(status: &'static str, body: &str) -> Self {
        Act::Answer(status, &[], body.into())
    }
}

impl Answer {
    /// Creates a response, for tests of code that interprets the messages of a cloud.
    pub(crate) fn example(status: u16, body: &str) -> Self {
        let response = http::Response::builder().status(status).body(()).unwrap();
        let body = Bytes::copy_from_slice(body.as_bytes());
        let asked = Asked {
            what: "POST /v2/example".to_owned(),
            host: "cloud.example".to_owned(),
            is_safe: false,
        };
        Self::new(response.into_parts().0, body, asked, Secrets::default())
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts a server that performs the next act for each request, over any number of connections.
    /// The server repeats the last act for all further requests.
    pub(crate) async fn start(acts: impl IntoIterator<Item = Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let acts = Arc::new(Mutex::new(acts.into_iter().collect::<VecDeque<_>>()));
        let requests = Arc::clone(&seen);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&acts), Arc::clone(&requests)));
            }
        });
        Self { address, seen }
    }

    /// Returns the number of received requests.
    pub(crate) fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    fn uri(&self, path: &str) -> Uri {
        format!("http://{}{path}", self.address).parse().unwrap()
    }

    fn call(&self, method: Method) -> Call<'static> {
        self.call_to(&self.uri("/v3/volumes").to_string(), method)
    }

    fn call_to(&self, uri: &str, method: Method) -> Call<'static> {
        let mut headers = HeaderMap::new();
        let mut token = HeaderValue::from_static(CANARY);
        token.set_sensitive(true);
        headers.insert("x-auth-token", token);
        Call {
            verb: "test",
            method,
            uri: uri.parse().unwrap(),
            headers,
            body: Bytes::from_static(b"{}"),
            secrets: &["pass-canary"],
            repeats: Repeat::Idempotent,
            deadline: Duration::from_secs(20),
        }
    }
}

async fn serve(
    mut stream: TcpStream,
    acts: Arc<Mutex<VecDeque<Act>>>,
    seen: Arc<Mutex<Vec<String>>>,
) {
    loop {
        let Some(request) = request(&mut stream).await else {
            return;
        };
        seen.lock().unwrap().push(request);
        let act = {
            let mut acts = acts.lock().unwrap();
            let is_last = acts.len() == 1;
            let act = if is_last {
                acts.front().cloned()
            } else {
                acts.pop_front()
            };
            act.unwrap()
        };
        match act {
            Act::Answer(status, headers, body) => {
                let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
                for header in headers {
                    head = format!("{head}{header}\r\n");
                }
                let whole = [format!("{head}\r\n").as_bytes(), &body].concat();
                if stream.write_all(&whole).await.is_err() {
                    return;
                }
            }
            Act::Cut(text) => {
                stream.write_all(text.as_bytes()).await.unwrap();
                return;
            }
            Act::Stall(text) => {
                stream.write_all(text.as_bytes()).await.unwrap();
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Reads a complete request; `None` if the client has closed the connection.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let read = stream.read_buf(&mut text).await.ok()?;
        let so_far = String::from_utf8_lossy(&text).to_lowercase();
        if let Some((head, body)) = so_far.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return Some(so_far);
            }
        }
        if read == 0 {
            return None;
        }
    }
}

/// Creates a client as if these environment variables were set.
fn by(variables: &[(&str, &str)]) -> Client {
    let proxies = Proxies::read(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| value.into())
    });
    Client::by_proxy("test", &TlsFiles::default(), proxies.unwrap()).unwrap()
}

fn client() -> Client {
    by(&[])
}

fn assert_no_secret(failure: &str) {
    assert!(!failure.contains("canary"), "{failure}");
}

#[tokio::test]
async fn an_answer_has_status_and_body_and_the_call_has_its_headers_and_body() {
    let server = Server::start([Act::answer("202 Accepted", r#"{"volume": {"id": "v"}}"#)]).await;
    let client = client();
    for _ in 0..2 {
        let answer = client.call(&server.call(Method::POST)).await.unwrap();
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        let body: serde_json::Value = answer.json().unwrap();
        assert_eq!(body["volume"]["id"], "v");
    }
    let seen = server.seen.lock().unwrap();
    for part in [
        "post /v3/volumes http/1.1\r\n",
        "x-auth-token: canary",
        "\r\n\r\n{}",
    ] {
        assert!(seen[1].contains(part), "{seen:?}");
    }
}

#[tokio::test]
async fn a_refusal_names_the_call_and_the_services_own_words_without_secrets() {
    let body = format!(r#"{{"badRequest": {{"message": "no {CANARY} for pass-canary"}}}}"#);
    let echoed = &["x-subject-token: canary"];
    let refusal = Act::Answer("400 Bad Request", echoed, body.into());
    let server = Server::start([refusal]).await;
    let answer = client().call(&server.call(Method::POST)).await.unwrap();
    let refusal = answer.refusal();
    assert_eq!(refusal, "POST /v3/volumes: 400 Bad Request: no *** for ***");
    assert_eq!(server.calls(), 1, "not repeated");
    assert_no_secret(&format!("{answer:?}"));
}

/// Makes a call to a server with these acts; returns the number of received requests and the
/// failure.
async fn failed(method: Method, acts: Vec<Act>) -> (usize, Failure) {
    let server = Server::start(acts).await;
    let call = Call {
        deadline: Duration::from_millis(2500),
        ..server.call(method)
    };
    let failure = client().call(&call).await.unwrap_err();
    for named in ["/v3/volumes", &server.address.to_string()] {
        assert!(failure.message.contains(named), "{failure}");
    }
    assert_no_secret(&failure.message);
    (server.calls(), failure)
}

#[tokio::test]
async fn what_may_have_arrived_is_repeated_only_if_that_changes_nothing() {
    let broken = [
        Act::Cut(""),
        Act::Cut("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"),
        Act::Cut("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\n{"),
        Act::Cut("\0\0canary garbage\r\n\r\n"),
    ];
    for act in broken {
        let (calls, failure) = failed(Method::POST, vec![act.clone()]).await;
        assert_eq!((calls, failure.kind), (1, Kind::Unreachable), "{failure}");
        assert_eq!(failure.certainty, Certainty::MayBeRunning);
        let (calls, failure) = failed(Method::DELETE, vec![act.clone()]).await;
        assert!(calls > 1);
        assert_eq!(failure.certainty, Certainty::MayBeRunning);
        let (calls, failure) = failed(Method::GET, vec![act.clone()]).await;
        assert!(calls > 1);
        assert_eq!(failure.certainty, Certainty::NothingHappened);
        // The second response is complete.
        let server = Server::start([act, Act::answer("200 OK", "{}")]).await;
        client().call(&server.call(Method::GET)).await.unwrap();
        assert_eq!(server.calls(), 2);
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_in_time_is_a_timeout() {
    for text in ["", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"] {
        for (method, certainty) in [
            (Method::GET, Certainty::NothingHappened),
            (Method::POST, Certainty::MayBeRunning),
        ] {
            let (calls, failure) = failed(method, vec![Act::Stall(text)]).await;
            assert_eq!((calls, failure.kind), (1, Kind::Timeout), "{failure}");
            assert_eq!(failure.certainty, certainty);
        }
    }
}

#[tokio::test]
async fn a_refused_connection_is_tried_again_and_nothing_happened() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = Server {
        address: closed.local_addr().unwrap(),
        seen: Arc::default(),
    };
    drop(closed);
    let failure = client().call(&server.call(Method::POST)).await.unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable);
    assert_eq!(failure.certainty, Certainty::NothingHappened, "{failure}");
    assert!(
        failure.message.to_lowercase().contains("refused"),
        "{failure}"
    );
}

#[tokio::test]
async fn a_refused_connection_is_tried_as_often_as_an_overload_whatever_the_method() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    for method in [Method::GET, Method::POST] {
        let recorder = PrometheusBuilder::new().build_recorder();
        let measured = metrics::set_default_local_recorder(&recorder);
        let server = Server {
            address,
            seen: Arc::default(),
        };
        client().call(&server.call(method)).await.unwrap_err();
        drop(measured);
        let page = recorder.handle().render();
        let labels = r#"{cloud="test",verb="test",code="none"}"#;
        let counted = format!("{DURATION}_count{labels} {ATTEMPTS_MAX}\n");
        assert!(page.contains(&counted), "{page}");
    }
}

#[tokio::test]
async fn a_limited_rate_is_obeyed_whatever_the_method() {
    let limited = Act::Answer("429 Too Many Requests", &["retry-after: 1"], Vec::new());
    let server = Server::start([limited, Act::answer("202 Accepted", "{}")]).await;
    let answer = client().call(&server.call(Method::POST)).await.unwrap();
    assert_eq!((answer.status, server.calls()), (StatusCode::ACCEPTED, 2));

    let limited = Act::Answer("429 Too Many Requests", &["retry-after: 3600"], Vec::new());
    let (calls, failure) = failed(Method::POST, vec![limited]).await;
    assert_eq!(
        (calls, failure.kind),
        (1, Kind::Timeout),
        "it is not asked again"
    );
    assert_eq!(failure.certainty, Certainty::NothingHappened);
}

#[tokio::test]
async fn a_429_about_one_call_is_its_answer_and_slows_down_no_other() {
    let body = r#"{"message": "one request per 10m0s"}"#;
    let of_one = Act::answer("429 Too Many Requests", body);
    let of_all = Act::Answer("429 Too Many Requests", &["retry-after: 3600"], Vec::new());
    let server = Server::start([of_one, Act::answer("200 OK", "{}"), of_all]).await;
    let client = client().too_fast_if(|answer| !answer.words().contains("one request per"));
    let mut call = server.call(Method::POST);
    call.deadline = Duration::from_secs(60);
    let answer = client.call(&call).await.unwrap();
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(client.call(&call).await.unwrap().status, StatusCode::OK);
    call.deadline = Duration::from_secs(2);
    let failure = client.call(&call).await.unwrap_err();
    assert_eq!(failure.kind, Kind::Timeout, "{failure}");
    assert_eq!(server.calls(), 3);
}

#[test]
fn an_exhausted_budget_says_when_it_is_filled_again() {
    let after = |headers: &[(&'static str, u64)]| {
        let mut answer = Answer::example(429, "");
        for (name, value) in headers {
            answer.headers.insert(*name, (*value).into());
        }
        answer.retry_after()
    };
    let year_2100 = 4_102_444_800;
    let (reset, remaining) = ("ratelimit-reset", "ratelimit-remaining");
    assert_eq!(
        after(&[(reset, year_2100), (remaining, 0)]),
        Some(PAUSE_MAX)
    );
    assert_eq!(after(&[(reset, 1), (remaining, 0)]), Some(Duration::ZERO));
    assert_eq!(after(&[(reset, year_2100), (remaining, 7)]), None);
    let both = [(reset, year_2100), (remaining, 0), ("retry-after", 3)];
    assert_eq!(after(&both), Some(Duration::from_secs(3)));
}

#[tokio::test]
async fn an_overload_is_repeated_for_calls_that_change_no_more_then() {
    for (method, repeats, calls) in [
        (Method::GET, Repeat::Idempotent, 2),
        (Method::DELETE, Repeat::Idempotent, 2),
        (Method::PUT, Repeat::Idempotent, 1),
        (Method::POST, Repeat::Always, 2),
        (Method::POST, Repeat::Idempotent, 1),
        (Method::GET, Repeat::ReadOnly, 2),
        (Method::DELETE, Repeat::ReadOnly, 1),
    ] {
        let down = Act::answer("503 Service Unavailable", "not JSON");
        let server = Server::start([down, Act::answer("200 OK", "{}")]).await;
        let call = Call {
            repeats,
            ..server.call(method)
        };
        let answer = client().call(&call).await.unwrap();
        assert_eq!(server.calls(), calls);
        assert_eq!(answer.status.is_success(), calls == 2);
    }
    // The call ends at its deadline even if the overload continues.
    let server = Server::start([Act::answer("503 Service Unavailable", "later")]).await;
    let answer = client().call(&server.call(Method::GET)).await.unwrap();
    assert!(
        answer.refusal().ends_with(": later"),
        "{}",
        answer.refusal()
    );
    assert_eq!(server.calls(), ATTEMPTS_MAX as usize);
}

#[tokio::test]
async fn a_body_that_is_huge_or_not_json_is_refused() {
    let huge = Act::Answer("200 OK", &[], vec![b' '; BODY_BYTES_MAX + 1]);
    let (_, failure) = failed(Method::POST, vec![huge]).await;
    assert!(failure.message.contains("limit"), "{failure}");

    let server = Server::start([Act::answer("200 OK", "<html>canary")]).await;
    let answer = client().call(&server.call(Method::GET)).await.unwrap();
    let failure = answer.json::<serde_json::Value>().unwrap_err();
    assert_eq!(failure.certainty, Certainty::MayBeRunning);
    assert_no_secret(&failure.message);
}

#[test]
fn a_part_of_a_body_is_found_by_its_names_and_a_missing_one_is_null() {
    let body = r#"{"other": [{"id": 9}], "volume": {"id": 7, "na\u006de": "a", "zone": null}}"#;
    let answer = Answer::example(200, body);
    assert_eq!(answer.member::<u64>("/volume/id").unwrap(), 7);
    assert_eq!(answer.member::<String>("/volume/name").unwrap(), "a");
    for missing in ["/volume/zone", "/volume/id/of", "/volume/0", "/nothing/id"] {
        let found: Option<u64> = answer.member(missing).unwrap();
        assert_eq!(found, None, "{missing}");
    }
    let failure = answer.member::<u64>("/volume/name").unwrap_err();
    assert!(failure.message.contains("/volume/name: "), "{failure}");
    let cut = Answer::example(200, &body[..body.len() - 1]);
    let failure = cut.member::<u64>("/volume/id").unwrap_err();
    assert_eq!(failure.certainty, Certainty::MayBeRunning);
}

#[tokio::test]
async fn a_proxy_gets_whole_urls_and_its_own_credentials() {
    let proxy = Server::start([Act::answer("200 OK", "{}")]).await;
    let url = format!("http://user:secret@{}", proxy.address);
    let client = by(&[("HTTP_PROXY", &url)]);
    let call = proxy.call_to("http://cloud.example.org/v3/volumes", Method::GET);
    client.call(&call).await.unwrap();
    let seen = proxy.seen.lock().unwrap().concat();
    assert!(seen.starts_with("get "), "no tunnel: {seen}");
    for part in [
        "get http://cloud.example.org/v3/volumes http/1.1",
        "proxy-authorization: basic",
    ] {
        assert!(seen.contains(part), "{seen}");
    }
}

#[tokio::test]
async fn a_proxy_makes_a_tunnel_to_a_secure_service_and_sees_no_call() {
    let proxy = Server::start([Act::answer("200 OK", "")]).await;
    let url = format!("http://user:secret@{}", proxy.address);
    let client = by(&[("HTTPS_PROXY", &url)]);
    let mut call = proxy.call_to("https://cloud.example.org/v3/volumes", Method::POST);
    call.deadline = Duration::from_millis(2500);
    let failure = client.call(&call).await.unwrap_err();
    assert_no_secret(&failure.message);
    let seen = proxy.seen.lock().unwrap().concat();
    assert!(
        seen.starts_with("connect cloud.example.org:443 http/1.1\r\n"),
        "{seen}"
    );
    assert!(seen.contains("\r\nproxy-authorization: basic "), "{seen}");
    assert!(
        !seen.contains("volumes") && !seen.contains("canary"),
        "{seen}"
    );
}

#[tokio::test]
async fn a_host_with_a_port_in_no_proxy_is_called_without_the_proxy() {
    let proxy = Server::start([Act::answer("403 Forbidden", "")]).await;
    let service = Server::start([Act::answer("200 OK", "{}")]).await;
    // Loopback addresses are always reached without a proxy, so use another address.
    let uri = format!("http://0.0.0.0:{}/v3/volumes", service.address.port());
    let url = format!("http://{}", proxy.address);
    let call = service.call_to(&uri, Method::POST);
    for (no_proxy, calls) in [("0.0.0.0:1", [1, 0]), (&uri[7..uri.len() - 11], [1, 1])] {
        let client = by(&[("HTTP_PROXY", &url), ("NO_PROXY", no_proxy)]);
        client.call(&call).await.unwrap();
        assert_eq!([proxy.calls(), service.calls()], calls, "{no_proxy}");
    }
}

#[tokio::test]
async fn a_failure_of_the_proxy_names_it_without_its_password() {
    // The port is bound but does not listen, so no other test can have it.
    let closed = tokio::net::TcpSocket::new_v4().unwrap();
    closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let unused = closed.local_addr().unwrap();
    let mut running = tokio::task::JoinSet::new();
    for (act, http, https) in [
        (
            None,
            "no connection to the proxy: ",
            "no connection to the proxy: ",
        ),
        (
            Some(Act::answer("407 Proxy Authentication Required", CANARY)),
            "the proxy refuses the call: 407 Proxy Authentication Required; correct the user",
            "the proxy refuses a tunnel to cloud:5000: 407 Proxy Authentication Required; correct",
        ),
        (
            Some(Act::Cut("HTTP/1.1 403 Forbidden\r\n\r\n<html>blocked")),
            "",
            "the proxy refuses a tunnel to cloud:5000: 403 Forbidden; allow the host there",
        ),
        (Some(Act::Cut("")), "", "no answer to CONNECT: "),
        (
            Some(Act::Cut("HTTP/1.1 200 OK\r\n\r\ncanary")),
            "",
            "the proxy has sent data before the service could",
        ),
        (
            Some(Act::Cut("SSH-2.0-canary\r\n\r\n")),
            "",
            "no answer to CONNECT: ",
        ),
        (
            Some(Act::Stall("HTTP/1.1 200")),
            "no answer within",
            "no answer within",
        ),
    ] {
        let proxy = match act {
            Some(act) => Server::start([act]).await,
            None => Server {
                address: unused,
                seen: Arc::default(),
            },
        };
        running.spawn(async move {
            for (scheme, why) in [("http", http), ("https", https)] {
                assert_named(&proxy, scheme, why).await;
            }
        });
    }
    running.join_all().await;
}

/// Checks that a call through the proxy fails, and that the failure has this reason.
async fn assert_named(proxy: &Server, scheme: &str, why: &str) {
    let url = format!("http://user:canary-of-proxy@{}", proxy.address);
    let client = by(&[("HTTP_PROXY", &url), ("https_proxy", &url)]);
    // Only a proxy that does not respond uses up the deadline.
    let deadline = match why {
        "no answer within" => Duration::from_millis(2500),
        _ => Duration::from_secs(60),
    };
    let call = Call {
        deadline,
        ..proxy.call_to(&format!("{scheme}://cloud:5000/v3/volumes"), Method::POST)
    };
    let message = match client.call(&call).await {
        Ok(answer) => answer.foreign("the cloud").message,
        Err(failure) => failure.message,
    };
    let variable = match scheme {
        "http" => "HTTP_PROXY",
        _ => "https_proxy",
    };
    let address = proxy.address;
    let named = format!("at cloud:5000, by the proxy http://{address} of {variable}: ");
    assert!(message.contains(&named), "{message}");
    assert!(message.contains(why), "{why}: {message}");
    assert_no_secret(&message);
}

#[tokio::test]
async fn a_call_that_the_proxy_refuses_for_its_user_has_changed_nothing() {
    let proxy = Server::start([Act::answer("407 Proxy Authentication Required", "")]).await;
    let url = format!("http://{}", proxy.address);
    let client = by(&[("HTTP_PROXY", &url)]);
    let call = proxy.call_to("http://cloud/v3/volumes", Method::POST);
    let failure = client.call(&call).await.unwrap_err();
    assert_eq!(failure.certainty, Certainty::NothingHappened, "{failure}");
}

#[test]
fn a_file_without_certificates_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    let files = TlsFiles {
        authorities: Some(file.clone()),
        identity: None,
    };
    for content in [
        "",
        "no PEM",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        std::fs::write(&file, content).unwrap();
        let refused = Client::new("test", &files).err().unwrap();
        assert!(refused.to_string().contains("ca.pem"), "{refused}");
    }
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &file).unwrap();
    let refused = Client::new("test", &files).err().unwrap().to_string();
    assert!(
        refused.contains("ca.pem: is a character device"),
        "{refused}"
    );
}

#[test]
fn a_status_is_counted_by_itself_if_it_is_known_and_else_by_its_class() {
    let counted = |status: u16| code(StatusCode::from_u16(status).unwrap());
    let known = [
        200, 201, 202, 204, 400, 401, 403, 404, 409, 413, 429, 500, 502, 503, 504,
    ];
    for status in 100..=999 {
        let expected = match status / 100 {
            _ if known.contains(&status) => status.to_string(),
            class @ 2..=5 => format!("{class}xx"),
            _ => "other".to_owned(),
        };
        assert_eq!(counted(status), expected);
    }
}

#[test]
fn a_service_is_left_alone_for_as_long_as_it_wants_within_bounds() {
    let after = |value: &'static str| {
        let mut answer = Answer::example(429, "");
        let value = HeaderValue::from_static(value);
        answer.headers.insert(RETRY_AFTER, value);
        answer.retry_after()
    };
    let seconds = |count| Some(Duration::from_secs(count));
    assert_eq!(after("0"), seconds(0));
    assert_eq!(after("7"), seconds(7));
    assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), seconds(0));
    assert_eq!(after("Fri, 31 Dec 9999 23:59:59 GMT"), Some(PAUSE_MAX));
    assert_eq!(after("99999999"), Some(PAUSE_MAX));
    assert_eq!(after("soon"), None);
}

#[test]
fn a_refusal_by_a_page_is_that_of_a_proxy_but_one_of_the_pace_is_obeyed() {
    for (status, body, is_it) in [
        (403, "<html>blocked</html>", true),
        (413, " \n<!DOCTYPE html>", true),
        (403, r#"{"message": "<html>"}"#, false),
        (403, "", false),
        (403, "blocked", false),
        (429, "<html>slow down</html>", false),
        (200, "<html>", false),
        (503, "<html>", false),
    ] {
        let answer = Answer::example(status, body);
        assert_eq!(answer.is_refusal_of_proxy(), is_it, "{status} {body}");
    }
    let mut answer = Answer::example(403, "blocked");
    let html = http::HeaderValue::from_static("text/html; charset=utf-8");
    answer.headers.insert("content-type", html);
    assert!(answer.is_refusal_of_proxy());
}

#[test]
fn a_change_that_a_proxy_has_answered_may_run_unless_the_status_says_that_it_was_stopped() {
    for (status, is_stopped) in [
        (400, false),
        (403, false),
        (404, false),
        (407, true),
        (408, false),
        (413, true),
        (502, false),
        (200, false),
    ] {
        let failure = Answer::example(status, "<html>blocked</html>").foreign("the cloud");
        let expected = match is_stopped {
            true => Certainty::NothingHappened,
            false => Certainty::MayBeRunning,
        };
        assert_eq!(
            (failure.kind, failure.certainty),
            (Kind::Unreachable, expected),
            "{status}"
        );
    }
}

/// Opens a call whose response delivers lines.
async fn lines(server: &Server) -> Lines {
    match client().open(&server.call(Method::GET)).await.unwrap() {
        Opened::Lines(lines) => lines,
        Opened::Refused(answer) => panic!("{answer:?}"),
    }
}

pub(crate) const OPEN: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

#[tokio::test]
async fn lines_arrive_whole_however_they_are_cut() {
    let chunks = "4\r\none\n\r\n2\r\ntw\r\n6\r\no\n\nthr\r\n3\r\nee\n\r\n0\r\n\r\n";
    let server = Server::start([Act::Cut(Box::leak(format!("{OPEN}{chunks}").into()))]).await;
    let mut lines = lines(&server).await;
    let until = Instant::now() + Duration::from_secs(20);
    for expected in ["one", "two", "", "three"] {
        assert_eq!(lines.next(until).await.unwrap().unwrap(), expected);
    }
    assert!(lines.next(until).await.unwrap().is_none());
}

#[tokio::test]
async fn a_broken_or_silent_stream_of_lines_is_a_failure_after_its_whole_lines() {
    let text: &str = Box::leak(format!("{OPEN}6\r\none\ntw\r\n").into());
    for (act, kind) in [
        (Act::Cut(text), Kind::Unreachable),
        (Act::Stall(text), Kind::Timeout),
    ] {
        let server = Server::start([act]).await;
        let mut lines = lines(&server).await;
        let until = Instant::now() + Duration::from_millis(500);
        assert_eq!(lines.next(until).await.unwrap().unwrap(), "one");
        let failure = lines.next(until).await.unwrap_err();
        assert_eq!(failure.kind, kind, "{failure}");
        assert_eq!(failure.certainty, Certainty::NothingHappened);
    }
}

#[tokio::test]
async fn a_refused_or_unanswered_stream_has_the_reason() {
    let refusal = Act::answer("410 Gone", r#"{"message": "too old"}"#);
    let server = Server::start([refusal]).await;
    let opened = client().open(&server.call(Method::GET)).await.unwrap();
    let Opened::Refused(answer) = opened else {
        panic!("opened");
    };
    assert_eq!(
        (answer.status, answer.words()),
        (StatusCode::GONE, "too old")
    );
    let server = Server::start([Act::Stall("")]).await;
    let call = Call {
        deadline: Duration::from_millis(100),
        ..server.call(Method::GET)
    };
    let failure = client().open(&call).await.err().unwrap();
    assert_eq!(failure.kind, Kind::Timeout, "{failure}");
}

#[tokio::test]
async fn a_stream_is_measured_and_its_refusal_for_the_rate_slows_down_all_calls() {
    let limited = Act::Answer("429 Too Many Requests", &["retry-after: 3600"], Vec::new());
    let server = Server::start([Act::Stall(OPEN), limited]).await;
    let recorder = PrometheusBuilder::new().build_recorder();
    let measured = metrics::set_default_local_recorder(&recorder);
    let client = client();
    let mut call = server.call(Method::GET);
    for is_open in [true, false] {
        let opened = client.open(&call).await.unwrap();
        assert_eq!(matches!(opened, Opened::Lines(_)), is_open);
    }
    drop(measured);
    let page = recorder.handle().render();
    for code in ["200", "429"] {
        let labels = format!(r#"{{cloud="test",verb="test",code="{code}"}}"#);
        let counted = format!("{DURATION}_count{labels} 1\n");
        assert!(page.contains(&counted), "{page}");
    }
    call.deadline = Duration::from_millis(100);
    let failure = client.open(&call).await.err().unwrap();
    assert!(failure.message.contains("limited the rate"), "{failure}");
    assert_eq!(server.calls(), 2);
}

#[tokio::test]
async fn a_change_with_a_condition_is_sent_once_and_may_be_made() {
    for act in [
        Act::Cut(""),
        Act::Cut("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{"),
    ] {
        let server = Server::start([act]).await;
        let call = Call {
            repeats: Repeat::ReadOnly,
            ..server.call(Method::DELETE)
        };
        let failure = client().call(&call).await.unwrap_err();
        assert_eq!(failure.certainty, Certainty::MayBeRunning, "{failure}");
        assert_eq!(server.calls(), 1);
    }
}
