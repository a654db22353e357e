//! The calls for single objects and lists. A change names the version of the object to change. The
//! response must contain every field that was sent, because the API server drops fields that the
//! installed definition, of a different release, does not have.

use super::answer::Refusal;
use super::object::{Metadata, Object, Resource};
use super::pages::Listing;
use super::{API_VERSION, Client, Request};
use crate::http::{Answer, encoded};
use belay_server::call::{Failure, Kind};
use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const JSON: &str = "application/json";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// The number of objects in a page of a list; a page takes about half a MiB.
const PAGE: usize = 250;

/// The annotation that excludes objects from backups, because the file of a restored object may not
/// exist.
const NO_BACKUP: (&str, &str) = ("velero.io/exclude-from-backup", "true");

/// The result of a change that may conflict with other changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written<T> {
    /// The change is made.
    Done(T),
    /// The name is taken, or the object has a different version or UID. Nothing was changed.
    Conflict,
    /// The object does not exist. It is unknown whether the object was ever accepted.
    Missing,
}

/// A change of an object.
pub enum Change<'a, R: Resource> {
    /// Replaces all finalizers.
    Finalizers(&'a [&'a str]),
    /// Changes fields of the spec, as a JSON merge patch (RFC 7396).
    Spec(Value),
    /// Sets all fields of the status that this release knows, as a JSON merge patch. Fields that a
    /// newer release has written remain.
    Status(&'a R::Status),
}

/// The objects of a list, all as of the same version.
pub struct List<R: Resource> {
    /// The objects.
    pub items: Vec<Object<R>>,
    /// The version of the list, at which a watch can begin.
    pub version: String,
}

/// A selection of objects by a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(String);

impl Selector {
    /// Selects all objects.
    #[must_use]
    pub fn all() -> Self {
        Self(String::new())
    }

    /// Selects the objects of a node.
    #[must_use]
    pub fn node(name: &str) -> Self {
        Self(format!("spec.node={}", value(name)))
    }

    /// Selects the disks with this topology value.
    #[must_use]
    pub fn place(place: &str) -> Self {
        Self(format!("spec.place={}", value(place)))
    }

    /// Selects the objects with this ID of a volume or snapshot.
    #[must_use]
    pub fn id(id: &str) -> Self {
        Self(format!("spec.id={}", value(id)))
    }

    /// Returns the path and the start of the query for these objects.
    pub(super) fn path<R: Resource>(&self) -> String {
        let selector = encoded(&self.0);
        format!("{}?fieldSelector={selector}", path::<R>())
    }
}

/// Escapes a value for a field selector.
fn value(text: &str) -> String {
    let mut value = String::with_capacity(text.len());
    for char in text.chars() {
        if matches!(char, '\\' | ',' | '=') {
            value.push('\\');
        }
        value.push(char);
    }
    value
}

/// The name of PersistentVolumeClaims in URLs.
const CLAIMS: &str = "persistentvolumeclaims";

/// The name of Nodes in URLs.
const NODES: &str = "nodes";

#[derive(Deserialize)]
struct Claim {
    metadata: Metadata,
}

/// A Node.
#[derive(Debug, Deserialize)]
pub struct Node {
    /// The fields that Belay uses.
    #[serde(default)]
    pub spec: NodeSpec,
}

/// The requested state of a Node.
#[derive(Debug, Default, Deserialize)]
pub struct NodeSpec {
    /// Whether the Node is cordoned: it gets no new pods.
    #[serde(default)]
    pub unschedulable: bool,
}

fn path<R: Resource>() -> String {
    format!("/apis/{API_VERSION}/{}", R::PLURAL)
}

fn path_of<R: Resource>(name: &str) -> String {
    format!("{}/{}", path::<R>(), encoded(name))
}

impl Client {
    /// Returns the current state of an object, or `None` if it does not exist. The server reads
    /// from etcd, so the object is not older than this call.
    ///
    /// # Errors
    /// Returns `Unreachable` if the server does not respond or does not know the kind.
    pub async fn get<R: Resource>(&self, name: &str) -> Result<Option<Object<R>>, Failure> {
        self.read_one(&path_of::<R>(name), R::PLURAL, name).await
    }

    async fn read_one<T: DeserializeOwned>(
        &self,
        path: &str,
        plural: &'static str,
        name: &str,
    ) -> Result<Option<T>, Failure> {
        let answer = self.read("get", path).await?;
        if answer.status == StatusCode::OK {
            return answer.json().map(Some).map_err(Failure::nothing_happened);
        }
        match Refusal::of(&answer, plural, Some(name)) {
            Refusal::Missing => Ok(None),
            other => Err(other.into_failure(&answer).nothing_happened()),
        }
    }

    /// Returns the selected objects, from a version that is not older than this call.
    ///
    /// # Errors
    /// Returns `Unreachable` if the server does not respond or does not know the kind, or if the
    /// pages of the list expire repeatedly.
    pub async fn list<R: Resource>(&self, selector: &Selector) -> Result<List<R>, Failure> {
        let listing = Listing {
            path: &selector.path::<R>(),
            plural: R::PLURAL,
            limit: PAGE,
        };
        let (items, version) = self.pages(&listing, Some).await?;
        Ok(List { items, version })
    }

    /// Creates an object, which is excluded from backups.
    ///
    /// # Errors
    /// Returns `Precondition` if the server refuses the object or a field of it, or has changed the
    /// object. The object was then deleted again, unless the failure has an unknown state. Returns
    /// the errors of [`Self::get`].
    pub async fn create<R: Resource>(
        &self,
        name: &str,
        spec: &R::Spec,
    ) -> Result<Written<Object<R>>, Failure> {
        let (key, value) = NO_BACKUP;
        let body = json!({
            "apiVersion": API_VERSION, "kind": R::KIND,
            "metadata": {"name": name, "annotations": {key: value}},
            "spec": encode(spec)?,
        });
        let path = format!("{}?fieldValidation=Strict", path::<R>());
        let answer = self
            .write(Method::POST, "create", &path, JSON, &body)
            .await?;
        let made: Written<Object<R>> = written(&answer, StatusCode::CREATED, name)?;
        let Written::Done(object) = &made else {
            return Ok(made);
        };
        let came: Value = answer.json()?;
        let is_same = came.get("spec") == body.get("spec");
        let dropped = match is_same {
            true => dropped(&body, &came, ""),
            false => Some("spec".to_owned()),
        };
        match dropped {
            None => Ok(made),
            Some(field) => Err(self.withdrawn(object, changed::<R>(name, &field)).await),
        }
    }

    /// Deletes an object that was just created. Returns the failure, as rolled back if the object
    /// was deleted, and else with an unknown state.
    async fn withdrawn<R: Resource>(&self, object: &Object<R>, failure: Failure) -> Failure {
        match self.delete::<R>(&object.metadata).await {
            Ok(Written::Done(())) => failure.rolled_back(),
            Ok(Written::Conflict | Written::Missing) | Err(_) => failure.may_be_running(),
        }
    }

    /// Changes an object if it still has this UID and version.
    ///
    /// # Errors
    /// Returns `Precondition` if the server refuses the change or a field of it, or, with an
    /// unknown state, has not stored all of it. Returns the errors of [`Self::get`].
    pub async fn patch<R: Resource>(
        &self,
        of: &Metadata,
        change: Change<'_, R>,
    ) -> Result<Written<Object<R>>, Failure> {
        let mut path = path_of::<R>(&of.name);
        let mut body = json!({
            "metadata": {"uid": of.uid, "resourceVersion": of.resource_version},
        });
        match change {
            // The server does not store an empty list.
            Change::Finalizers([]) => body["metadata"]["finalizers"] = Value::Null,
            Change::Finalizers(all) => body["metadata"]["finalizers"] = json!(all),
            Change::Spec(fields) => body["spec"] = fields,
            Change::Status(status) => {
                body["status"] = encode(status)?;
                path += "/status";
            }
        }
        let path = format!("{path}?fieldValidation=Strict");
        let answer = self.write(Method::PATCH, "patch", &path, MERGE_PATCH, &body);
        let answer = answer.await?;
        let changed_to: Written<Object<R>> = written(&answer, StatusCode::OK, &of.name)?;
        if matches!(changed_to, Written::Done(_)) {
            // The response contains the new version.
            body["metadata"]["resourceVersion"] = Value::Null;
            let mut came: Value = answer.json()?;
            came["metadata"]["resourceVersion"] = Value::Null;
            if let Some(field) = dropped(&body, &came, "") {
                return Err(changed::<R>(&of.name, &field).may_be_running());
            }
        }
        Ok(changed_to)
    }

    /// Deletes an object if it still has this UID and version. An object with finalizers is only
    /// marked as being deleted.
    ///
    /// # Errors
    /// Returns the errors of [`Self::get`], with an unknown state if the server may have received
    /// the call.
    pub async fn delete<R: Resource>(&self, of: &Metadata) -> Result<Written<()>, Failure> {
        let body = json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"uid": of.uid, "resourceVersion": of.resource_version},
        });
        let path = path_of::<R>(&of.name);
        let answer = self.write(Method::DELETE, "delete", &path, JSON, &body);
        let answer = answer.await?;
        if matches!(answer.status, StatusCode::OK | StatusCode::ACCEPTED) {
            return Ok(Written::Done(()));
        }
        match Refusal::of(&answer, R::PLURAL, Some(&of.name)) {
            Refusal::Missing => Ok(Written::Missing),
            Refusal::Conflict => Ok(Written::Conflict),
            other => Err(other.into_failure(&answer)),
        }
    }

    /// Returns the annotations of a PersistentVolumeClaim; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns `Denied` if the account may not read claims, and the errors of [`Self::get`].
    pub async fn annotations_of_claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, Failure> {
        let (namespace, claim) = (encoded(namespace), encoded(name));
        let path = format!("/api/v1/namespaces/{namespace}/{CLAIMS}/{claim}");
        let claim: Option<Claim> = self.read_one(&path, CLAIMS, name).await?;
        Ok(claim.map(|claim| claim.metadata.annotations))
    }

    /// Returns a Node; `None` if it does not exist.
    ///
    /// # Errors
    /// Returns `Denied` if the account may not read Nodes, and the errors of [`Self::get`].
    pub async fn node(&self, name: &str) -> Result<Option<Node>, Failure> {
        let path = format!("/api/v1/{NODES}/{}", encoded(name));
        self.read_one(&path, NODES, name).await
    }

    pub(super) async fn read(&self, verb: &'static str, path: &str) -> Result<Answer, Failure> {
        let call = self.call(Request {
            verb,
            method: Method::GET,
            path,
            body: None,
        });
        call.await
    }

    async fn write(
        &self,
        method: Method,
        verb: &'static str,
        path: &str,
        kind: &'static str,
        body: &Value,
    ) -> Result<Answer, Failure> {
        let call = self.call(Request {
            verb,
            method,
            path,
            body: Some((kind, Bytes::from(body.to_string()))),
        });
        call.await
    }
}

fn encode(part: &impl serde::Serialize) -> Result<Value, Failure> {
    serde_json::to_value(part).map_err(|error| Failure::bug(error.to_string()))
}

/// Returns the object in the response to a change.
fn written<R: Resource>(
    answer: &Answer,
    success: StatusCode,
    name: &str,
) -> Result<Written<Object<R>>, Failure> {
    if answer.status == success {
        return answer.json().map(Written::Done);
    }
    match Refusal::of(answer, R::PLURAL, Some(name)) {
        Refusal::Missing => Ok(Written::Missing),
        Refusal::Conflict => Ok(Written::Conflict),
        other => Err(other.into_failure(answer)),
    }
}

fn changed<R: Resource>(name: &str, field: &str) -> Failure {
    Failure::new(
        Kind::Precondition,
        format!(
            "{} {name}: the API server has stored another {field} than was sent; upgrade the \
             definition of {}.belay.dev with the chart, and check the cluster's admission webhooks",
            R::KIND,
            R::PLURAL
        ),
    )
}

/// Returns the path of the first field that was sent but is missing or different in the response. A
/// field that was sent as null must be absent in the response.
fn dropped(sent: &Value, came: &Value, path: &str) -> Option<String> {
    match (sent, came) {
        (Value::Object(sent), Value::Object(came)) => sent.iter().find_map(|(key, sent)| {
            let came = came.get(key).unwrap_or(&Value::Null);
            let path = match path {
                "" => key.clone(),
                path => format!("{path}.{key}"),
            };
            dropped(sent, came, &path)
        }),
        (sent, came) => (sent != came).then(|| path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::LocalVolume;
    use super::*;
    use crate::http::tests::{Act, Server};
    use belay_server::call::Certainty;

    #[tokio::test]
    async fn a_deletion_without_a_result_is_not_sent_again() {
        let down = r#"{"kind": "Status", "message": "down"}"#;
        for act in [
            Act::Cut(""),
            Act::answer("502 Bad Gateway", "<html>down"),
            Act::answer("503 Service Unavailable", down),
        ] {
            let server = Server::start([act]).await;
            let (client, _dir) = Client::example(&server);
            let deleted = client.delete::<LocalVolume>(&Metadata::default()).await;
            let failure = deleted.unwrap_err();
            assert_eq!(failure.certainty, Certainty::MayBeRunning, "{failure}");
            assert_eq!(server.calls(), 1);
        }
    }

    #[test]
    fn a_selector_has_the_value_as_it_is() {
        for (id, selector) in [
            ("vol-1", "spec.id=vol-1"),
            ("=vol-1", r"spec.id=\=vol-1"),
            (r"a,b=c\d!", r"spec.id=a\,b\=c\\d!"),
            ("", "spec.id="),
        ] {
            assert_eq!(Selector::id(id).0, selector);
        }
        assert_eq!(Selector::node("a=b").0, r"spec.node=a\=b");
    }

    #[test]
    fn a_field_that_does_not_come_back_is_named() {
        let sent = json!({"spec": {"bytes": 1, "source": {"snapshot": "a"}, "remove": null}});
        let cases = [
            (
                json!({"spec": {"bytes": 1, "source": {"snapshot": "a"}, "more": 2}}),
                None,
            ),
            (json!({"spec": {"bytes": 1}}), Some("spec.source")),
            (
                json!({"spec": {"bytes": 2, "source": {"snapshot": "a"}}}),
                Some("spec.bytes"),
            ),
            (
                json!({"spec": {"bytes": 1, "source": {"snapshot": "a"}, "remove": 1}}),
                Some("spec.remove"),
            ),
        ];
        for (came, expected) in cases {
            assert_eq!(dropped(&sent, &came, "").as_deref(), expected, "{came}");
        }
    }
}
