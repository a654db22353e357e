//! A client of the cloud's APIs. It calls the APIs through the fault proxy, creates servers for
//! attachments, and reads the volumes from Cinder.

use belay_bed::patience::until;
use serde_json::{Value, json};

use crate::Bed;
use crate::http::{Answer, Cut, send};

/// The API versions in requests. These versions allow extending volumes in use (Cinder), and
/// attaching a volume to several servers (Nova).
const VERSIONS: [(&str, &str); 2] = [("volumev3", "volume 3.71"), ("compute", "compute 2.60")];

/// A client that has logged in, with the service endpoints from Keystone's catalog.
#[derive(Clone, Debug)]
pub struct Cloud {
    bed: Bed,
    token: String,
    catalog: Value,
    /// The user and the project, as Keystone names them.
    about: (Value, Value),
}

/// A volume, as returned by Cinder's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The UUID.
    pub id: String,
    /// The name, which may have any form and need not be unique.
    pub name: String,
    /// The status, such as `in-use`.
    pub status: String,
    /// The size in GiB.
    pub size: u64,
    /// The servers to which the volume is attached.
    pub servers: Vec<String>,
}

/// A server without an operating system, for attaching volumes. The server is deleted when this
/// value is dropped.
#[derive(Debug)]
pub struct Server {
    cloud: Cloud,
    /// The UUID.
    pub id: String,
}

impl Cloud {
    /// Logs in as the driver's user, with the user's password.
    ///
    /// # Panics
    /// Panics if Keystone refuses the login.
    #[must_use]
    pub fn by_password(bed: &Bed) -> Self {
        Self::of(bed, bed.text("/username"), bed.text("/project"))
    }

    /// Logs in as a user to a project. All users of the bed have the same password.
    fn of(bed: &Bed, user: &str, project: &str) -> Self {
        let domain = json!({"name": bed.text("/domain")});
        let user = json!({"name": user, "password": bed.text("/password"), "domain": domain});
        let scope = json!({"project": {"name": project, "domain": domain}});
        let identity = json!({"methods": ["password"], "password": {"user": user}});
        Self::login(
            bed,
            &json!({"auth": {"identity": identity, "scope": scope}}),
        )
    }

    /// Logs in with the user's application credential.
    ///
    /// # Panics
    /// Panics if Keystone refuses the login.
    #[must_use]
    pub fn by_application_credential(bed: &Bed) -> Self {
        let method = "application_credential";
        let id = bed.text("/application_credential/id");
        let secret = bed.text("/application_credential/secret");
        let identity = json!({"methods": [method], method: {"id": id, "secret": secret}});
        Self::login(bed, &json!({"auth": {"identity": identity}}))
    }

    fn login(bed: &Bed, body: &Value) -> Self {
        let url = format!("{}/auth/tokens", bed.text("/auth_url"));
        let answer = send(
            "POST",
            &url,
            &[("Content-Type", "application/json")],
            Some(body),
        );
        let answer = answer.expect("Keystone answers");
        assert_eq!(answer.status, 201, "login: {}", answer.body);
        Self {
            bed: bed.clone(),
            token: answer
                .header("x-subject-token")
                .expect("a token")
                .to_owned(),
            catalog: answer.body["token"]["catalog"].clone(),
            about: (
                answer.body["token"]["user"]["id"].clone(),
                answer.body["token"]["project"]["id"].clone(),
            ),
        }
    }

    /// Makes this user a member of a new project with this name.
    ///
    /// # Panics
    /// Panics if Keystone refuses the request.
    pub fn join_project(&self, name: &str) {
        let admin = Self::of(&self.bed, "admin", "admin");
        let project = json!({"project": {"name": name, "domain_id": "default"}});
        let made = admin.expect(201, "identity", ("POST", "/projects"), &project);
        let roles = admin.expect(200, "identity", ("GET", "/roles?name=member"), &Value::Null);
        let id = |value: &Value| value.as_str().expect("an id").to_owned();
        let path = format!(
            "/projects/{}/users/{}/roles/{}",
            id(&made["project"]["id"]),
            id(&self.about.0),
            id(&roles["roles"][0]["id"])
        );
        drop(admin.expect(204, "identity", ("PUT", &path), &Value::Null));
    }

    /// Sets the status of a volume and of its attachments, as an administrator does after a
    /// failure.
    ///
    /// # Panics
    /// Panics if Cinder refuses the request.
    pub fn reset(&self, id: &str, status: &str, attach_status: &str) {
        let admin = Self::of(&self.bed, "admin", "admin");
        let reset = json!({"os-reset_status": {"status": status, "attach_status": attach_status}});
        let path = format!("/volumes/{id}/action");
        drop(admin.expect(202, "volumev3", ("POST", &path), &reset));
    }

    /// Creates a trust in which the driver's user is both trustor and trustee. With the trust, the
    /// user may act as a member of its project, with impersonation. Returns the trust's ID.
    ///
    /// # Panics
    /// Panics if Keystone refuses the request.
    #[must_use]
    pub fn trust(&self) -> String {
        let (user, project) = &self.about;
        let trust = json!({"trust": {
            "trustor_user_id": user, "trustee_user_id": user, "project_id": project,
            "impersonation": true, "roles": [{"name": "member"}]}});
        let body = self.expect(201, "identity", ("POST", "/OS-TRUST/trusts"), &trust);
        body["trust"]["id"].as_str().expect("an id").to_owned()
    }

    /// Returns the public endpoint of a service, by the service's type.
    ///
    /// # Panics
    /// Panics if the catalog contains no such endpoint.
    #[must_use]
    pub fn endpoint(&self, service: &str) -> &str {
        let services = self.catalog.as_array().expect("a catalog");
        let found = services.iter().find(|entry| entry["type"] == service);
        let endpoints = found.and_then(|entry| entry["endpoints"].as_array());
        let public = |entry: &&Value| entry["interface"] == "public";
        let url = endpoints.and_then(|all| all.iter().find(public)?["url"].as_str());
        url.unwrap_or_else(|| panic!("the catalog has no public endpoint of {service}"))
    }

    /// Sends a request to a service, by the service's type.
    ///
    /// # Errors
    /// Fails if there is no response.
    pub fn call(
        &self,
        service: &str,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, Cut> {
        let version = VERSIONS.iter().find(|(kind, _)| *kind == service);
        let mut headers = vec![
            ("X-Auth-Token", self.token.as_str()),
            ("Content-Type", "application/json"),
        ];
        headers.extend(version.map(|(_, version)| ("OpenStack-API-Version", *version)));
        let url = format!("{}{path}", self.endpoint(service));
        send(method, &url, &headers, body)
    }

    /// Sends a request, and returns the body of the response, which must have this status.
    ///
    /// # Panics
    /// Panics if the response has a different status.
    #[track_caller]
    #[must_use]
    pub fn expect(&self, status: u16, service: &str, call: (&str, &str), body: &Value) -> Value {
        let (method, path) = call;
        let body = Some(body).filter(|body| !body.is_null());
        let answer = self.call(service, method, path, body).expect("an answer");
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        answer.body
    }

    /// Returns a volume; `None` if it does not exist.
    ///
    /// # Panics
    /// Panics if Cinder does not respond.
    #[must_use]
    pub fn volume(&self, id: &str) -> Option<Volume> {
        let answer = self.call("volumev3", "GET", &format!("/volumes/{id}"), None);
        let answer = answer.expect("Cinder answers");
        match answer.status {
            404 => None,
            200 => Some(Volume::of(&answer.body["volume"])),
            status => panic!("volume {id}: {status} {}", answer.body),
        }
    }

    /// Returns the volumes with this name; if `name` is `None`, returns all volumes.
    ///
    /// # Panics
    /// Panics if Cinder does not respond.
    #[must_use]
    pub fn volumes(&self, name: Option<&str>) -> Vec<Volume> {
        let filter = name.map(|name| format!("&name={name}")).unwrap_or_default();
        let path = format!("/volumes/detail?limit=1000{filter}");
        let body = self.expect(200, "volumev3", ("GET", &path), &Value::Null);
        let volumes = body["volumes"].as_array().expect("a list of volumes");
        volumes.iter().map(Volume::of).collect()
    }

    /// Waits until a volume has this status.
    ///
    /// # Panics
    /// Panics if the volume does not reach the status, or does not exist.
    #[track_caller]
    #[must_use]
    pub fn await_status(&self, id: &str, status: &str) -> Volume {
        let mut volume = None;
        until(&format!("volume {id} is {status}"), || {
            volume = self.volume(id);
            volume
                .as_ref()
                .is_some_and(|volume| volume.status == status)
        });
        volume.expect("the volume exists")
    }

    /// Creates a server in a zone, and waits until the server runs.
    ///
    /// # Panics
    /// Panics if Nova cannot create the server.
    #[must_use]
    pub fn server(&self, zone: &str) -> Server {
        let server = json!({"name": "node", "flavorRef": self.bed.text("/flavor"),
                            "imageRef": self.bed.text("/image"), "networks": "none",
                            "availability_zone": zone});
        let body = self.expect(
            202,
            "compute",
            ("POST", "/servers"),
            &json!({"server": server}),
        );
        let id = body["server"]["id"].as_str().expect("an id").to_owned();
        let server = Server {
            cloud: self.clone(),
            id,
        };
        until(&format!("server {} runs", server.id), || {
            let path = format!("/servers/{}", server.id);
            let body = self.expect(200, "compute", ("GET", &path), &Value::Null);
            let status = &body["server"]["status"];
            assert!(*status != "ERROR", "{body}");
            *status == "ACTIVE"
        });
        server
    }
}

impl Volume {
    fn of(shown: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let attachments = shown["attachments"].as_array();
        let servers = attachments.into_iter().flatten();
        Self {
            id: text(&shown["id"]),
            name: text(&shown["name"]),
            status: text(&shown["status"]),
            size: shown["size"].as_u64().expect("a size"),
            servers: servers.map(|entry| text(&entry["server_id"])).collect(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The bed removes all servers when it ends; deleting a server here only isolates the next
        // test.
        drop(
            self.cloud
                .call("compute", "DELETE", &format!("/servers/{}", self.id), None),
        );
    }
}
