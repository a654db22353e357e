//! The messages of Civo's API, and their conversion to the types of the backend. Members may be
//! null or absent. Civo does not document its HTTP statuses, so the member `code` determines the
//! meaning of an error.

use crate::backend::cloud::ids;
use crate::http::Answer;
use belay_server::call::{Failure, Kind};
use belay_server::request::{SnapshotId, VolumeId};
use http::StatusCode;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// The `code` of an error for a name that exists.
pub(super) const DUPLICATE_NAME: &str = "database_volume_duplicate_name";
/// The `result` of an error for an invalid key.
const AUTHENTICATION: &str = "requires_authentication";
/// The `result` in the response to an accepted change.
const SUCCESS: &str = "success";

#[derive(Clone, Debug, Deserialize)]
pub(super) struct CivoVolume {
    pub(super) id: String,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    instance_id: Option<String>,
    #[serde(default)]
    cluster_id: Option<String>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    size_gb: Option<u64>,
}

/// The status of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The volume is not attached to any instance.
    Available,
    Attached,
    Attaching,
    Detaching,
    Deleting,
    /// The volume is permanently unusable. Contains the status word of the API.
    Failed(String),
    /// Any other status word, such as `creating` or `resizing`. Civo does not document the possible
    /// words, so the driver waits until the status changes.
    Other(String),
}

impl CivoVolume {
    pub(super) fn gib(&self) -> u64 {
        self.size_gb.unwrap_or(0)
    }

    /// Returns the ID of the instance to which the volume is attached, which the API reports until
    /// the volume is detached. A detached volume has `""`, null, or in old responses the text
    /// `null`.
    pub(super) fn instance(&self) -> Option<&str> {
        let id = self.instance_id.as_deref();
        id.filter(|id| !matches!(*id, "" | "null"))
    }

    /// Returns the ID of the volume's cluster, if it has one.
    pub(super) fn cluster(&self) -> Option<&str> {
        self.cluster_id.as_deref().filter(|id| !id.is_empty())
    }

    pub(super) fn status(&self) -> Status {
        match self.status.as_deref().unwrap_or_default() {
            "available" => Status::Available,
            // The instance appears in a later response of the API.
            "attached" if self.instance().is_none() => Status::Other("attached".to_owned()),
            "attached" => Status::Attached,
            "attaching" => Status::Attaching,
            "detaching" => Status::Detaching,
            "deleting" => Status::Deleting,
            "" => Status::Other("creating".to_owned()),
            word if is_failure(word) => Status::Failed(word.to_owned()),
            other => Status::Other(other.to_owned()),
        }
    }
}

/// Whether a status word is `failed`, `error`, `error_deleting` or similar.
fn is_failure(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    word == "failed" || word.starts_with("error")
}

/// The response to a create request. Other members may be null, and the name may be empty.
#[derive(Debug, Deserialize)]
pub(super) struct Made {
    pub(super) id: String,
    #[serde(default)]
    name: Option<String>,
}

impl Made {
    /// Returns the name, if the response contains it.
    pub(super) fn name(self) -> Option<String> {
        self.name.filter(|name| !name.is_empty())
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct CivoSnapshot {
    pub(super) snapshot_id: String,
    #[serde(default)]
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) volume_id: Option<String>,
    #[serde(default)]
    source_volume_name: Option<String>,
    #[serde(default)]
    restore_size: Option<u64>,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    pub(super) creation_time: Option<String>,
}

impl CivoSnapshot {
    /// Returns the snapshot's ID and, if known, the ID of its source volume.
    ///
    /// # Errors
    /// Returns the errors of [`ids::snapshot`].
    pub(super) fn ids(&self) -> Result<(SnapshotId, Option<VolumeId>), Failure> {
        let of = self.volume_id.as_deref().filter(|id| !id.is_empty());
        let of = of.map(|id| ids::volume(id, ids::is_uuid)).transpose()?;
        Ok((ids::snapshot(&self.snapshot_id, is_word)?, of))
    }

    /// Returns the size of the volume in GiB, if `restore_size` is a plausible number of GiB. A
    /// larger number may be a size in bytes.
    pub(super) fn gib(&self) -> Option<u64> {
        const NO_GIB: u64 = 1 << 20;
        self.restore_size.filter(|size| (1..NO_GIB).contains(size))
    }

    /// Returns the name that the source volume had, which records the
    /// [`Promise`](super::size::Promise).
    pub(super) fn volume_name(&self) -> Option<&str> {
        let name = self.source_volume_name.as_deref();
        name.filter(|name| !name.is_empty())
    }

    fn state(&self) -> &str {
        self.state.as_deref().unwrap_or_default()
    }

    pub(super) fn is_ready(&self) -> bool {
        let mut words = ["ready", "available"].into_iter();
        words.any(|word| self.state().eq_ignore_ascii_case(word))
    }

    /// Returns the status word of a snapshot that will never become ready; `None` for any other
    /// snapshot.
    pub(super) fn damage(&self) -> Option<&str> {
        Some(self.state()).filter(|word| is_failure(word))
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Cluster {
    #[serde(default)]
    pub(super) volume_type: Option<String>,
}

/// A page of the account's clusters in one region.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Clusters {
    #[serde(default)]
    pub(super) pages: Option<u64>,
    #[serde(default)]
    pub(super) items: Option<Vec<ClusterId>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ClusterId {
    pub(super) id: String,
    /// The instances of the cluster; the list may be incomplete.
    #[serde(default)]
    instances: Option<Vec<Member>>,
}

/// An instance in the list of clusters.
#[derive(Debug, Deserialize)]
pub(super) struct Member {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    hostname: Option<String>,
}

impl ClusterId {
    /// Returns the instance with this ID, if the list of clusters contains the instance for this
    /// cluster.
    pub(super) fn member(&self, instance: &str) -> Option<&Member> {
        let mut all = self.instances.iter().flatten();
        all.find(|it| it.id.as_deref() == Some(instance))
    }
}

impl Member {
    /// Returns the host name, if the response contains it.
    pub(super) fn hostname(&self) -> Option<&str> {
        self.hostname.as_deref().filter(|name| !name.is_empty())
    }
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Instance {
    pub(super) id: String,
    #[serde(default)]
    pub(super) hostname: Option<String>,
}

/// The quota of the account for all regions. Civo updates the quota with a delay of minutes.
#[derive(Debug, Deserialize)]
pub(super) struct Quota {
    disk_gb_limit: u64,
    disk_gb_usage: u64,
    disk_volume_count_limit: u64,
    disk_volume_count_usage: u64,
}

impl Quota {
    /// Returns the space that is free for new volumes, in GiB.
    pub(super) fn free_gib(&self) -> u64 {
        match self.disk_volume_count_usage < self.disk_volume_count_limit {
            true => self.disk_gb_limit.saturating_sub(self.disk_gb_usage),
            false => 0,
        }
    }
}

/// Returns the `code` of an error; empty if the response has no code.
pub(super) fn code(answer: &Answer) -> String {
    answer.member("/code").unwrap_or_default()
}

/// Whether the response means that Civo refuses the API key.
pub(super) fn refuses_key(answer: &Answer) -> bool {
    answer.status == StatusCode::UNAUTHORIZED && !answer.is_refusal_of_proxy()
        || !answer.status.is_success()
            && answer
                .member("/result")
                .is_ok_and(|result: String| result == AUTHENTICATION)
}

/// The kinds of objects that Civo can report as missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Object {
    Volume,
    Snapshot,
    Instance,
    Cluster,
}

impl Object {
    /// Returns the word in an error code that stands for the object, and a word that must not be in
    /// the code.
    fn words(self) -> (&'static str, Option<&'static str>) {
        match self {
            // Exclude codes about a snapshot of a volume.
            Object::Volume => ("volume", Some("snapshot")),
            Object::Snapshot => ("snapshot", None),
            Object::Instance => ("instance", None),
            Object::Cluster => ("cluster", None),
        }
    }
}

/// Whether the response means that an object of this kind does not exist. Civo also reports missing
/// regions, networks and accounts.
pub(super) fn has_no(object: Object, answer: &Answer) -> bool {
    let (word, other) = object.words();
    let code = code(answer);
    let lower = code.to_ascii_lowercase();
    let is_other = other.is_some_and(|other| lower.contains(other));
    kind(&code) == Kind::NotFound && lower.contains(word) && !is_other
}

/// Returns the object in a response; `None` only if Civo itself reports that the object does not
/// exist.
///
/// # Errors
/// Returns the errors of [`refused`].
pub(super) fn found<T: DeserializeOwned>(
    object: Object,
    answer: &Answer,
) -> Result<Option<T>, Failure> {
    match answer.status.is_success() {
        true => answer.json().map(Some),
        false if has_no(object, answer) => Ok(None),
        false => Err(refused(answer)),
    }
}

/// Checks that Civo has accepted a change. A response with a successful HTTP status may still
/// contain another `result`.
///
/// # Errors
/// Returns the errors of [`refused`].
pub(super) fn accepted(answer: &Answer) -> Result<(), Failure> {
    if !answer.status.is_success() {
        return Err(refused(answer));
    }
    match answer.member::<String>("/result") {
        Ok(result) if result != SUCCESS && !result.is_empty() => {
            let result = answer.quoted(&result);
            let message = format!("{}: the result is {result:?}", answer.refusal());
            Err(Failure::new(kind(&code(answer)), message).may_be_running())
        }
        _ => Ok(()),
    }
}

/// Converts an error response to a failure. After a status 5xx, Civo may have begun the change.
pub(super) fn refused(answer: &Answer) -> Failure {
    if answer.is_refusal_of_proxy() {
        return answer.foreign("Civo");
    }
    let code = code(answer);
    let words = answer.refusal();
    let words = match code.is_empty() {
        true => words,
        false => format!("{words} ({})", answer.quoted(&code)),
    };
    if refuses_key(answer) {
        let message = format!("{words}; check CIVO_API_KEY, or the file api-key of the Secret");
        return Failure::new(Kind::Unauthenticated, message);
    }
    let kind = match (kind(&code), answer.status) {
        // Civo's own errors for missing objects have a code, so this response is from a proxy.
        (Kind::Precondition, StatusCode::NOT_FOUND) if code.is_empty() => {
            return answer.foreign("Civo");
        }
        (Kind::Precondition, StatusCode::FORBIDDEN) => Kind::Denied,
        (Kind::Precondition, StatusCode::TOO_MANY_REQUESTS) => Kind::Busy,
        (Kind::Precondition, status) if status.is_server_error() => Kind::Unreachable,
        (kind, _) => kind,
    };
    let failure = Failure::new(kind, words);
    match answer.status.is_server_error() {
        true => failure.may_be_running(),
        false => failure,
    }
}

/// Returns the meaning of a code, whatever the HTTP status is. Returns `Precondition` for an
/// unknown code.
fn kind(code: &str) -> Kind {
    let lower = code.to_ascii_lowercase();
    let has = |part: &str| lower.contains(part);
    match code {
        "quota_limit_reached" | "out_of_capacity" => Kind::Quota,
        "volume_invalid_size" | "parameter_volume_size_incorrect" | "parameter_size_missing" => {
            Kind::Range
        }
        "database_quota_lock_failed" | "database_snapshot_create_already_in_process" => Kind::Busy,
        // The caller has read the volume before, so this error means that the read was stale.
        "database_volume_cannot_multiple_attach"
        | "database_volume_not_attached"
        | "parameter_volume_size_must_increase" => Kind::Busy,
        "database_instance_find" | "database_volume_id_invalid" => Kind::NotFound,
        "region_unavailable" => Kind::Unreachable,
        _ if has("snapshot") && has("limit") => Kind::Quota,
        _ if has("not_found") || has("notfound") => Kind::NotFound,
        _ => Kind::Precondition,
    }
}

/// Whether the text may be an ID of a snapshot, cluster or instance, whose form Civo does not
/// document.
pub(super) fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Certainty;
    use serde_json::{Value, json};

    fn volume(more: Value) -> CivoVolume {
        let mut body = json!({"id": "v-1", "name": "pvc-1", "size_gb": 10});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn a_free_volume_has_no_instance_in_any_form_of_the_answer() {
        for free in [json!(""), Value::Null, json!("null")] {
            assert_eq!(volume(json!({"instance_id": free})).instance(), None);
        }
        let volume = volume(json!({"instance_id": "i-1"}));
        assert_eq!(volume.instance(), Some("i-1"));
    }

    #[test]
    fn members_that_are_null_or_absent_are_not_needed() {
        let bare: CivoVolume = serde_json::from_value(json!({
            "id": "v-1", "name": null, "status": null, "size_gb": null, "cluster_id": null,
        }))
        .unwrap();
        assert_eq!(bare.status(), Status::Other("creating".to_owned()));
        assert_eq!(
            (bare.gib(), bare.cluster(), bare.instance()),
            (0, None, None)
        );
    }

    #[test]
    fn only_a_volume_with_its_instance_is_attached_and_an_unknown_word_is_waited_for() {
        let status = |word: &str, instance: &str| {
            volume(json!({"status": word, "instance_id": instance})).status()
        };
        let other = |word: &str| Status::Other(word.to_owned());
        assert_eq!(status("attached", "i-1"), Status::Attached);
        assert_eq!(status("attached", ""), other("attached"));
        assert_eq!(status("available", "i-1"), Status::Available);
        for word in ["creating", "resizing", "perplexed", "terror"] {
            assert_eq!(status(word, ""), other(word));
        }
        for word in ["failed", "Error", "error_deleting"] {
            assert_eq!(status(word, "i-1"), Status::Failed(word.to_owned()));
        }
    }

    #[test]
    fn a_snapshot_with_the_id_of_no_object_is_refused() {
        let volume = "7f8b1c2d-1111-4222-8333-444455556666";
        let snapshot = |id: &str, of: Value| -> CivoSnapshot {
            serde_json::from_value(json!({"snapshot_id": id, "volume_id": of})).unwrap()
        };
        for (of, is_of_one) in [
            (json!(volume), true),
            (json!(""), false),
            (Value::Null, false),
        ] {
            let (id, source) = snapshot("snap-1", of).ids().unwrap();
            assert_eq!((id.as_str(), source.is_some()), ("snap-1", is_of_one));
        }
        for (id, of) in [("../../quota", volume), ("snap-1", "../../quota")] {
            snapshot(id, json!(of)).ids().unwrap_err();
        }
    }

    #[test]
    fn a_restore_size_counts_only_as_gib_and_states_have_no_case() {
        let snapshot = |size: Value, state: &str| -> CivoSnapshot {
            let body = json!({"snapshot_id": "s-1", "restore_size": size, "state": state});
            serde_json::from_value(body).unwrap()
        };
        assert_eq!(snapshot(json!(20), "Ready").gib(), Some(20));
        for none in [json!(0), Value::Null, json!(21_474_836_480_u64)] {
            assert_eq!(snapshot(none, "Ready").gib(), None);
        }
        for (state, is_ready, damage) in [
            ("Ready", true, None),
            ("available", true, None),
            ("AVAILABLE", true, None),
            ("creating", false, None),
            ("", false, None),
            ("Failed", false, Some("Failed")),
            ("error", false, Some("error")),
        ] {
            let seen = snapshot(json!(1), state);
            assert_eq!(
                (seen.is_ready(), seen.damage()),
                (is_ready, damage),
                "{state}"
            );
        }
    }

    #[test]
    fn a_quota_without_a_volume_left_has_no_room() {
        let quota = |volumes| Quota {
            disk_gb_limit: 100,
            disk_gb_usage: 30,
            disk_volume_count_limit: 16,
            disk_volume_count_usage: volumes,
        };
        assert_eq!(quota(15).free_gib(), 70);
        assert_eq!(quota(16).free_gib(), 0);
        assert_eq!(
            Quota {
                disk_gb_usage: 120,
                ..quota(1)
            }
            .free_gib(),
            0
        );
    }

    #[test]
    fn a_code_decides_and_an_unknown_one_is_a_refusal() {
        for (code, expected) in [
            ("quota_limit_reached", Kind::Quota),
            ("out_of_capacity", Kind::Quota),
            ("DatabaseVolumeSnapshotLimitExceeded", Kind::Quota),
            ("volume_invalid_size", Kind::Range),
            ("parameter_volume_size_must_increase", Kind::Busy),
            ("database_volume_not_found", Kind::NotFound),
            ("database_snapshot_not_found", Kind::NotFound),
            ("DatabaseVolumeSnapshotNotFound", Kind::NotFound),
            ("database_instance_find", Kind::NotFound),
            ("database_quota_lock_failed", Kind::Busy),
            (
                "database_volume_still_attached_cannot_resize",
                Kind::Precondition,
            ),
            ("database_volume_cannot_multiple_attach", Kind::Busy),
            ("region_unavailable", Kind::Unreachable),
            ("database_snapshot_limit", Kind::Quota),
            ("database_limit", Kind::Precondition),
            ("database_snapshot", Kind::Precondition),
            ("databaseVolumeNotFound", Kind::NotFound),
            ("never_heard_of", Kind::Precondition),
            ("", Kind::Precondition),
        ] {
            assert_eq!(kind(code), expected, "{code}");
        }
    }
    fn answer(status: u16, code: &str, result: Option<&str>) -> Answer {
        let body = json!({ "code": code, "reason": "the reason", "result": result });
        Answer::example(status, &body.to_string())
    }

    #[test]
    fn the_code_decides_and_the_status_where_the_code_says_nothing() {
        for (status, code, kind) in [
            (404, "", Kind::Unreachable),
            (404, "never_heard_of", Kind::Precondition),
            (404, "database_volume_not_found", Kind::NotFound),
            (403, "", Kind::Denied),
            (429, "", Kind::Busy),
            (429, "quota_limit_reached", Kind::Quota),
            (400, "", Kind::Precondition),
            (500, "", Kind::Unreachable),
            (500, "quota_limit_reached", Kind::Quota),
            (401, "", Kind::Unauthenticated),
        ] {
            let failure = refused(&answer(status, code, None));
            assert_eq!(failure.kind, kind, "{status} {failure}");
            let certainty = match (status, code) {
                (500, _) | (404, "") => Certainty::MayBeRunning,
                _ => Certainty::NothingHappened,
            };
            assert_eq!(failure.certainty, certainty, "{failure}");
            assert!(failure.message.contains(": the reason"), "{failure}");
            let shown = format!(" ({code})");
            assert_eq!(
                failure.message.contains(&shown),
                !code.is_empty(),
                "{failure}"
            );
            let is_of_key = failure.message.contains("check CIVO_API_KEY");
            assert_eq!(is_of_key, status == 401, "{failure}");
        }
    }

    #[test]
    fn a_page_is_no_word_of_civo_whatever_its_status() {
        for status in [400, 401, 403, 409, 413] {
            let page = Answer::example(status, "<html>blocked</html>");
            let failure = refused(&page);
            assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
            let part = "which is not an answer of Civo";
            assert!(failure.message.contains(part), "{failure}");
            assert!(!refuses_key(&page), "{status}");
        }
    }

    #[test]
    fn a_key_is_refused_by_the_status_or_by_the_result_of_a_refusal() {
        for (status, result, is_refused) in [
            (401, None, true),
            (403, Some("requires_authentication"), true),
            (403, Some("success"), false),
            (403, None, false),
            (200, Some("requires_authentication"), false),
        ] {
            let answer = answer(status, "", result);
            assert_eq!(refuses_key(&answer), is_refused, "{status} {result:?}");
        }
    }

    #[test]
    fn an_object_is_missing_only_if_the_code_says_both() {
        use Object::{Cluster, Instance, Snapshot, Volume};
        for (code, missing) in [
            ("database_instance_find", Some(Instance)),
            ("database_Instance_not_found", Some(Instance)),
            ("database_volume_not_found", Some(Volume)),
            ("database_volume_id_invalid", Some(Volume)),
            ("DatabaseVolumeNotFound", Some(Volume)),
            ("database_snapshot_not_found", Some(Snapshot)),
            ("DatabaseVolumeSnapshotNotFound", Some(Snapshot)),
            ("database_kubernetes_cluster_not_found", Some(Cluster)),
            ("database_network_not_found", None),
            ("database_account_not_found", None),
            ("database_instance_broken", None),
            ("database_volume_delete_failed", None),
            ("", None),
        ] {
            for object in [Volume, Snapshot, Instance, Cluster] {
                let is_missing = has_no(object, &answer(404, code, None));
                assert_eq!(is_missing, missing == Some(object), "{code} {object:?}");
            }
        }
        for foreign in ["", "404 page not found", "<html>volume not_found</html>"] {
            assert!(!has_no(Volume, &Answer::example(404, foreign)), "{foreign}");
        }
    }

    #[test]
    fn a_change_is_accepted_if_neither_its_status_nor_its_result_says_otherwise() {
        for result in [Some("success"), Some(""), None] {
            accepted(&answer(202, "", result)).unwrap();
        }
        accepted(&Answer::example(200, "[]")).unwrap();
        let failure = accepted(&answer(202, "quota_limit_reached", Some("no"))).unwrap_err();
        assert_eq!(
            (failure.kind, failure.certainty),
            (Kind::Quota, Certainty::MayBeRunning)
        );
        assert!(
            failure.message.ends_with(": the result is \"no\""),
            "{failure}"
        );
        let failure = accepted(&answer(400, "", Some("success"))).unwrap_err();
        assert_eq!(failure.kind, Kind::Precondition, "{failure}");
    }

    #[test]
    fn a_word_is_no_path() {
        assert!(is_word("7F8b1c2d-1111-4222-8333-444455556666"));
        for path in ["", "..", "a/b", "a%2fb", "a?b", "../instances/1", "\u{e9}"] {
            assert!(!is_word(path), "{path}");
        }
    }
}
