//! The cloud of guests (tests/beds/guest/src/cloud) plays OpenStack where the real services would
//! be too much. The same requests go to both: each gets the same status from both, and what the
//! twin shows, the real services show by the same name and of the same type.

use std::fs;
use std::process::Command;

use belay_bed::programs::{self, Running, binary};
use belay_bed::{patience, scrape};
use belay_openstack::{Bed, Cloud, send};
use serde_json::{Value, json};

use crate::site::{run, unique};

const VOLUMES: &str = "volumev3";
const UNKNOWN: &str = "00000000-0000-4000-8000-00000000dead";

/// The twin, with one server, which is off.
struct Twin {
    bed: Bed,
    server: String,
    _running: Running,
    _directory: tempfile::TempDir,
}

impl Twin {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = binary("belay-guest-cloud").unwrap();
        let secret = run(Command::new(&program).arg("secret"));
        let address = scrape::free_port().unwrap();
        let socket = directory.path().join("operator");
        let mut serve = programs::program([&program]);
        serve.arg("serve").arg(&socket).arg(address.to_string());
        serve.arg(directory.path());
        serve.args(["2", "512", "guest=127.0.0.1=belay.name=one"]);
        serve.env("TMPDIR", directory.path());
        let running = Running::start(&mut serve).unwrap();
        patience::until("the twin is served", || socket.exists());
        let about = json!({
            "auth_url": format!("http://{address}/identity/v3"),
            "application_credential": {"id": "any", "secret": secret.trim()},
        });
        fs::write(directory.path().join("bed.json"), about.to_string()).unwrap();
        let document = format!("http://{address}/openstack/latest/meta_data.json");
        let document = send("GET", &document, &[], None).unwrap().body;
        Self {
            bed: Bed::at(directory.path()),
            server: document["uuid"].as_str().unwrap().to_owned(),
            _running: running,
            _directory: directory,
        }
    }
}

/// The answers of one cloud: what was requested, status, body.
struct Play<'a> {
    cloud: &'a Cloud,
    answers: Vec<(&'static str, u16, Value)>,
}

impl Play<'_> {
    fn call(&mut self, what: &'static str, service: &str, call: (&str, &str), body: Value) {
        let body = Some(body).filter(|body| !body.is_null());
        let answer = self.cloud.call(service, call.0, call.1, body.as_ref());
        let answer = answer.unwrap();
        self.answers.push((what, answer.status, answer.body));
    }

    fn get(&mut self, what: &'static str, path: &str) {
        self.call(what, VOLUMES, ("GET", path), Value::Null);
    }

    fn last(&self) -> &Value {
        &self.answers.last().unwrap().2
    }

    /// Two volumes, which are created, found and listed; the IDs.
    fn create(&mut self) -> [String; 2] {
        let name = unique("twin");
        let order = |size: u64| {
            json!({"volume": {"name": name, "size": size,
            "description": "of a test", "metadata": {"key": "value"}}})
        };
        self.call("no size", VOLUMES, ("POST", "/volumes"), order(0));
        let ids = ["create", "create again"].map(|what| {
            self.call(what, VOLUMES, ("POST", "/volumes"), order(1));
            let id = self.last()["volume"]["id"].as_str().unwrap().to_owned();
            let _volume = self.cloud.await_status(&id, "available");
            id
        });
        let path = format!("/volumes/{}", ids[0]);
        self.get("volume", &path);
        self.get("unknown volume", &format!("/volumes/{UNKNOWN}"));
        self.get("by name", &format!("/volumes/detail?name={name}"));
        assert_eq!(self.last()["volumes"].as_array().unwrap().len(), 2);
        self.get("no such name", &format!("/volumes/detail?name={name}-"));
        self.get("first page", "/volumes/detail?limit=1");
        let marker = self.last()["volumes"][0]["id"].as_str().unwrap().to_owned();
        self.get(
            "next page",
            &format!("/volumes/detail?limit=1&marker={marker}"),
        );
        let unknown = format!("/volumes/detail?limit=1&marker={UNKNOWN}");
        self.get("page after an unknown volume", &unknown);
        let more = json!({"metadata": {"belay.dev/claim": ids[0]}});
        let metadata = format!("{path}/metadata");
        self.call("mark", VOLUMES, ("POST", &metadata), more.clone());
        let metadata = format!("/volumes/{UNKNOWN}/metadata");
        self.call("mark of unknown", VOLUMES, ("POST", &metadata), more);
        ids
    }

    fn extend(&mut self, what: &'static str, id: &str, gib: u64) {
        let path = format!("/volumes/{id}/action");
        let order = json!({"os-extend": {"new_size": gib}});
        self.call(what, VOLUMES, ("POST", &path), order);
    }

    /// The volume is attached, grown and detached, and deleted.
    fn use_up(&mut self, id: &str, server: &str) {
        let at = |server: &str| format!("/servers/{server}/os-volume_attachments");
        let order = |id: &str| json!({"volumeAttachment": {"volumeId": id}});
        let (here, volume) = (at(server), format!("/volumes/{id}"));
        let attachment = format!("{here}/{id}");
        let nova = "compute";
        self.call("unknown server", nova, ("POST", &at(UNKNOWN)), order(id));
        self.call("unknown disk", nova, ("POST", &here), order(UNKNOWN));
        self.call("not attached", nova, ("DELETE", &attachment), Value::Null);
        self.call("attach", nova, ("POST", &here), order(id));
        let _volume = self.cloud.await_status(id, "in-use");
        self.get("attached volume", &volume);
        self.call("attach again", nova, ("POST", &here), order(id));
        assert!(
            self.last().to_string().contains("already attached"),
            "{}",
            self.last()
        );
        self.call("delete in use", VOLUMES, ("DELETE", &volume), Value::Null);
        self.extend("extend to no more", id, 1);
        self.extend("extend", id, 2);
        patience::until("2 GiB", || {
            self.cloud.volume(id).is_some_and(|it| it.size == 2)
        });
        let _volume = self.cloud.await_status(id, "in-use");
        self.call("detach", nova, ("DELETE", &attachment), Value::Null);
        let _volume = self.cloud.await_status(id, "available");
        self.call("detach again", nova, ("DELETE", &attachment), Value::Null);
        self.extend("extend detached", id, 3);
        patience::until("3 GiB", || {
            self.cloud.volume(id).is_some_and(|it| it.size == 3)
        });
        let _volume = self.cloud.await_status(id, "available");
    }

    fn delete(&mut self, id: &str) {
        let volume = format!("/volumes/{id}");
        self.call("delete", VOLUMES, ("DELETE", &volume), Value::Null);
        patience::until("it is deleted", || self.cloud.volume(id).is_none());
        self.call("delete again", VOLUMES, ("DELETE", &volume), Value::Null);
        self.extend("extend deleted", id, 4);
    }
}

/// All answers of a cloud to the requests of this test.
fn play(cloud: &Cloud, server: &str) -> Vec<(&'static str, u16, Value)> {
    let answers = Vec::new();
    let mut play = Play { cloud, answers };
    let [first, second] = play.create();
    play.use_up(&first, server);
    play.delete(&first);
    play.delete(&second);
    play.answers
}

/// Returns fields that the twin shows, and the real service does not or with another value; `at` is
/// their path.
fn differences(at: &str, twin: &Value, real: &Value) -> Vec<String> {
    match (twin, real) {
        (Value::Null, _) | (_, Value::Null) => Vec::new(),
        // Metadata is the client's own.
        (Value::Object(_), Value::Object(_)) if at.ends_with("/metadata") => Vec::new(),
        (Value::Object(twin), Value::Object(real)) => twin
            .iter()
            .flat_map(|(key, value)| match real.get(key) {
                Some(other) => differences(&format!("{at}/{key}"), value, other),
                None => vec![format!("{at}/{key} is not there")],
            })
            .collect(),
        (Value::Array(twin), Value::Array(real)) => {
            let both = twin.iter().zip(real);
            let each = both.flat_map(|(one, other)| differences(&format!("{at}[]"), one, other));
            each.collect()
        }
        _ if std::mem::discriminant(twin) == std::mem::discriminant(real) => Vec::new(),
        _ => vec![format!("{at}: {twin} is of another type than {real}")],
    }
}

#[test]
#[ignore = "needs a bed: make openstack"]
fn the_twin_answers_as_the_real_services_do() {
    let (bed, twin) = (Bed::open(), Twin::start());
    let cloud = Cloud::by_application_credential(&bed);
    let server = cloud.server("az-a");
    let real = play(&cloud, &server.id);
    let played = play(&Cloud::by_application_credential(&twin.bed), &twin.server);
    let mut found = Vec::new();
    for ((what, status, body), (_, twins_status, twins_body)) in real.iter().zip(&played) {
        if status != twins_status {
            found.push(format!(
                "{what}: {status} {body}, the twin: {twins_status} {twins_body}"
            ));
        } else if *status < 300 {
            found.extend(differences(what, twins_body, body));
        }
    }
    assert_eq!(real.len(), played.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
}
