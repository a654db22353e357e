//! `belay-controller create-key`: creates a Kubernetes Secret with a new key for format marks. The
//! Helm chart runs this command before installs and upgrades. The command can only create a Secret:
//! it neither reads nor changes an existing Secret, so it never replaces a key in use.

use crate::http::{Call, Client, Repeat, TlsFiles};
use belay_server::config::parse_command;
use belay_server::file::{SECRET_BYTES_MAX, read_text};
use belay_server::log;
use bytes::Bytes;
use clap::Parser;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap};
use http::uri::InvalidUri;
use http::{HeaderValue, Method, StatusCode, Uri};
use serde_json::json;
use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The first argument, which selects the command.
const COMMAND: &str = "create-key";
/// The length of a key in bytes: the output length of SHA-256, as RFC 2104 recommends.
const KEY_BYTES: usize = 32;
/// The deadline of the request, including its retries.
const DEADLINE: Duration = Duration::from_secs(60);
/// The reason in the API server's response if the object exists. Other conflicts have the same HTTP
/// status.
const EXISTS: &str = "AlreadyExists";
/// The alternative for the operator if the Job fails, for example because the API server has a
/// self-signed certificate.
const OTHERWISE: &str = "or create a Secret yourself, and set formatMark.secretName of the driver \
                         in the chart's values to the name of the Secret (docs/openstack.md)";

/// Creates a Secret with a new key for format marks, unless there is a Secret of that name.
#[derive(Debug, Parser)]
#[command(name = "belay-controller create-key", version)]
struct Flags {
    /// Name of the Secret
    #[arg(long, value_name = "NAME")]
    secret: String,

    /// Key in its data
    #[arg(long, value_name = "KEY", default_value = "keys")]
    key: String,

    /// Directory with token, authority and namespace of the service account
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/run/secrets/kubernetes.io/serviceaccount"
    )]
    account_dir: PathBuf,

    /// Address of the API server
    #[arg(long, env = "KUBERNETES_SERVICE_HOST", value_name = "HOST")]
    host: String,

    /// Port of the API server
    #[arg(long, env = "KUBERNETES_SERVICE_PORT", value_name = "PORT")]
    port: u16,
}

/// Runs the command if it is the first argument; returns `None` otherwise.
#[must_use]
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let flags = match parse_command::<Flags>(COMMAND, arguments)? {
        Ok(flags) => flags,
        Err(code) => return Some(code),
    };
    let (line, code) = match flags.create() {
        Ok(true) => ("is created".to_owned(), ExitCode::SUCCESS),
        Ok(false) => ("exists, and is kept".to_owned(), ExitCode::SUCCESS),
        Err(why) => (
            format!("not created: {why}; {OTHERWISE}"),
            ExitCode::FAILURE,
        ),
    };
    let name = &flags.secret;
    log::write(&format!("belay-controller: Secret {name}: {line}\n"));
    Some(code)
}

impl Flags {
    /// Creates the Secret. Returns true if the Secret was created, and false if it already exists.
    fn create(&self) -> Result<bool, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.post())
    }

    /// Sends the request. If the client repeats the POST, the response may be that the Secret
    /// exists, although the first POST created it. Both responses therefore count as success.
    async fn post(&self) -> Result<bool, Box<dyn Error>> {
        let (namespace, token) = (self.account("namespace")?, self.account("token")?);
        let files = TlsFiles {
            authorities: Some(self.account_dir.join("ca.crt")),
            identity: None,
        };
        let client = Client::new("kubernetes", &files)?;
        let key = new_key()?;
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": self.secret },
            "type": "Opaque",
            "stringData": { (self.key.as_str()): key },
        });
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}"))?;
        bearer.set_sensitive(true);
        let headers = [
            (AUTHORIZATION, bearer),
            (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        ];
        let secrets: [&str; 2] = [&key, &token];
        let call = Call {
            verb: "create_secret",
            method: Method::POST,
            uri: self.uri(&namespace)?,
            headers: HeaderMap::from_iter(headers),
            body: Bytes::from(secret.to_string()),
            secrets: &secrets,
            repeats: Repeat::Always,
            deadline: DEADLINE,
        };
        let answer = client
            .call(&call)
            .await
            .map_err(|failure| failure.message)?;
        if answer.status == StatusCode::CREATED {
            return Ok(true);
        }
        let is_conflict = answer.status == StatusCode::CONFLICT;
        match is_conflict
            && answer
                .member("/reason")
                .is_ok_and(|reason: String| reason == EXISTS)
        {
            true => Ok(false),
            false => Err(answer.refusal().into()),
        }
    }

    /// Returns the content of a file of the service account.
    fn account(&self, name: &str) -> Result<String, String> {
        let file = self.account_dir.join(name);
        let text = read_text(&file, SECRET_BYTES_MAX);
        let text = text.map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(text.trim().to_owned())
    }

    fn uri(&self, namespace: &str) -> Result<Uri, InvalidUri> {
        // Enclose an IPv6 address in brackets.
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.clone(),
        };
        let port = self.port;
        format!("https://{host}:{port}/api/v1/namespaces/{namespace}/secrets").parse()
    }
}

/// Returns a new random key as hexadecimal digits.
fn new_key() -> Result<String, String> {
    let mut random = [0; KEY_BYTES];
    getrandom::fill(&mut random).map_err(|error| format!("getrandom: {error}"))?;
    let mut key = String::with_capacity(2 * KEY_BYTES + 1);
    for byte in random {
        write!(key, "{byte:02x}").map_err(|error| error.to_string())?;
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mark_keys::MarkKeys;
    use belay_server::config::parse_from;
    use std::io::Write as _;

    #[test]
    fn a_key_is_another_one_each_time_and_the_controller_takes_it() {
        let (one, other) = (new_key().unwrap(), new_key().unwrap());
        assert_ne!(one, other);
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(one.as_bytes()).unwrap();
        assert!(MarkKeys::read(file.path()).is_ok());
    }

    #[test]
    fn the_address_may_be_a_name_or_of_either_family() {
        for (host, authority) in [
            ("10.96.0.1", "10.96.0.1:443"),
            ("fd00::1", "[fd00::1]:443"),
            ("api.example.org", "api.example.org:443"),
        ] {
            let line = ["create-key", "--secret=s", "--port=443", "--host", host];
            let flags = parse_from::<Flags>(line.map(OsString::from)).unwrap();
            let uri = flags.uri("ns").unwrap();
            assert_eq!(uri.authority().unwrap().as_str(), authority);
            assert_eq!(uri.path(), "/api/v1/namespaces/ns/secrets");
        }
    }

    #[test]
    fn other_arguments_are_the_controllers() {
        for line in [
            &["belay-controller"][..],
            &["belay-controller", "--backend=local"],
            &["create-key"],
            &["belay-controller", "--backend=local", "create-key"],
        ] {
            assert!(run(line.iter().map(OsString::from)).is_none(), "{line:?}");
        }
    }
}
