//! The typed commands `belayctl volume`, `snapshot`, `controller`, `node` and `identity`. Each
//! command makes one CSI call. The tables of verbs (subcommands) have one row per command.

mod before;
mod controller;
mod forms;
mod node;
mod verb;
mod view;

use clap::error::ErrorKind;
use clap::{ArgMatches, Args as _, Command, Error, FromArgMatches, Subcommand};
use serde_json::Value;
use tonic::Code;

use crate::call::{self, Connection};
use crate::command::jobs::Jobs;
use crate::failure::Failure;
use crate::render::Answer;
use crate::target::Target;
pub(crate) use before::with_id;
use before::{Before, IGNORE};
use controller::{SNAPSHOTS, VOLUME};
use node::{IDENTITY, NODE};
use verb::Verb;

/// The options that select one page of a list. Without these options, belayctl reads all pages.
const ONE_PAGE: [&str; 2] = ["max-entries", "starting-token"];

const VOLUME_EXAMPLE: &str = "\
Example, a volume's lifecycle in the controller:
  belayctl volume create data --size 1GiB --fs-type ext4
  umask 077  # a.json has the secret of the volume's format mark, if it has one
  belayctl volume attach vol-1 --node-id n1 --fs-type ext4 -o json \\
    --show-secrets >a.json
  belayctl volume expand vol-1 --size 2GiB
  belayctl snapshot create backup vol-1
  belayctl volume create copy --from-snapshot snap-1 --fs-type ext4
  belayctl volume detach vol-1 --node-id n1
  belayctl volume delete vol-1
`node stage --context-from a.json` continues on the node; `belayctl mount` does
it all.";

const NODE_EXAMPLE: &str = "\
Example, a volume's lifecycle on the node; a.json is the output of
`volume attach -o json --show-secrets`:
  belayctl node stage vol-1 --staging /mnt/staging --fs-type ext4 \\
    --context-from a.json
  belayctl node publish vol-1 --staging /mnt/staging --target /mnt/pod \\
    --fs-type ext4 --context-from a.json
  belayctl node stats vol-1 --path /mnt/pod
  belayctl node unpublish vol-1 --target /mnt/pod
  belayctl node unstage vol-1 --staging /mnt/staging";

/// The verbs for one service or for one kind of object.
struct Group {
    name: &'static str,
    /// An alias; empty if there is none.
    alias: &'static str,
    about: &'static str,
    example: &'static str,
    verbs: &'static [Verb],
    /// Verbs that have a different name in this group.
    renamed: &'static [(&'static str, &'static Verb)],
}

#[rustfmt::skip] // Keep few lines per group.
static GROUPS: [Group; 5] = [
    Group { name: "volume", alias: "vol", verbs: VOLUME, renamed: &[], example: VOLUME_EXAMPLE,
        about: "Volumes: create, attach, expand, list, health, ... (controller socket)" },
    Group { name: "snapshot", alias: "snap", verbs: SNAPSHOTS, renamed: &[], example: "",
        about: "Snapshots: create, delete, list, get (controller socket)" },
    Group { name: "controller", alias: "", verbs: VOLUME, example: VOLUME_EXAMPLE,
        renamed: &[
            ("snapshot-create", &SNAPSHOTS[0]),
            ("snapshot-delete", &SNAPSHOTS[1]),
            ("snapshot-list", &SNAPSHOTS[2]),
            ("snapshot-get", &SNAPSHOTS[3]),
        ],
        about: "Controller service: the verbs of `volume`, and of `snapshot` as snapshot-VERB" },
    Group { name: "node", alias: "", verbs: NODE, renamed: &[], example: NODE_EXAMPLE,
        about: "Node service: stage, publish, stats, expand, ... (node socket)" },
    Group { name: "identity", alias: "", verbs: IDENTITY, renamed: &[], example: "",
        about: "Identity service: name, capabilities and readiness of the driver" },
];

/// The verb `node jobs`, the only verb that is not a CSI call.
const JOBS: &str = "jobs";

/// A typed command with its flags.
pub(crate) enum Typed {
    Call(&'static Verb, ArgMatches),
    Jobs(Jobs),
}

impl Group {
    fn find(name: &str) -> Option<&'static Self> {
        let mut groups = GROUPS.iter();
        groups.find(|group| group.name == name)
    }

    /// Returns all verbs of this group, each with its name in the group.
    fn verbs(&self) -> impl Iterator<Item = (&'static str, &'static Verb)> {
        let own = self.verbs.iter().map(|verb| (verb.name, verb));
        own.chain(self.renamed.iter().copied())
    }

    fn verb(&self, name: &str) -> Option<&'static Verb> {
        let mut verbs = self.verbs();
        verbs.find(|(its, _)| *its == name).map(|(_, verb)| verb)
    }

    fn command(&self) -> Command {
        let verbs = self.verbs().map(|(name, verb)| {
            let command = verb.command(name);
            match verb.name {
                "create" | "stage" => command.after_help(self.example),
                _ => command,
            }
        });
        let mut command = Command::new(self.name)
            .about(self.about)
            .after_help(self.example)
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands(verbs);
        if !self.alias.is_empty() {
            command = command.visible_alias(self.alias);
        }
        if self.name == "node" {
            let jobs = "List the operations in progress of a Belay program, by its HTTP port";
            command = command.subcommand(Jobs::augment_args(Command::new(JOBS).about(jobs)));
        }
        command
    }
}

impl Subcommand for Typed {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(GROUPS.iter().map(Group::command))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        Group::find(name).is_some()
    }
}

impl FromArgMatches for Typed {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let group = matches.subcommand();
        let verb = group.and_then(|(_, group)| group.subcommand());
        let (Some((group, _)), Some((name, flags))) = (group, verb) else {
            return Err(Error::new(ErrorKind::MissingSubcommand));
        };
        match Group::find(group).and_then(|group| group.verb(name)) {
            Some(verb) => Ok(Self::Call(verb, flags.clone())),
            None if name == JOBS => Ok(Self::Jobs(Jobs::from_arg_matches(flags)?)),
            None => Err(Error::new(ErrorKind::InvalidSubcommand)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Typed {
    /// Makes the call and returns the response. If the call fails and the ID is the name of a
    /// volume, repeats the call with the ID of that volume.
    ///
    /// # Errors
    /// Fails with [`Failure`] if the flags are invalid or the call fails.
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let (verb, flags) = match self {
            Self::Jobs(jobs) => return jobs.run(target).await,
            Self::Call(verb, flags) => (verb, flags),
        };
        let request = verb.request(&flags)?;
        let service = call::service(&call::method(call::own()?, verb.method)?);
        let connection = target.connect(service).await?;
        let mut answer = attempt(&connection, verb, &flags, &request).await;
        if may_be_a_name(verb, &answer) {
            let request = match service {
                "node" => match target.controller_of(&connection).await {
                    Some(controller) => with_id(&controller, &request).await?,
                    None => None,
                },
                _ => with_id(&connection, &request).await?,
            };
            if let Some(request) = request {
                refuse_deletion_by_name(verb, &request)?;
                answer = attempt(&connection, verb, &flags, &request).await;
            }
        }
        let ignores = flags.try_get_one(IGNORE).ok().flatten() == Some(&true);
        let mut answer = match answer {
            Err(Failure::Absent(_)) if ignores => Value::default(),
            answer => answer.map_err(|failure| advised(failure, service, verb.method))?,
        };
        target.visibility.message(&mut answer);
        verb.view.show(&answer)
    }
}

/// Refuses to delete a volume by its name: if the command is repeated, the name may belong to a
/// volume of another cluster in the same account.
///
/// # Errors
/// Fails with the volume's ID if the verb is `delete`.
fn refuse_deletion_by_name(verb: &Verb, request: &Value) -> Result<(), Failure> {
    match verb.method {
        "DeleteVolume" => Err(Failure::Usage(format!(
            "this is the name of volume {}; nothing was deleted; delete it by its ID",
            request["volume_id"].as_str().unwrap_or_default()
        ))),
        _ => Ok(()),
    }
}

/// Makes the call of a verb.
///
/// # Errors
/// Fails if the call fails, if the object does not exist, or if an expansion would shrink a volume.
async fn attempt(
    on: &Connection,
    verb: &Verb,
    flags: &ArgMatches,
    request: &Value,
) -> Result<Value, Failure> {
    let before = Before::look_up(on, verb.method, request).await;
    before.refuse_shrinking(request)?;
    let has = |name: &&str| matches!(flags.try_contains_id(name), Ok(true));
    let answer = match ONE_PAGE.iter().any(has) {
        true => on.call(verb.method, request.clone()).await?,
        false => all_pages(on, verb.method, request.clone()).await?,
    };
    // Make the call even if the object does not exist: the call may complete the work of an earlier
    // call.
    before.refuse_absent(request)?;
    Ok(answer)
}

/// Adds the remedy to the error of a controller that has no such volume or snapshot.
fn advised(failure: Failure, service: &str, step: &'static str) -> Failure {
    match failure {
        Failure::Status(status) if service == "controller" && status.code() == Code::NotFound => {
            let advice = match status.message().split_once(' ') {
                Some(("volume", _)) => "; `belayctl volume list` shows the volumes",
                Some(("snapshot", _)) => "; `belayctl snapshot list` shows the snapshots",
                _ => return Failure::Status(status),
            };
            let advice = advice.to_owned();
            let cause = Box::new(Failure::Status(status));
            Failure::Step {
                step,
                cause,
                advice,
            }
        }
        failure => failure,
    }
}

/// Whether a call may have had this result because the request has a volume's name in place of the
/// ID.
fn may_be_a_name(verb: &Verb, answer: &Result<Value, Failure>) -> bool {
    match answer {
        Ok(answer) => verb.method == "ListSnapshots" && view::list(answer, "/entries").is_empty(),
        Err(Failure::Absent(_)) => true,
        Err(Failure::Status(status)) => matches!(
            status.code(),
            Code::NotFound | Code::InvalidArgument | Code::FailedPrecondition
        ),
        Err(_) => false,
    }
}

/// Makes a call, and returns a response with the entries of all pages. A response that is not a
/// list is returned unchanged.
///
/// # Errors
/// Fails if a page cannot be read.
async fn all_pages(on: &Connection, method: &str, request: Value) -> Result<Value, Failure> {
    let page = async |token: String| {
        let mut request = request.clone();
        if !token.is_empty() {
            request["starting_token"] = token.into();
        }
        on.call(method, request).await
    };
    joined(page).await
}

/// Requests pages until the last one, and returns a response with the entries of all pages.
///
/// # Errors
/// Fails if a page cannot be read. Also fails if a page has its own token as the token of the next
/// page, because the list would never end.
async fn joined(
    mut page: impl AsyncFnMut(String) -> Result<Value, Failure>,
) -> Result<Value, Failure> {
    let mut token = String::new();
    let mut entries = Vec::new();
    loop {
        let mut answer = page(token.clone()).await?;
        let next = answer["next_token"].as_str().unwrap_or_default().to_owned();
        if next.is_empty() && token.is_empty() {
            return Ok(answer);
        }
        if let Value::Array(more) = answer["entries"].take() {
            entries.extend(more);
        }
        if next.is_empty() {
            return Ok(serde_json::json!({ "entries": entries }));
        }
        if next == token {
            return Err(Failure::Answer("names the same page as the next one"));
        }
        token = next;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use belay_proto::csi::v1::volume_health::VolumeHealthEntry;
    use belay_proto::csi::v1::{
        GetCapacityResponse, GetSnapshotResponse, NodeGetVolumeHealthResponse, ProbeResponse,
        Snapshot, VolumeHealth, VolumeHealthErrorType,
    };
    use prost::Message;
    use prost_reflect::DynamicMessage;
    use serde_json::json;

    use super::*;
    use crate::call::{Call, method, options, own};
    use crate::render::Output;

    /// Returns the request for a command line such as `volume get v`.
    fn request(line: &str) -> Value {
        let command = Typed::augment_subcommands(Command::new("belayctl"));
        let words = std::iter::once("belayctl").chain(line.split(' '));
        let matches = command.try_get_matches_from(words).unwrap();
        let Typed::Call(verb, flags) = Typed::from_arg_matches(&matches).unwrap() else {
            panic!("{line} is no call")
        };
        let request = verb.request(&flags).unwrap();
        let method = method(own().unwrap(), verb.method).unwrap();
        Call::new(method, request.clone()).unwrap_or_else(|error| panic!("{line}: {error}"));
        request
    }

    /// Command lines, each with a JSON pointer into its request, and the value at that pointer.
    #[rustfmt::skip]
    const REQUESTS: &[(&str, &str, &str)] = &[
        ("volume create a --size 1GiB", "/capacity_range", r#"{"required_bytes": 1073741824}"#),
        ("vol create a --from-snapshot s", "/volume_content_source",
            r#"{"snapshot": {"snapshot_id": "s"}}"#),
        ("volume create a --from-volume v", "/volume_content_source",
            r#"{"volume": {"volume_id": "v"}}"#),
        ("volume create a --topology zone=a --topology rack=7",
            "/accessibility_requirements/preferred/0/segments", r#"{"zone": "a", "rack": "7"}"#),
        ("controller create a --parameter k=v", "/parameters", r#"{"k": "v"}"#),
        ("controller create a --mutable-parameter k=v", "/mutable_parameters", r#"{"k": "v"}"#),
        ("volume create a --block --mode MULTI_NODE_MULTI_WRITER", "/volume_capabilities",
            r#"[{"block": {}, "access_mode": {"mode": "MULTI_NODE_MULTI_WRITER"}}]"#),
        ("volume rm v", "/volume_id", r#""v""#),
        ("controller publish v --node-id n --readonly", "/readonly", r#"true"#),
        ("volume attach v --node-id n --volume-context a=b", "/volume_context", r#"{"a": "b"}"#),
        ("controller unpublish v", "", r#"{"volume_id": "v", "secrets": {}}"#),
        ("volume validate v --fs-type xfs", "/volume_capabilities/0/mount/fs_type", r#""xfs""#),
        ("volume ls --max-entries 1", "", r#"{"max_entries": 1}"#),
        ("volume get v", "", r#"{"volume_id": "v"}"#),
        ("volume expand v --size 5 --limit 9", "/capacity_range",
            r#"{"required_bytes": 5, "limit_bytes": 9}"#),
        ("volume expand v --size 5 --fs-type xfs", "/volume_capability/mount/fs_type", r#""xfs""#),
        ("volume modify v --parameter a=b", "/mutable_parameters", r#"{"a": "b"}"#),
        ("volume health v", "/volume_id", r#""v""#),
        ("volume unhealthy --page-size 2", "/max_entries", r#"2"#),
        ("volume capacity --topology zone=a", "/accessible_topology",
            r#"{"segments": {"zone": "a"}}"#),
        ("volume capabilities", "", r#"{}"#),
        ("snapshot create s v", "/source_volume_id", r#""v""#),
        ("controller snapshot-delete s", "/snapshot_id", r#""s""#),
        ("snap list --volume-id v", "/source_volume_id", r#""v""#),
        ("controller snapshot-get s", "/snapshot_id", r#""s""#),
        ("node stage v --staging /s --context a=b", "/publish_context", r#"{"a": "b"}"#),
        ("node publish v --target /t --mount-flag ro", "/volume_capability/mount/mount_flags",
            r#"["ro"]"#),
        ("node unpublish v --target /t", "/target_path", r#""/t""#),
        ("node unstage v --staging /s", "/staging_target_path", r#""/s""#),
        ("node stats v --path /t", "/volume_path", r#""/t""#),
        ("node health v --target /t", "/volume_publish_path", r#""/t""#),
        ("node storage-health", "", r#"{"secrets": {}}"#),
        ("node expand v --path /t", "",
            r#"{"volume_id": "v", "volume_path": "/t", "secrets": {}}"#),
        ("node info", "", r#"{}"#),
        ("node capabilities", "", r#"{}"#),
        ("identity info", "", r#"{}"#),
        ("identity capabilities", "", r#"{}"#),
        ("identity probe", "", r#"{}"#),
    ];

    #[test]
    fn every_verb_fills_in_the_request_of_its_method() {
        for (line, pointer, expected) in REQUESTS {
            let request = request(line);
            let expected: Value = serde_json::from_str(expected).unwrap();
            assert_eq!(
                request.pointer(pointer),
                Some(&expected),
                "{line}: {request}"
            );
        }
    }

    /// Returns the text that the verb `name` prints for the response `message` in the wide format.
    fn table(verbs: &[Verb], name: &str, message: &impl Message) -> String {
        let verb = verbs.iter().find(|verb| verb.name == name).unwrap();
        let output = method(own().unwrap(), verb.method).unwrap().output();
        let message = DynamicMessage::decode(output, message.encode_to_vec().as_slice()).unwrap();
        let answer = crate::call::to_json(&message, &options()).unwrap();
        verb.view.show(&answer).unwrap().text(Output::Wide)
    }

    #[test]
    fn messages_are_shown_by_the_names_and_forms_of_the_specification() {
        let cut = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let snapshot = Some(Snapshot {
            creation_time: Some(cut.into()),
            size_bytes: 5,
            ..Default::default()
        });
        let shown = table(SNAPSHOTS, "get", &GetSnapshotResponse { snapshot });
        assert!(shown.contains("2001-09-09T01:46:40Z"), "{shown}");
        assert!(
            shown.contains("5 (5B)") && shown.contains("ready_to_use       no"),
            "{shown}"
        );
        let capacity = GetCapacityResponse {
            available_capacity: 7,
            maximum_volume_size: Some(3),
            minimum_volume_size: None,
        };
        let shown = table(VOLUME, "capacity", &capacity);
        assert!(shown.contains("maximum_volume_size  3 (3B)"), "{shown}");
        let probe = ProbeResponse { ready: Some(false) };
        let shown = table(IDENTITY, "probe", &probe);
        assert!(
            shown.starts_with("ready  no\nhint   `belayctl status`"),
            "{shown}"
        );
        let entry = |status| VolumeHealthEntry {
            status,
            reason: "Why".to_owned(),
            message: "m".to_owned(),
        };
        let lost = VolumeHealthErrorType::DataLoss.into();
        let health = NodeGetVolumeHealthResponse {
            volume_health: Some(VolumeHealth {
                volume_id: "v".to_owned(),
                health_statuses: vec![entry(lost), entry(99)],
            }),
        };
        let shown = table(NODE, "health", &health);
        assert!(
            shown.contains("v          DATA_LOSS") && shown.contains(" 99 "),
            "{shown}"
        );
    }

    #[test]
    fn the_help_of_a_verb_names_its_method() {
        for (name, verb) in GROUPS.iter().flat_map(Group::verbs) {
            let about = verb.command(name).get_about().unwrap().to_string();
            assert!(about.contains(verb.method), "{name}: {about}");
        }
    }

    /// Reads all pages; `next` returns the token of the page after the page with the given token.
    async fn listed(next: impl Fn(&str) -> &'static str) -> Result<Value, Failure> {
        joined(async |token: String| Ok(json!({"next_token": next(&token), "entries": [token]})))
            .await
    }

    #[tokio::test]
    async fn all_pages_are_read_in_their_order() {
        let next = |token: &str| match token {
            "" => "2",
            "2" => "3",
            _ => "",
        };
        let all = listed(next).await.unwrap();
        assert_eq!(all, json!({"entries": ["", "2", "3"]}));
    }

    #[tokio::test]
    async fn a_page_that_follows_itself_is_refused() {
        assert!(matches!(listed(|_| "2").await, Err(Failure::Answer(_))));
    }
}
