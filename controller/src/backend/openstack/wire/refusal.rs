//! The interpretation of error responses. An object is treated as missing only if its service names
//! the object in the error. A 404 may also come from a proxy, from a wrong endpoint, or from a
//! service without the requested method; such a 404 does not show whether the object exists.

use crate::http::Answer;
use belay_server::call::{Failure, Kind};
use http::StatusCode;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The names of faults in responses of Cinder and Nova (`cinder/api/openstack/wsgi.py`, `Fault`).
const MISSING: &str = "itemNotFound";
const FORBIDDEN: &str = "forbidden";
const OVER_QUOTA: &str = "overLimit";

/// The names of the expected services, for the error of [`Answer::foreign`].
const SERVICES: &str = "Cinder or Nova";
const LOGIN: &str = "Keystone";

/// The body of an error response, such as `{"itemNotFound": {"code": 404, "message": "Volume ID
/// could not be found."}}`. Keystone names the member `error`.
#[derive(Deserialize)]
struct Fault {
    code: u16,
    message: String,
}

/// Returns the name and message of a service's fault. Returns `None` if the response comes from a
/// server other than the service.
fn fault(answer: &Answer) -> Option<(String, String)> {
    let named: BTreeMap<String, Fault> = answer.json().ok()?;
    let (name, fault) = named.into_iter().next()?;
    (fault.code == answer.status.as_u16()).then_some((name, fault.message))
}

/// Whether the response comes from the service itself.
pub(in super::super) fn is_own(answer: &Answer) -> bool {
    fault(answer).is_some()
}

/// Whether the service denies the call to this account.
pub(in super::super) fn is_forbidden(answer: &Answer) -> bool {
    fault(answer).is_some_and(|(name, _)| name == FORBIDDEN)
}

/// Whether the service reports that it has no object with this ID. A service without the requested
/// method returns the same fault, but without the ID.
pub(in super::super) fn is_missing(answer: &Answer, id: &str) -> bool {
    answer.status == StatusCode::NOT_FOUND
        && fault(answer).is_some_and(|(name, message)| name == MISSING && message.contains(id))
}

/// Converts an error response that has no special meaning for the call to an error. After a status
/// 5xx, the service may still be carrying out the call.
pub(in super::super) fn refused(answer: &Answer) -> Failure {
    let kind = match answer.status {
        _ if answer.is_refusal_of_proxy() => return answer.foreign(SERVICES),
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => Kind::Busy,
        // A proxy returns this status if the request is too large. Cinder and Nova return this
        // status if a quota is exceeded (`overLimit`) or if there are too many calls
        // (`overLimitFault`).
        StatusCode::PAYLOAD_TOO_LARGE if is_own(answer) => match fault(answer) {
            Some((name, _)) if name == OVER_QUOTA => Kind::Quota,
            _ => Kind::Busy,
        },
        // Keystone's middleware in the services responds in plain text.
        StatusCode::UNAUTHORIZED => Kind::Unauthenticated,
        status if status.is_server_error() => {
            let failure = Failure::new(Kind::Unreachable, answer.refusal());
            return failure.may_be_running();
        }
        _ if !is_own(answer) => return answer.foreign(SERVICES),
        StatusCode::NOT_FOUND => Kind::NotFound,
        StatusCode::FORBIDDEN => Kind::Denied,
        _ => Kind::Precondition,
    };
    Failure::new(kind, answer.refusal())
}

/// Converts the error response of a call about an object to an error. A 404 does not become
/// `NotFound`, since the service does not report the requested object as missing: a different
/// object, or the method, is missing.
pub(in super::super) fn refused_for(answer: &Answer) -> Failure {
    let failure = refused(answer);
    let kind = match failure.kind {
        Kind::NotFound => Kind::System,
        kind => kind,
    };
    Failure { kind, ..failure }
}

/// Converts the error response of a login to an error, which never means that a volume is missing.
/// The failure is reported as rolled back, since a second login is harmless.
pub(in super::super) fn login_refused(answer: &Answer, is_token: bool) -> Failure {
    let kind = match answer.status {
        _ if answer.is_refusal_of_proxy() => return answer.foreign(LOGIN).rolled_back(),
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => Kind::Busy,
        StatusCode::UNAUTHORIZED => Kind::Unauthenticated,
        // Keystone also returns this status for a login with an expired token.
        StatusCode::NOT_FOUND if is_token && is_own(answer) => Kind::Unauthenticated,
        status if status.is_server_error() => Kind::Unreachable,
        _ if is_own(answer) => Kind::Precondition,
        _ => return answer.foreign(LOGIN).rolled_back(),
    };
    Failure::new(kind, answer.refusal()).rolled_back()
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Certainty;
    use serde_json::json;

    const ID: &str = "7f8b1c2d-1111-4222-8333-444455556666";

    fn own(name: &str, status: u16, message: &str) -> Answer {
        let body = json!({ name: { "code": status, "message": message } });
        Answer::example(status, &body.to_string())
    }

    #[test]
    fn only_the_service_itself_says_by_its_id_that_an_object_is_missing() {
        let volume = format!("Volume {ID} could not be found.");
        assert!(is_missing(&own("itemNotFound", 404, &volume), ID));
        let text = |status, body: &str| Answer::example(status, body);
        let without_code = json!({ "itemNotFound": { "message": volume } }).to_string();
        let other_code = json!({ "itemNotFound": { "code": 400, "message": volume } }).to_string();
        for foreign in [
            text(404, ""),
            text(404, "<html><h1>404 Not Found</h1></html>"),
            text(404, &format!("<html>GET /volumes/{ID}: not found</html>")),
            // Cinder's router sends this response to a wrong path, with and without `Accept`.
            text(404, "404 Not Found\n\nThe resource could not be found.\n"),
            text(
                404,
                r#"{"message": "no", "code": "404 Not Found", "title": "Not Found"}"#,
            ),
            text(
                404,
                r#"{"error": {"code": 404, "message": "no", "title": "Not Found"}}"#,
            ),
            text(404, &without_code),
            text(404, &other_code),
            text(404, "[]"),
            text(404, r#""itemNotFound""#),
            // The service does not have the requested method, or another object is missing.
            own("itemNotFound", 404, "The resource could not be found."),
            own("itemNotFound", 404, "Volume type 9 could not be found."),
            own("badRequest", 400, &volume),
            own("itemNotFound", 400, &volume),
            own("notFound", 404, &volume),
        ] {
            assert!(!is_missing(&foreign, ID), "{}", foreign.refusal());
        }
    }

    #[test]
    fn a_refusal_has_the_kind_of_its_status() {
        for (status, kind) in [
            (400, Kind::Precondition),
            (401, Kind::Unauthenticated),
            (403, Kind::Denied),
            (404, Kind::NotFound),
            (406, Kind::Precondition),
            (409, Kind::Busy),
            (413, Kind::Busy),
            (429, Kind::Busy),
            (500, Kind::Unreachable),
            (503, Kind::Unreachable),
        ] {
            let failure = refused(&own("computeFault", status, "the reason"));
            assert_eq!(failure.kind, kind, "{status}");
            let is_open = failure.certainty == Certainty::MayBeRunning;
            assert_eq!(is_open, status >= 500, "{status}");
            let part = format!("{status} ");
            assert!(failure.message.contains(&part), "{failure}");
            assert!(failure.message.ends_with("the reason"), "{failure}");
        }
        let over_quota = refused(&own(OVER_QUOTA, 413, "no gigabytes left"));
        assert_eq!(over_quota.kind, Kind::Quota, "{over_quota}");
    }

    #[test]
    fn an_answer_of_a_proxy_is_a_fault_that_names_the_host_and_says_nothing_of_the_object() {
        let proxy = "<html>\n<h1>nginx</h1></html>";
        for status in [200, 302, 400, 401, 403, 404, 405, 409, 410, 413, 418] {
            let failure = refused(&Answer::example(status, proxy));
            assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
            // The server behind the proxy may have received the call, unless the request was too
            // large.
            let is_open = failure.certainty == Certainty::MayBeRunning;
            assert_eq!(is_open, status != 413, "{failure}");
            let code = status.to_string();
            for part in [
                "cloud.example",
                &code,
                "a proxy on the way",
                "Cinder or Nova",
            ] {
                assert!(failure.message.contains(part), "{part}: {failure}");
            }
            let shows = failure.message.ends_with("<html> <h1>nginx</h1></html>");
            assert_eq!(shows, status != 200, "{failure}");
        }
    }

    #[test]
    fn a_text_is_the_words_of_keystones_middleware_and_no_quota() {
        for (status, kind) in [(401, Kind::Unauthenticated), (413, Kind::Unreachable)] {
            let failure = refused(&Answer::example(status, "a text"));
            assert_eq!(failure.kind, kind, "{failure}");
        }
    }

    #[test]
    fn a_service_that_misses_something_else_does_not_miss_the_object() {
        let missed = own("itemNotFound", 404, "Volume type 9 could not be found.");
        assert_eq!(refused(&missed).kind, Kind::NotFound);
        assert_eq!(refused_for(&missed).kind, Kind::System);
        let bad = own("badRequest", 400, "no");
        assert_eq!(refused_for(&bad), refused(&bad));
    }

    #[test]
    fn a_refused_login_is_never_a_missing_object() {
        for (answer, kind) in [
            (own("error", 401, "no"), Kind::Unauthenticated),
            (own("error", 403, "no"), Kind::Precondition),
            (own("error", 404, "no such trust"), Kind::Precondition),
            (Answer::example(404, "<html>"), Kind::Unreachable),
            (Answer::example(401, "<html>"), Kind::Unreachable),
            (Answer::example(300, "{}"), Kind::Unreachable),
            (Answer::example(503, "no"), Kind::Unreachable),
            (own("error", 429, "no"), Kind::Busy),
        ] {
            let failure = login_refused(&answer, false);
            assert_eq!(failure.kind, kind, "{failure}");
            assert_eq!(failure.certainty, Certainty::RolledBack);
        }
        let ended = own("error", 404, "Failed to validate token");
        assert_eq!(login_refused(&ended, true).kind, Kind::Unauthenticated);
        let foreign = Answer::example(404, "<html>");
        assert_eq!(login_refused(&foreign, true).kind, Kind::Unreachable);
    }
}
