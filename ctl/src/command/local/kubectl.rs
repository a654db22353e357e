//! Runs kubectl, which has the user's access to the cluster. Knows no kinds of objects.

use std::ffi::OsString;
use std::io::{ErrorKind, Write as _};
use std::process::{Command, Output, Stdio};

use clap::Args;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::objects::Object;

/// The program that calls the API server.
#[derive(Args, Clone)]
#[command(next_help_heading = "Cluster")]
pub(crate) struct Kubectl {
    /// Program that calls the API server, with its own settings (KUBECONFIG)
    #[arg(long, global = true, value_name = "PROGRAM", default_value = "kubectl")]
    kubectl: OsString,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    /// The timeout of a request, in seconds; set by `--timeout`.
    #[arg(skip)]
    pub(super) seconds: u64,
}

/// The response to a request.
#[derive(Debug, PartialEq)]
pub(super) enum Reply {
    /// The request succeeded. Contains the object or list.
    Done(Value),
    /// There is no such object or kind of objects.
    Missing,
    /// The object is not in the expected state, so it was not changed.
    Conflict,
}

/// A Deployment.
pub(super) struct Deployment {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The number of ready pods.
    pub(super) ready: u64,
}

impl Kubectl {
    pub(super) fn with_timeout(self, seconds: u64) -> Self {
        Self { seconds, ..self }
    }

    /// Returns the object or list at a path of the API.
    ///
    /// # Errors
    /// Fails if kubectl fails for another reason than a missing object.
    pub(super) fn get(&self, path: &str) -> Result<Option<Value>, Failure> {
        match self.run(&["get", "--raw", path], "")? {
            Reply::Done(value) => Ok(Some(value)),
            Reply::Missing | Reply::Conflict => Ok(None),
        }
    }

    /// Changes the spec of an object by a merge patch, if the object has not changed meanwhile.
    ///
    /// # Errors
    /// Fails if kubectl fails. The object may have been changed nevertheless.
    pub(super) fn patch(
        &self,
        plural: &str,
        object: Object<'_>,
        spec: &Value,
    ) -> Result<Reply, Failure> {
        let version = object.text("/metadata/resourceVersion");
        let patch = json!({"metadata": {"resourceVersion": version}, "spec": spec}).to_string();
        let kind = format!("{plural}.belay.dev");
        let words = ["patch", &kind, object.name(), "--type=merge"];
        let more = ["--patch", &patch, "--output=json"];
        self.run(&[words.as_slice(), more.as_slice()].concat(), "")
    }

    /// Creates an object in the collection at a path; a conflict means that it exists.
    ///
    /// # Errors
    /// Fails if kubectl fails. The object may have been created nevertheless.
    pub(super) fn create(&self, path: &str, object: &Value) -> Result<Reply, Failure> {
        let words = ["create", "--raw", path, "--filename", "-"];
        self.run(&words, &object.to_string())
    }

    /// Deletes the object at a path, if the object has not changed meanwhile.
    ///
    /// # Errors
    /// Fails if kubectl fails. The object may have been deleted nevertheless.
    pub(super) fn delete(&self, path: &str, object: Object<'_>) -> Result<Reply, Failure> {
        let version = object.text("/metadata/resourceVersion");
        let uid = object.text("/metadata/uid");
        // `kubectl delete` by name has no preconditions.
        let options = json!({
            "apiVersion": "v1", "kind": "DeleteOptions",
            "preconditions": {"resourceVersion": version, "uid": uid},
        });
        let words = ["delete", "--raw", path, "--filename", "-"];
        self.run(&words, &options.to_string())
    }

    /// Runs a command in a container of a pod of the deployment.
    ///
    /// # Errors
    /// Fails if the command or kubectl fails, with the text that it has printed.
    pub(super) fn exec(
        &self,
        deployment: &Deployment,
        container: &str,
        command: &[&str],
    ) -> Result<(), Failure> {
        let pod = format!("deployment/{}", deployment.name);
        let words = ["--namespace", &deployment.namespace, "exec", &pod];
        let words = [&words, ["--container", container, "--"].as_slice(), command].concat();
        let output = self.output(self.command(&words), "")?;
        match output.status.success() {
            true => Ok(()),
            false => Err(Failure::Refused(complaint(&output))),
        }
    }

    /// Runs kubectl with these words, and with `input` on its standard input.
    fn run(&self, words: &[&str], input: &str) -> Result<Reply, Failure> {
        let mut command = self.command(words);
        command.arg(format!("--request-timeout={}s", self.seconds));
        let output = self.output(command, input)?;
        let failed = |why: &str| {
            let (program, words) = (self.kubectl.to_string_lossy(), words.join(" "));
            Err(Failure::Machine(format!("`{program} {words}`: {why}")))
        };
        if output.status.success() {
            return match serde_json::from_slice(&output.stdout) {
                Ok(value) => Ok(Reply::Done(value)),
                Err(error) => failed(&format!("printed no JSON: {error}")),
            };
        }
        let text = complaint(&output);
        // The reason in the server's response (meta/v1 StatusReason).
        match () {
            () if text.contains("(NotFound)") => Ok(Reply::Missing),
            () if ["(Conflict)", "(AlreadyExists)"]
                .iter()
                .any(|it| text.contains(it)) =>
            {
                Ok(Reply::Conflict)
            }
            () => failed(&text),
        }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        let context = self.context.iter().map(|name| format!("--context={name}"));
        command.args(context).args(words);
        command
    }

    fn output(&self, mut command: Command, input: &str) -> Result<Output, Failure> {
        output(&mut command, input).map_err(|error| {
            let program = self.kubectl.to_string_lossy();
            Failure::Machine(match error.kind() {
                ErrorKind::NotFound => format!(
                    "{program}: not found; install kubectl \
                     (https://kubernetes.io/docs/tasks/tools), or name it by --kubectl PROGRAM"
                ),
                _ => format!("{program}: {error}; name kubectl by --kubectl PROGRAM"),
            })
        })
    }
}

/// Returns the text of a failed command on standard error, or else its exit status.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim() {
        "" => output.status.to_string(),
        text => text.to_owned(),
    }
}

fn output(command: &mut Command, input: &str) -> std::io::Result<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    if input.is_empty() {
        // A plugin of kubectl may ask for a password.
        return command.spawn()?.wait_with_output();
    }
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        match stdin.write_all(input.as_bytes()) {
            // kubectl has failed before it read the input; its message has the reason.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            written => written?,
        }
    }
    child.wait_with_output()
}
