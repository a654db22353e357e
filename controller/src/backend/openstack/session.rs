//! A session at Keystone (API v3): a token, and where the services are. It is renewed well before
//! it ends, since services use it for a while after a call, and when a service refuses it.

use super::conf::{CloudConf, Domain, Login, User};
use super::wire::{self, Token};
use crate::http::{Call, Client};
use belay_server::call::Failure;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode, Uri};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// For a login. With a cold cache Keystone takes a second.
const LOGIN_DEADLINE: Duration = Duration::from_secs(20);

/// The account of a `cloud.conf`.
pub(super) struct Account {
    file: PathBuf,
    http: Client,
    session: Mutex<Option<Arc<Session>>>,
}

/// A login.
pub(super) struct Session {
    /// Marked as sensitive.
    pub(super) token: HeaderValue,
    pub(super) volumes: String,
    pub(super) compute: String,
    renew: Instant,
}

impl Account {
    pub(super) fn new(file: PathBuf, http: Client) -> Self {
        Self {
            file,
            http,
            session: Mutex::new(None),
        }
    }

    pub(super) fn http(&self) -> &Client {
        &self.http
    }

    /// The current session, or a new one. `refused` is a session whose token a service has refused.
    /// The file is read for each login, so that new credentials are used.
    pub(super) async fn session(
        &self,
        refused: Option<&Arc<Session>>,
    ) -> Result<Arc<Session>, Failure> {
        let mut current = self.session.lock().await;
        if let Some(session) = current.as_ref() {
            let is_refused = refused.is_some_and(|refused| Arc::ptr_eq(refused, session));
            if !is_refused && Instant::now() < session.renew {
                return Ok(Arc::clone(session));
            }
        }
        let file = self.file.clone();
        let conf = tokio::task::spawn_blocking(move || CloudConf::read(&file)).await;
        let conf = conf.map_err(|error| Failure::bug(format!("reading cloud.conf: {error}")))??;
        let session = Arc::new(self.log_in(&conf).await?);
        *current = Some(Arc::clone(&session));
        Ok(session)
    }

    async fn log_in(&self, conf: &CloudConf) -> Result<Session, Failure> {
        let url = format!("{}/auth/tokens", conf.auth_url);
        let uri: Uri = url.parse().map_err(|error| {
            Failure::precondition(format!("cloud.conf: auth-url: {}: {error}", conf.auth_url))
        })?;
        let (body, secret) = request(&conf.login);
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let call = Call {
            verb: "login",
            method: Method::POST,
            uri,
            headers,
            body: Bytes::from(body.to_string()),
            secrets: &[secret],
            repeats: true,
            deadline: LOGIN_DEADLINE,
        };
        let begun = Instant::now();
        // A second token does no harm, so nothing is left behind.
        let settled = |failure: Failure| failure.rolled_back();
        let answer = self.http.call(&call).await.map_err(settled)?;
        if answer.status != StatusCode::CREATED {
            return Err(wire::refused(&answer).rolled_back());
        }
        let token = answer.headers.get("x-subject-token").cloned();
        let mut token = token.ok_or_else(|| Failure::bug("keystone answers without a token"))?;
        token.set_sensitive(true);
        let body: wire::Tokens = answer.json().map_err(settled)?;
        let Token { catalog, .. } = &body.token;
        let place = |types: &[&str]| wire::endpoint(catalog, types, conf);
        Ok(Session {
            token,
            volumes: place(&["block-storage", "volumev3", "block-store"])?,
            compute: place(&["compute"])?,
            renew: begun + body.token.lifetime() * 3 / 4,
        })
    }
}

/// The body of a login, and the secret in it.
fn request(login: &Login) -> (Value, &str) {
    match login {
        Login::Password {
            user,
            password,
            project,
        } => {
            let mut who = name_of(user);
            who["password"] = password.expose().into();
            let scope = match (&project.id, &project.name) {
                (Some(id), _) => json!({ "id": id }),
                (None, name) => json!({ "name": name, "domain": domain(&project.domain) }),
            };
            let identity = json!({ "methods": ["password"], "password": { "user": who } });
            let auth = json!({ "identity": identity, "scope": { "project": scope } });
            (json!({ "auth": auth }), password.expose())
        }
        Login::ApplicationCredential { id, name, secret } => {
            let mut credential = match (id, name) {
                (None, Some((name, user))) => json!({ "name": name, "user": name_of(user) }),
                (id, _) => json!({ "id": id }),
            };
            credential["secret"] = secret.expose().into();
            let method = "application_credential";
            let identity = json!({ "methods": [method], method: credential });
            (json!({ "auth": { "identity": identity } }), secret.expose())
        }
    }
}

fn name_of(user: &User) -> Value {
    match &user.id {
        Some(id) => json!({ "id": id }),
        None => json!({ "name": user.name, "domain": domain(&user.domain) }),
    }
}

fn domain(domain: &Domain) -> Value {
    match (&domain.id, &domain.name) {
        (Some(id), _) => json!({ "id": id }),
        (None, Some(name)) => json!({ "name": name }),
        (None, None) => json!({ "id": "default" }),
    }
}
