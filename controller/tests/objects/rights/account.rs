//! Nodes, pods on them, and the service accounts of their stores.

use super::{MINE, NARROW, OTHER, WIDE};
use crate::server::Server;
use serde_json::{Value, json};

fn pod(namespace: &str, name: &str, node: Option<&str>) -> Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "serviceAccountName": "belay-store",
            "containers": [{"name": "store", "image": "none"}],
        },
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

fn rule(resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": ["belay.dev"], "resources": resources, "verbs": verbs})
}

/// Creates nodes, and pods of stores on them. No scheduler and no kubelet run.
pub(super) fn create_accounts(server: &Server) {
    // The chart's ClusterRole `belay-store` has the same rules.
    let objects = ["localvolumes", "localsnapshots"];
    let needed = json!([
        rule(&objects, &["list", "watch", "patch"]),
        rule(
            &["localvolumes/status", "localsnapshots/status"],
            &["patch"]
        ),
        rule(&["localdisks"], &["get", "list", "watch", "create"]),
        rule(&["localdisks/status"], &["patch"]),
    ]);
    let mut all = Vec::new();
    for (namespace, rules) in [(NARROW, needed), (WIDE, json!([rule(&["*"], &["*"])]))] {
        let account = json!({
            "kind": "ServiceAccount", "namespace": namespace, "name": "belay-store",
        });
        all.extend([
            json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace},
            }),
            json!({
                "apiVersion": "v1", "kind": "ServiceAccount",
                "metadata": {"namespace": namespace, "name": "belay-store"},
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": namespace}, "rules": rules,
            }),
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": namespace}, "subjects": [account],
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": namespace,
                },
            }),
        ]);
    }
    for node in [MINE, OTHER] {
        all.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}}));
    }
    all.extend([
        pod(NARROW, MINE, Some(MINE)),
        pod(WIDE, MINE, Some(MINE)),
        pod(WIDE, OTHER, Some(OTHER)),
        pod(WIDE, "gone", Some(MINE)),
        pod(WIDE, "pending", None),
    ]);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": all});
    server.kubectl_with(&["create", "--filename=-"], &list.to_string());
}

/// Returns a token of the store's account: of a pod, or of none.
pub(super) fn token(server: &Server, namespace: &str, pod: Option<&str>) -> String {
    let mut words = vec!["create", "token", "belay-store", "--namespace", namespace];
    if let Some(pod) = pod {
        words.extend(["--bound-object-kind=Pod", "--bound-object-name", pod]);
    }
    server.kubectl(&words).trim().to_owned()
}

/// A store with all rights.
pub(super) struct Account<'a> {
    pub(super) server: &'a Server,
    pub(super) token: String,
}

impl<'a> Account<'a> {
    pub(super) fn of_pod(server: &'a Server, pod: &str) -> Self {
        let token = token(server, WIDE, Some(pod));
        Self { server, token }
    }

    /// Runs kubectl. Returns the error, which is empty after a success.
    pub(super) fn run(&self, words: &[&str], input: &Value) -> String {
        let done = self
            .server
            .kubectl_as(&self.token, words, &input.to_string());
        let errors = String::from_utf8(done.stderr).unwrap();
        assert_eq!(
            done.status.success(),
            errors.is_empty(),
            "{words:?}: {errors}"
        );
        errors
    }

    pub(super) fn patch(&self, object: &str, change: &Value) -> String {
        let change = change.to_string();
        let words = ["patch", object, "--type=merge", "--patch", &change];
        self.run(&words, &Value::Null)
    }

    pub(super) fn patch_status(&self, object: &str, change: &Value) -> String {
        let change = change.to_string();
        let status = "--subresource=status";
        let words = ["patch", object, status, "--type=merge", "--patch", &change];
        self.run(&words, &Value::Null)
    }

    pub(super) fn create(&self, object: &Value) -> String {
        self.run(&["create", "--filename=-"], object)
    }

    pub(super) fn delete(&self, object: &str) -> String {
        self.run(&["delete", object, "--wait=false"], &Value::Null)
    }
}

/// Asserts that the policy for stores has refused a call, for this reason.
#[track_caller]
pub(super) fn refused(errors: &str, why: &str) {
    assert!(errors.contains("(Forbidden)"), "{errors}");
    let policy = "ValidatingAdmissionPolicy 'belay-store' with binding 'belay-store' denied";
    assert!(errors.contains(policy), "{errors}");
    assert!(errors.contains(why), "{errors}");
}

#[track_caller]
pub(super) fn succeeded(errors: &str) {
    assert_eq!(errors, "");
}
