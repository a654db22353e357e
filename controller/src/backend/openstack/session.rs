//! A session with Keystone (API v3): a token, and the endpoints of the services. The session is
//! renewed if a service refuses the token, or if `cloud.conf` has changed. The session is also
//! renewed well before the token expires, since Cinder and Nova still use the token after they have
//! responded to a call. As long as the token is valid, at most one call at a time waits for its
//! renewal.

use super::catalog::Endpoints;
use super::conf::{CloudConf, Domain, Login, Project, Scope, Source, User};
use super::wire;
use crate::backend::cloud::account::{Guard, Identity};
use crate::http::{Call, Client, Repeat};
use belay_server::call::{Failure, Kind};
use belay_server::lock::Lock;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{Method, StatusCode, Uri};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex as Turn;
use tokio::time::Instant;

/// The deadline of a login. Keystone needs about a second if its cache is empty.
const LOGIN_DEADLINE: Duration = Duration::from_secs(20);

/// The interval between two reads of `cloud.conf`, and between two attempts to renew a token that
/// is still valid.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// An account in `cloud.conf`, with its current session.
pub(super) struct Account {
    source: Source,
    http: Client,
    /// The cloud's name in log lines if there are several clouds.
    label: Option<String>,
    current: Lock<Option<Current>>,
    /// The lock of the one call that may read the file and log in.
    renewing: Turn<()>,
    /// The project that owns the controller's volumes.
    project: Guard,
    /// The region of the controller's volumes.
    region: Guard,
}

struct Current {
    session: Arc<Session>,
    /// The time at which `cloud.conf` is read next.
    check: Instant,
}

/// The result of a login.
pub(super) struct Session {
    /// The token, marked as sensitive.
    pub(super) token: HeaderValue,
    pub(super) volumes: String,
    pub(super) compute: String,
    conf: CloudConf,
    renew: Instant,
    end: Instant,
}

impl Session {
    /// Returns the secret of the login. No error message may contain the secret, even if a service
    /// repeats it in a response.
    pub(super) fn secret(&self) -> &str {
        match &self.conf.login {
            Login::Password { password, .. } => password.expose(),
            Login::ApplicationCredential { secret, .. } => secret.expose(),
            Login::Token { token, .. } => token.expose(),
        }
    }
}

impl Account {
    pub(super) fn new(source: Source, http: Client, label: Option<String>) -> Self {
        Self {
            source,
            http,
            label,
            current: Lock::new(None),
            renewing: Turn::new(()),
            project: Guard::new("cloud.conf", None),
            region: Guard::new("cloud.conf", None),
        }
    }

    pub(super) fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    pub(super) fn http(&self) -> &Client {
        &self.http
    }

    /// Returns the current session, or a new one. `refused` is a session whose token was refused by
    /// a service.
    ///
    /// # Errors
    /// Returns the errors of the file and of the login, if no other session can be used.
    pub(super) async fn session(
        &self,
        refused: Option<&Arc<Session>>,
    ) -> Result<Arc<Session>, Failure> {
        if let Some((session, is_due)) = self.usable(refused) {
            let turn = if is_due {
                self.renewing.try_lock().ok()
            } else {
                None
            };
            return match turn {
                Some(_turn) => Ok(self.checked(session).await),
                None => Ok(session),
            };
        }
        let _turn = self.renewing.lock().await;
        // A different call may have logged in while this call waited.
        if let Some((session, _)) = self.usable(refused) {
            return Ok(session);
        }
        let conf = self.read().await?;
        self.log_in(conf).await
    }

    /// Returns the current session if its token can be used, and whether the file must be read
    /// again.
    fn usable(&self, refused: Option<&Arc<Session>>) -> Option<(Arc<Session>, bool)> {
        let current = self.current.lock();
        let Current { session, check } = current.as_ref()?;
        let is_refused = refused.is_some_and(|refused| Arc::ptr_eq(refused, session));
        let now = Instant::now();
        (!is_refused && now < session.end).then(|| (Arc::clone(session), *check <= now))
    }

    /// Returns a new session if the file has changed or the token is old. Otherwise, or if the
    /// login fails, returns `session`, whose token is still valid.
    async fn checked(&self, session: Arc<Session>) -> Arc<Session> {
        if let Some(current) = self.current.lock().as_mut() {
            current.check = Instant::now() + CHECK_INTERVAL;
        }
        let renewed = async {
            let conf = self.read().await?;
            if conf == session.conf && Instant::now() < session.renew {
                return Ok(Arc::clone(&session));
            }
            self.log_in(conf).await
        };
        renewed.await.unwrap_or_else(|failure: Failure| {
            let cloud = self.label();
            tracing::warn!(cloud, %failure, "no new session; the old token is still used");
            session
        })
    }

    /// Reads `cloud.conf`, and reads the CA file if the file has changed.
    async fn read(&self) -> Result<CloudConf, Failure> {
        let (source, trust) = (self.source.clone(), self.http.trust());
        let label = self.label.clone();
        let reading = move || {
            let cloud = label.as_deref();
            let conf = CloudConf::read(&source)?;
            match trust.refresh(&conf.tls) {
                Ok(false) => {}
                Ok(true) => {
                    tracing::info!(
                        cloud,
                        "ca-file, cert-file or key-file: changed, and read again"
                    );
                }
                Err(error) => {
                    tracing::warn!(
                        cloud,
                        "ca-file or cert-file: {error}; those read before are still used"
                    );
                }
            }
            Ok(conf)
        };
        let conf = tokio::task::spawn_blocking(reading).await;
        conf.map_err(|error| Failure::bug(format!("reading cloud.conf: {error}")))?
    }

    /// Logs in. The new session becomes the current session only if its project and region are
    /// those of the controller's volumes.
    async fn log_in(&self, conf: CloudConf) -> Result<Arc<Session>, Failure> {
        let session = Arc::new(self.new_session(conf).await?);
        let check = Instant::now() + CHECK_INTERVAL;
        *self.current.lock() = Some(Current {
            session: Arc::clone(&session),
            check,
        });
        Ok(session)
    }

    async fn new_session(&self, conf: CloudConf) -> Result<Session, Failure> {
        let url = format!("{}/auth/tokens", conf.auth_url);
        let uri: Uri = url.parse().map_err(|error| {
            Failure::precondition(format!(
                "cloud.conf: auth-url: {}: {error}; write a URL, such as https://HOST:5000/v3",
                conf.auth_url
            ))
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
            repeats: Repeat::Always,
            deadline: LOGIN_DEADLINE,
        };
        let begun = Instant::now();
        // An unused token is harmless, so a failed login leaves no unknown state.
        let settled = |failure: Failure| failure.rolled_back();
        let answer = self.http.call(&call).await.map_err(|mut failure| {
            if failure.kind == Kind::Unreachable {
                failure.message.push_str(" (auth-url in cloud.conf)");
            }
            settled(failure)
        })?;
        let is_token = matches!(conf.login, Login::Token { .. });
        if answer.status != StatusCode::CREATED {
            let mut refused = wire::login_refused(&answer, is_token);
            if refused.kind == Kind::Unauthenticated {
                refused.message.push_str(cure(&conf.login));
            }
            return Err(refused);
        }
        let token = answer.headers.get("x-subject-token").cloned();
        let mut token = token.ok_or_else(|| Failure::bug("keystone answers without a token"))?;
        token.set_sensitive(true);
        let granted: wire::Token = answer.member("/token").map_err(settled)?;
        let found = Endpoints::find(&granted.catalog, &conf)?;
        // In some clouds, Keystone's response lacks the project of the token or the region of the
        // endpoints. The region is not recorded if the token belongs to another project.
        if let Some(project) = granted.project() {
            self.project
                .check(Identity::Known(format!("project {project}")))?;
        }
        if let Some(region) = found.region {
            self.region
                .check(Identity::Known(format!("region {region}")))?;
        }
        let lifetime = granted.lifetime();
        // A new login with the same token would not extend the lifetime of the token.
        let renew = if is_token { lifetime } else { lifetime * 3 / 4 };
        if is_token {
            tracing::warn!(
                cloud = self.label(),
                seconds = lifetime.as_secs(),
                "the token in cloud.conf ends by then, and with it all calls, unless the file has \
                 another one; an application credential does not end"
            );
        }
        Ok(Session {
            token,
            volumes: found.volumes,
            compute: found.compute,
            renew: begun + renew,
            end: begun + lifetime,
            conf,
        })
    }
}

/// Returns advice for an operator whose credentials Keystone refuses.
fn cure(login: &Login) -> &'static str {
    match login {
        Login::Password { .. } => {
            "; check user, password, project and domains in [Global] of cloud.conf, and whether \
             the user is enabled"
        }
        Login::Token { .. } => {
            "; the token in cloud.conf has ended or was revoked: replace it, or use an application \
             credential"
        }
        Login::ApplicationCredential { .. } => {
            "; check the application credential in [Global] of cloud.conf, and whether it has \
             expired or was deleted"
        }
    }
}

/// Returns the body of a login request, and the secret in it.
fn request(login: &Login) -> (Value, &str) {
    match login {
        Login::Password {
            user,
            password,
            scope,
        } => {
            let mut who = name_of(user);
            who["password"] = password.expose().into();
            let identity = json!({ "methods": ["password"], "password": { "user": who } });
            let auth = json!({ "identity": identity, "scope": of(scope) });
            (json!({ "auth": auth }), password.expose())
        }
        Login::Token { token, scope } => {
            let identity = json!({ "methods": ["token"], "token": { "id": token.expose() } });
            let auth = json!({ "identity": identity, "scope": of(scope) });
            (json!({ "auth": auth }), token.expose())
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

fn of(scope: &Scope) -> Value {
    match scope {
        Scope::Trust(id) => json!({ "OS-TRUST:trust": { "id": id } }),
        Scope::Project(Project { id: Some(id), .. }) => json!({ "project": { "id": id } }),
        Scope::Project(Project {
            name, domain: of, ..
        }) => {
            json!({ "project": { "name": name, "domain": domain(of) } })
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
