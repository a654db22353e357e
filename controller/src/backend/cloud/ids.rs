//! IDs in responses of clouds. Each backend defines the form of its IDs.
//!
//! CSI callers return an ID in later requests, and the path of a request to the cloud contains the
//! ID. A response that contains an ID of a different form is therefore refused when the response is
//! read. The response to a read by ID is also refused if the response contains a different object
//! than requested.

use crate::http::Answer;
use belay_server::call::{Failure, Kind};
use belay_server::request::{SnapshotId, VolumeId};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Maximum number of characters of a wrong ID or name that an error message quotes.
const QUOTED_MAX: usize = 64;

/// Whether the text has the form of a UUID (RFC 9562), in upper or lower case.
pub(in crate::backend) fn is_uuid(text: &str) -> bool {
    const LENGTHS: [usize; 5] = [8, 4, 4, 4, 12];
    let parts = text.split('-');
    parts.clone().map(str::len).eq(LENGTHS)
        && parts
            .flat_map(str::bytes)
            .all(|byte| byte.is_ascii_hexdigit())
}

/// Parses the ID of a volume in a response.
///
/// # Errors
/// Returns `System`, and reports the effect of the call as unknown, if the text is not an ID of the
/// cloud.
pub(in crate::backend) fn volume(
    text: &str,
    is_own: impl Fn(&str) -> bool,
) -> Result<VolumeId, Failure> {
    form("volume", text, is_own)?;
    VolumeId::new(text).map_err(Failure::may_be_running)
}

/// Parses the ID of a snapshot in a response.
///
/// # Errors
/// Returns `System`, and reports the effect of the call as unknown, if the text is not an ID of the
/// cloud.
pub(in crate::backend) fn snapshot(
    text: &str,
    is_own: impl Fn(&str) -> bool,
) -> Result<SnapshotId, Failure> {
    form("snapshot", text, is_own)?;
    SnapshotId::new(text).map_err(Failure::may_be_running)
}

/// Refuses a text in a response that is not an ID of the cloud.
///
/// # Errors
/// Returns `System`, and reports the effect of the call as unknown.
pub(in crate::backend) fn form(
    what: &str,
    text: &str,
    is_own: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    match is_own(text) {
        true => Ok(()),
        false => Err(wrong(format!(
            "the cloud has answered with the ID {} for a {what}, which is not an ID of this \
             cloud; repeat the call",
            quoted(text)
        ))),
    }
}

/// Returns the object in the response to a read by its ID. `what` is the kind of the object, such
/// as `volume`, and the name of the response's member that contains it.
///
/// # Errors
/// Returns the errors of [`Answer::member`] and of [`same`].
pub(in crate::backend) fn object<T: DeserializeOwned>(
    answer: &Answer,
    what: &str,
    asked: &str,
) -> Result<T, Failure> {
    let object = answer.member(&format!("/{what}"))?;
    let own: Value = answer.member(&format!("/{what}/id"))?;
    let own = own.as_str().map_or_else(|| own.to_string(), str::to_owned);
    same(what, asked, &own)?;
    Ok(object)
}

/// Refuses the response to a read by ID if it contains a different object. The comparison of the
/// IDs ignores case, since a database behind the API may do so.
///
/// # Errors
/// Returns `System`, and reports the effect of the call as unknown.
pub(in crate::backend) fn same(what: &str, asked: &str, answered: &str) -> Result<(), Failure> {
    match asked.eq_ignore_ascii_case(answered) {
        true => Ok(()),
        false => Err(wrong(format!(
            "{what} {asked}: the cloud has answered with {what} {}; repeat the call",
            quoted(answered)
        ))),
    }
}

/// Returns the entry if it can be parsed; otherwise logs a warning and returns `None`, so that the
/// other entries are still listed.
pub(in crate::backend) fn listed<T>(read: Result<T, Failure>) -> Option<T> {
    read.inspect_err(
        |failure| tracing::warn!(%failure, "an object with an invalid ID is not listed"),
    )
    .ok()
}

/// Returns the start of a text, in quotes.
pub(in crate::backend) fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_MAX) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Returns the error for a response that must not be used. The effect of the call is unknown.
pub(in crate::backend) fn wrong(message: String) -> Failure {
    Failure::new(Kind::System, message).may_be_running()
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_server::call::Certainty;

    const UUID: &str = "7f8b1c2d-1111-4222-8333-44445555AAff";

    fn refused(failure: &Failure) {
        let state = (failure.kind, failure.certainty);
        assert_eq!(state, (Kind::System, Certainty::MayBeRunning), "{failure}");
    }

    #[test]
    fn only_a_uuid_is_an_id_of_a_cloud_with_uuids_and_no_path_is() {
        assert!(is_uuid(UUID));
        for at in 0..UUID.len() {
            // Neither a digit in place of a dash, nor another character in place of a digit, is
            // accepted.
            let wrong = match &UUID[at..=at] {
                "-" => "0",
                _ => "g",
            };
            let mut id = UUID.to_owned();
            id.replace_range(at..=at, wrong);
            assert!(!is_uuid(&id), "{id}");
        }
        for id in ["", &UUID[1..], &format!("{UUID}0"), "../../account"] {
            assert!(!is_uuid(id), "{id}");
            refused(&volume(id, is_uuid).unwrap_err());
            refused(&snapshot(id, is_uuid).unwrap_err());
        }
        assert_eq!(volume(UUID, is_uuid).unwrap().as_str(), UUID);
        assert_eq!(snapshot(UUID, is_uuid).unwrap().as_str(), UUID);
    }

    #[test]
    fn an_answer_about_another_object_is_refused_and_names_both() {
        same("volume", UUID, &UUID.to_lowercase()).unwrap();
        let other = UUID.replace('7', "8");
        let failure = same("volume", UUID, &other).unwrap_err();
        refused(&failure);
        assert!(failure.message.contains(UUID) && failure.message.contains(&other));
    }

    #[test]
    fn a_long_text_is_not_quoted_as_a_whole() {
        let failure = volume(&"ä".repeat(10_000), is_uuid).unwrap_err();
        assert!(failure.message.len() < 400, "{failure}");
        assert_eq!(listed(Ok(7)), Some(7));
        assert_eq!(listed::<()>(Err(failure)), None);
    }
}
