//! `belay-controller create-key` against a small API server over TLS: the request that it sends,
//! and that an existing key is kept whatever happens to a call.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod certificates;

use belay_bed::scrape;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

const TOKEN: &str = "canary-token";

/// A fault of a request.
#[derive(Clone, Copy)]
enum Fault {
    /// The API server returns this error, and does nothing.
    Refuse(u16, &'static str),
    /// The API server creates the Secret, and the response is lost.
    LoseAnswer,
}

#[derive(Default)]
struct Cluster {
    /// The Secrets by their paths.
    secrets: Mutex<BTreeMap<String, Value>>,
    /// The method, path and Authorization of each request.
    requests: Mutex<Vec<String>>,
    /// The faults of the next requests.
    faults: Mutex<Vec<Fault>>,
}

struct ApiServer {
    cluster: Arc<Cluster>,
    address: SocketAddr,
    account: tempfile::TempDir,
}

impl ApiServer {
    fn new(certificate: &str) -> Self {
        let config = certificates::server(certificate);
        let listener = scrape::listen().unwrap();
        let address = listener.local_addr().unwrap();
        let cluster = Arc::<Cluster>::default();
        let served = Arc::clone(&cluster);
        std::thread::spawn(move || {
            for tcp in listener.incoming() {
                // A client that does not trust the certificate closes the connection.
                drop(served.serve(tcp.unwrap(), &config));
            }
        });
        let account = tempfile::tempdir().unwrap();
        fs::write(account.path().join("namespace"), "belay-system").unwrap();
        fs::write(account.path().join("token"), TOKEN).unwrap();
        fs::copy(
            certificates::file("authority.pem"),
            account.path().join("ca.crt"),
        )
        .unwrap();
        Self {
            cluster,
            address,
            account,
        }
    }

    fn run(&self, faults: &[Fault]) -> (Option<i32>, String) {
        *self.cluster.faults.lock().unwrap() = faults.to_vec();
        let output = Command::new(env!("CARGO_BIN_EXE_belay-controller"))
            .args([
                "create-key",
                "--secret",
                "belay-format-mark",
                "--account-dir",
            ])
            .arg(self.account.path())
            .env("KUBERNETES_SERVICE_HOST", self.address.ip().to_string())
            .env("KUBERNETES_SERVICE_PORT", self.address.port().to_string())
            .output();
        let Output {
            status,
            stdout,
            stderr,
        } = output.unwrap();
        let said = String::from_utf8([stdout, stderr].concat()).unwrap();
        assert!(!said.contains(TOKEN), "{said}");
        if let Some(key) = self.key() {
            assert!(!said.contains(&key), "{said}");
        }
        (status.code(), said)
    }

    /// Returns the key in the cluster.
    fn key(&self) -> Option<String> {
        let secrets = self.cluster.secrets.lock().unwrap();
        let secret = secrets.get("/api/v1/namespaces/belay-system/secrets/belay-format-mark")?;
        secret["stringData"]["keys"].as_str().map(str::to_owned)
    }
}

impl Cluster {
    fn serve(&self, tcp: TcpStream, config: &Arc<ServerConfig>) -> std::io::Result<()> {
        let tls = ServerConnection::new(Arc::clone(config)).unwrap();
        let mut stream = BufReader::new(StreamOwned::new(tls, tcp));
        loop {
            let (mut head, mut line) = (Vec::new(), String::new());
            while stream.read_line(&mut line)? > 0 && line.trim() != "" {
                head.push(std::mem::take(&mut line).trim().to_owned());
            }
            let Some(first) = head.first() else {
                return Ok(());
            };
            let header = |name: &str| {
                let find = |line: &String| {
                    let (key, value) = line.split_once(": ")?;
                    key.eq_ignore_ascii_case(name).then(|| value.to_owned())
                };
                head.iter().find_map(find).unwrap_or_default()
            };
            let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
            stream.read_exact(&mut body)?;
            let request = format!("{first} {}", header("authorization"));
            self.requests.lock().unwrap().push(request);
            let mut faults = self.faults.lock().unwrap();
            let fault = (!faults.is_empty()).then(|| faults.remove(0));
            drop(faults);
            let path = first.split(' ').nth(1).unwrap_or_default();
            let (code, reason) = match fault {
                Some(Fault::Refuse(code, reason)) => (code, reason),
                _ => self.create(path, &body),
            };
            if matches!(fault, Some(Fault::LoseAnswer)) {
                return Ok(());
            }
            // The server quotes the request.
            let sent = format!("{} {TOKEN}", String::from_utf8_lossy(&body));
            let answer = json!({ "kind": "Status", "reason": reason, "message": sent }).to_string();
            let length = answer.len();
            let answer =
                format!("HTTP/1.1 {code} {reason}\r\ncontent-length: {length}\r\n\r\n{answer}");
            stream.get_mut().write_all(answer.as_bytes())?;
            stream.get_mut().flush()?;
        }
    }

    fn create(&self, path: &str, body: &[u8]) -> (u16, &'static str) {
        let object: Value = serde_json::from_slice(body).unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let path = format!("{path}/{name}");
        let mut secrets = self.secrets.lock().unwrap();
        if secrets.contains_key(&path) {
            return (409, "AlreadyExists");
        }
        secrets.insert(path, object);
        (201, "Created")
    }
}

#[test]
fn a_key_is_created_once_and_by_one_kind_of_request() {
    let server = ApiServer::new("server.pem");
    let (code, said) = server.run(&[]);
    assert_eq!(
        (code, said.contains("is created")),
        (Some(0), true),
        "{said}"
    );
    let key = server.key().unwrap();
    assert_eq!(key.len(), 64);
    for _ in 0..2 {
        let (code, said) = server.run(&[]);
        assert_eq!((code, said.contains("is kept")), (Some(0), true), "{said}");
        assert_eq!(server.key().as_ref(), Some(&key));
    }
    let path = "/api/v1/namespaces/belay-system/secrets";
    let only = format!("POST {path} HTTP/1.1 Bearer {TOKEN}");
    assert_eq!(*server.cluster.requests.lock().unwrap(), [only.as_str(); 3]);
    assert_eq!(server.cluster.secrets.lock().unwrap().len(), 1);
}

#[test]
fn a_lost_answer_or_a_busy_server_leaves_one_key() {
    let server = ApiServer::new("server.pem");
    let (code, said) = server.run(&[Fault::Refuse(503, "ServiceUnavailable"), Fault::LoseAnswer]);
    assert_eq!((code, said.contains("is kept")), (Some(0), true), "{said}");
    let key = server.key().unwrap();
    let (code, _) = server.run(&[Fault::LoseAnswer]);
    assert_eq!((code, server.key()), (Some(0), Some(key)));
}

#[test]
fn a_refusal_is_a_failure_and_quotes_no_secret() {
    let server = ApiServer::new("server.pem");
    for (status, reason) in [
        (401, "Unauthorized"),
        (403, "Forbidden"),
        (404, "NotFound"),
        // A quota was changed meanwhile, so the Secret may not exist.
        (409, "Conflict"),
        (409, ""),
        (422, "Invalid"),
        (500, "InternalError"),
        (200, "AlreadyExists"),
    ] {
        let (code, said) = server.run(&[Fault::Refuse(status, reason)]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(&status.to_string()), "{said}");
        assert!(said.contains("formatMark.secretName"), "no cure: {said}");
        assert!(
            !said.contains("\"keys\":\"") || said.contains("***"),
            "{said}"
        );
        assert_eq!(server.key(), None);
    }
    let (code, _) = server.run(&[]);
    assert_eq!((code, server.key().is_some()), (Some(0), true));
}

#[test]
fn a_stranger_in_the_servers_place_gets_no_token() {
    for certificate in ["elsewhere.pem", "server.pem"] {
        let server = ApiServer::new(certificate);
        if certificate == "server.pem" {
            // The certificate is from another authority.
            fs::copy(
                certificates::file("elsewhere.pem"),
                server.account.path().join("ca.crt"),
            )
            .unwrap();
        }
        let (code, said) = server.run(&[]);
        assert_eq!(code, Some(1), "{said}");
        assert_eq!(server.cluster.requests.lock().unwrap().len(), 0, "{said}");
    }
}

#[test]
fn an_incomplete_account_is_named() {
    let server = ApiServer::new("server.pem");
    for file in ["token", "namespace", "ca.crt"] {
        let file = server.account.path().join(file);
        let content = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let (code, said) = server.run(&[]);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(file.to_str().unwrap()), "{said}");
        fs::write(&file, content).unwrap();
    }
    assert_eq!(server.cluster.requests.lock().unwrap().len(), 0);
}
