//! The meaning of a refusal by the API server. Makes no calls.

use super::API_VERSION;
use crate::http::Answer;
use belay_server::call::{Failure, Kind};
use http::StatusCode;
use serde::Deserialize;

/// The start of the reason in the message for an unknown field.
const STRICT: &str = "strict decoding error";

/// The meaning of a refusal.
pub(super) enum Refusal {
    /// The named object does not exist.
    Missing,
    /// The name is taken, or the object has changed or was replaced.
    Conflict,
    /// The server no longer has the requested version.
    Expired,
    /// Another reason.
    Failed(Failure),
}

/// The body of a refusal: a `Status` of Kubernetes' API.
#[derive(Deserialize)]
struct Status {
    kind: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Details,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
    kind: String,
}

impl Refusal {
    /// Returns the meaning of a refused call for the kind with this plural. `name` is the name of
    /// the call's object; `None` if the call is for all objects.
    ///
    /// The response is also 404 if the definition of the kind is missing. A missing kind says
    /// nothing about the object, so [`Refusal::Missing`] is not returned for it.
    pub(super) fn of(answer: &Answer, plural: &str, name: Option<&str>) -> Self {
        let status = answer.json::<Status>().ok();
        let status = status.filter(|status| status.kind == "Status");
        let is = |reason: &str| {
            status
                .as_ref()
                .is_some_and(|status| status.reason == reason)
        };
        let is_object = |status: &Status| {
            status.details.kind == plural && name == Some(status.details.name.as_str())
        };
        match answer.status {
            StatusCode::NOT_FOUND => match status.as_ref().is_some_and(is_object) {
                true => Self::Missing,
                false => Self::Failed(unknown_kind(answer)),
            },
            StatusCode::CONFLICT if is("AlreadyExists") || is("Conflict") => Self::Conflict,
            StatusCode::GONE => Self::Expired,
            code => Self::Failed(failure(answer, code, status.as_ref())),
        }
    }

    /// Returns the failure of a call for which neither a conflict nor a missing or expired object
    /// is expected.
    pub(super) fn into_failure(self, answer: &Answer) -> Failure {
        match self {
            Self::Failed(failure) => failure,
            Self::Missing | Self::Conflict | Self::Expired => {
                Failure::new(Kind::Unreachable, answer.refusal())
            }
        }
    }
}

fn failure(answer: &Answer, code: StatusCode, status: Option<&Status>) -> Failure {
    let Some(status) = status else {
        return answer.foreign("the API server");
    };
    let refused = |kind| Failure::new(kind, answer.refusal());
    match code.as_u16() {
        401 => refused(Kind::Unauthenticated),
        403 => refused(Kind::Denied),
        // The server does not know a field, or an admission policy refuses the object.
        400 | 422 => {
            let refusal = answer.refusal_for(&answer.quoted(reason(&status.message)));
            Failure::precondition(match is_unknown_field(&status.message) {
                true => format!(
                    "{refusal}; if the chart was upgraded, check that its definitions of \
                     {API_VERSION} were, too"
                ),
                false => refusal,
            })
        }
        // The server has failed, and may have made the change before it failed.
        500.. => refused(Kind::Unreachable).may_be_running(),
        _ => refused(Kind::Unreachable),
    }
}

fn is_unknown_field(message: &str) -> bool {
    message.contains(STRICT) || message.contains("unknown field")
}

/// Returns the reason in the message for an unknown field. In the response to a patch, the message
/// quotes the whole object before the reason.
fn reason(message: &str) -> &str {
    let at = message.rfind(STRICT);
    at.and_then(|at| message.get(at..)).unwrap_or(message)
}

fn unknown_kind(answer: &Answer) -> Failure {
    let message = format!(
        "{}: the API server does not know the kind (install the chart's definitions), or the \
         address is not an API server",
        answer.refusal()
    );
    Failure::new(Kind::Unreachable, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Certainty;

    const MISSING: &str = r#"{"kind": "Status", "reason": "NotFound",
        "details": {"name": "pvc-1", "group": "belay.dev", "kind": "localvolumes"}}"#;

    fn refusal(code: u16, body: &str) -> Refusal {
        Refusal::of(&Answer::example(code, body), "localvolumes", Some("pvc-1"))
    }

    #[test]
    fn only_a_status_about_the_object_itself_means_that_it_is_missing() {
        assert!(matches!(refusal(404, MISSING), Refusal::Missing));
        for body in [
            "404 page not found",
            "{}",
            &MISSING.replace("pvc-1", "pvc-2"),
            &MISSING.replace("localvolumes", "localdisks"),
            &MISSING.replace("Status", "Other"),
        ] {
            let Refusal::Failed(failure) = refusal(404, body) else {
                panic!("{body}");
            };
            assert_eq!(failure.kind, Kind::Unreachable, "{body}");
        }
    }

    #[test]
    fn only_an_unknown_field_is_a_reason_to_check_the_definitions() {
        for (words, is_unknown) in [
            (r#"strict decoding error: unknown field "spec.a""#, true),
            (r#"unknown field "spec.a""#, true),
            ("spec.bytes: Invalid value: 0", false),
        ] {
            let message = words.replace('"', "\\\"");
            let body = format!(r#"{{"kind": "Status", "message": "{message}"}}"#);
            let Refusal::Failed(failure) = refusal(422, &body) else {
                panic!("{words}");
            };
            assert!(failure.message.contains(words), "{failure}");
            let is_advice = failure.message.contains("its definitions");
            assert_eq!(is_advice, is_unknown, "{failure}");
        }
    }

    #[test]
    fn each_refusal_has_its_kind_and_only_errors_of_the_server_leave_the_result_open() {
        let status = |reason: &str| format!(r#"{{"kind": "Status", "reason": "{reason}"}}"#);
        assert!(matches!(
            refusal(409, &status("Conflict")),
            Refusal::Conflict
        ));
        assert!(matches!(
            refusal(409, &status("AlreadyExists")),
            Refusal::Conflict
        ));
        assert!(matches!(refusal(410, &status("Expired")), Refusal::Expired));
        for (code, kind, certainty) in [
            (400, Kind::Precondition, Certainty::NothingHappened),
            (401, Kind::Unauthenticated, Certainty::NothingHappened),
            (403, Kind::Denied, Certainty::NothingHappened),
            (405, Kind::Unreachable, Certainty::NothingHappened),
            (409, Kind::Unreachable, Certainty::NothingHappened),
            (422, Kind::Precondition, Certainty::NothingHappened),
            (500, Kind::Unreachable, Certainty::MayBeRunning),
            (504, Kind::Unreachable, Certainty::MayBeRunning),
        ] {
            let Refusal::Failed(failure) = refusal(code, &status("Other")) else {
                panic!("{code}");
            };
            assert_eq!(
                (failure.kind, failure.certainty),
                (kind, certainty),
                "{code}"
            );
        }
        let Refusal::Failed(failure) = refusal(403, "<html>blocked") else {
            panic!("a page of a proxy");
        };
        assert_eq!(failure.certainty, Certainty::MayBeRunning);
    }
}
