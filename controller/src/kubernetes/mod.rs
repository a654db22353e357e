//! A small client for Kubernetes' API server, and the objects of `local` in it. Every change is
//! conditional on the version of the object, and is compared with the server's response. This
//! module does not depend on backends or on CSI.

mod answer;
mod claims;
mod kinds;
mod object;
mod pages;
mod quantity;
mod verbs;
mod watch;

pub use belay_contract::drivers::local::{FINALIZER, SPEC_VERSION, WAITS};
pub use claims::{PersistentVolume, SnapshotContent};
pub use kinds::{
    Condition, DiskSpec, DiskStatus, LocalDisk, LocalSnapshot, LocalVolume, Mode, Phase,
    SnapshotSpec, SnapshotStatus, Source, Unlisted, UnlistedFile, Usage, VolumeSpec, VolumeStatus,
    rfc3339,
};
pub use object::{Metadata, Object, Parsed, Resource};
pub use verbs::{Change, List, Node, NodeSpec, Selector, Written};
pub use watch::{Event, Watch};

use crate::http::{self, Answer, Call, Lines, Opened, Repeat, TlsFiles};
use ::http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use ::http::{Method, Uri};
use belay_server::call::{Failure, Kind};
use belay_server::file;
use bytes::Bytes;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The group and version of the objects.
pub const API_VERSION: &str = "belay.dev/v1alpha1";

/// The directory in which the kubelet keeps the token and the authority of a pod.
pub const ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The start of the header's value with the token.
const BEARER: &str = "Bearer ";
/// Deadline for a call with its retries, and for the head of the response to a watch.
const DEADLINE: Duration = Duration::from_secs(30);

/// The address of an API server, and the files that give access to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The URL of the server, without a path.
    pub server: String,
    /// The file with the token. The token is read for each call, since the kubelet replaces the
    /// file.
    pub token: PathBuf,
    /// The file with the authority of the server's certificate. The file is read again after a
    /// change.
    pub authority: PathBuf,
}

impl Access {
    /// Returns the access of a pod to the API server of its cluster, from the variables that the
    /// kubelet sets, and the directory with the token and the authority.
    ///
    /// # Errors
    /// Returns `Precondition` if a variable is missing.
    pub fn of_pod(
        account: &Path,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let needed = |name: &str| {
            variable(name).ok_or_else(|| {
                Failure::precondition(format!(
                    "{name}: not set; run this program in a pod, with a service account's token"
                ))
            })
        };
        let host = needed("KUBERNETES_SERVICE_HOST")?;
        let port = needed("KUBERNETES_SERVICE_PORT")?;
        let host = match host.contains(':') {
            true => format!("[{host}]"),
            false => host,
        };
        Ok(Self {
            server: format!("https://{host}:{port}"),
            token: account.join("token"),
            authority: account.join("ca.crt"),
        })
    }
}

/// A client for one API server.
pub struct Client {
    http: http::Client,
    access: Access,
    tls: TlsFiles,
}

/// The part of a call that depends on its verb.
struct Request<'a> {
    /// The label `verb` of the metric.
    verb: &'static str,
    method: Method,
    /// Path and query.
    path: &'a str,
    /// The request body, and its media type.
    body: Option<(&'static str, Bytes)>,
}

impl Client {
    /// Creates a client. This function blocks while it reads the file of the certificate authority,
    /// and opens no connection.
    ///
    /// # Errors
    /// Returns `Precondition` if the authority's file cannot be used.
    pub fn new(access: Access) -> Result<Self, Failure> {
        let tls = TlsFiles {
            authorities: Some(access.authority.clone()),
            identity: None,
        };
        let http = http::Client::new("kubernetes", &tls);
        let http = http.map_err(|error| Failure::precondition(error.to_string()))?;
        Ok(Self { http, access, tls })
    }

    async fn call(&self, request: Request<'_>) -> Result<Answer, Failure> {
        let token = self.token()?;
        let secrets = [bare(&token)];
        let call = self.prepared(request, &token, &secrets)?;
        self.http.call(&call).await
    }

    /// Makes a call whose response is a stream of lines, with one JSON object in each line.
    async fn open(&self, request: Request<'_>) -> Result<Opened, Failure> {
        let token = self.token()?;
        let secrets = [bare(&token)];
        let call = self.prepared(request, &token, &secrets)?;
        self.http.open(&call).await
    }

    fn prepared<'a>(
        &self,
        request: Request<'_>,
        token: &HeaderValue,
        secrets: &'a [&'a str],
    ) -> Result<Call<'a>, Failure> {
        let uri = format!("{}{}", self.access.server, request.path);
        let uri: Uri = uri
            .parse()
            .map_err(|error| Failure::precondition(format!("URL {uri}: {error}")))?;
        let mut headers = HeaderMap::from_iter([(AUTHORIZATION, token.clone())]);
        let body = request.body.map(|(kind, body)| {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            body
        });
        Ok(Call {
            verb: request.verb,
            method: request.method,
            uri,
            headers,
            body: body.unwrap_or_default(),
            secrets,
            repeats: Repeat::ReadOnly,
            deadline: DEADLINE,
        })
    }

    /// Returns the value of the header with the token. Reads the token, and reads the file of the
    /// certificate authority again if it has changed. Both files are in the memory of the node, so
    /// reading them does not wait for a disk.
    fn token(&self) -> Result<HeaderValue, Failure> {
        let bad = |why: String| Failure::new(Kind::Unauthenticated, why);
        let trust = self.http.trust();
        let refreshed = trust.refresh(&self.tls);
        refreshed.map_err(|error| bad(error.to_string()))?;
        let path = &self.access.token;
        let why = |why: &dyn std::fmt::Display| bad(format!("{}: {why}", path.display()));
        let token = file::read(path, file::SECRET_BYTES_MAX).map_err(|error| why(&error))?;
        let value = [BEARER.as_bytes(), token.trim_ascii()].concat();
        let value = HeaderValue::from_bytes(&value);
        let mut value = value.map_err(|_| why(&"contains no token"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

/// Returns the token in the value of a header, so that errors mask a token that stands alone.
fn bare(token: &HeaderValue) -> &str {
    token
        .to_str()
        .unwrap_or_default()
        .trim_start_matches(BEARER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::{Act, Server};
    use tempfile::TempDir;

    const TOKEN: &str = "canary-of-token";

    impl Client {
        /// Creates a client for this server, which has no certificate. Removing the directory
        /// removes the token.
        pub(crate) fn example(server: &Server) -> (Self, TempDir) {
            Self::of_server(&format!("http://{}", server.address))
        }

        /// Creates a client that makes no calls.
        pub(crate) fn unused() -> (Self, TempDir) {
            Self::of_server("http://absent.invalid")
        }

        fn of_server(url: &str) -> (Self, TempDir) {
            let dir = tempfile::tempdir().unwrap();
            let token = dir.path().join("token");
            std::fs::write(&token, TOKEN).unwrap();
            let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
            let client = Self::new(Access {
                server: url.to_owned(),
                token,
                authority: tests.join("openstack_twin/tls/authority.pem"),
            });
            (client.unwrap(), dir)
        }
    }

    #[tokio::test]
    async fn a_token_that_a_proxy_echoes_is_masked() {
        for echo in [TOKEN, "Authorization: Bearer canary-of-token"] {
            let server = Server::start([Act::answer("403 Forbidden", echo)]).await;
            let (client, _dir) = Client::example(&server);
            let failure = client.get::<LocalVolume>("pvc-1").await.err().unwrap();
            assert!(failure.message.contains("***"), "{failure}");
            assert!(!failure.message.contains("canary"), "{failure}");
        }
    }

    #[test]
    fn a_pod_finds_its_server_by_the_variables_of_the_kubelet() {
        for (host, server) in [
            ("10.0.0.1", "https://10.0.0.1:443"),
            ("fd00::1", "https://[fd00::1]:443"),
        ] {
            let access = Access::of_pod(Path::new("/account"), |name| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
                _ => None,
            });
            let access = access.unwrap();
            assert_eq!(access.server, server);
            assert_eq!(access.token, Path::new("/account/token"));
            assert_eq!(access.authority, Path::new("/account/ca.crt"));
        }
        let failure = Access::of_pod(Path::new("/account"), |_| None).unwrap_err();
        assert!(failure.message.contains("in a pod"), "{failure}");
    }
}
