//! Displays responses that need a special form: health conditions, usage, capabilities, and
//! responses that mean yes or no.

use serde_json::Value;

use super::view::{Form, cell, list};
use crate::failure::Failure;
use crate::render::{Answer, Cell, Rows};

/// Shows the health of one volume.
///
/// # Errors
/// Fails if the response does not contain the health, which is then unknown.
pub(super) fn health_of_one(answer: &Value) -> Result<Answer, Failure> {
    let health = answer.get("volume_health");
    let health = health.ok_or(Failure::Answer("has no volume_health"))?;
    Ok(health_of(std::slice::from_ref(health)))
}

/// Shows the health of the volumes that the response lists.
pub(super) fn health_of_list(answer: &Value) -> Result<Answer, Failure> {
    Ok(health_of(list(answer, "/entries")))
}

fn health_of(volumes: &[Value]) -> Answer {
    let rows = volumes.iter().flat_map(|volume| {
        let entries = list(volume, "/health_statuses").iter();
        entries.map(|entry| {
            let mut row = vec![cell(Form::Text, &volume["volume_id"])];
            row.extend(["status", "reason", "message"].map(|it| cell(Form::Text, &entry[it])));
            row
        })
    });
    let columns = ["volume_id", "status", "reason", "message"];
    Answer::Conditions(Rows::new("health_statuses", &columns, rows))
}

/// Shows the health of the storage behind all volumes.
pub(super) fn storage_health(answer: &Value) -> Result<Answer, Failure> {
    let rows = list(answer, "/backend_health").iter().map(|entry| {
        vec![
            cell(Form::Text, &entry["status"]),
            cell(Form::Text, &entry["reason"]),
            Cell::Text(concerned(entry.get("volume_capability"))),
            cell(Form::Text, &entry["message"]),
        ]
    });
    let columns = ["status", "reason", "concerns", "message"];
    Ok(Answer::Conditions(Rows::new(
        "backend_health",
        &columns,
        rows,
    )))
}

/// Returns the access types and modes of volumes that a health condition affects, such as `mount
/// xfs MULTI_NODE_READER_ONLY`, or `all`.
fn concerned(capability: Option<&Value>) -> String {
    let Some(capability) = capability else {
        return "all".to_owned();
    };
    let text = |at: &str| capability.pointer(at).and_then(Value::as_str);
    let access = ["mount", "block"];
    let access = access.into_iter().find(|it| capability.get(it).is_some());
    let words = [access, text("/mount/fs_type"), text("/access_mode/mode")];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Shows the usage of a volume, with one row per unit. Also shows the condition of the volume, if
/// the driver reports one. Bytes are formatted as sizes, and inodes as numbers.
pub(super) fn usage(answer: &Value) -> Result<Answer, Failure> {
    let rows = list(answer, "/usage").iter().map(|usage| {
        let unit = usage["unit"].as_str().unwrap_or("UNKNOWN");
        let form = match unit {
            "BYTES" => Form::Bytes,
            _ => Form::Number,
        };
        let mut row = vec![Cell::Text(unit.to_owned())];
        row.extend(["total", "used", "available"].map(|it| cell(form, &usage[it])));
        row
    });
    let columns = ["unit", "total", "used", "available"];
    let condition = answer.get("volume_condition");
    let condition = condition.map(|it| cell(Form::Condition, it));
    Ok(Answer::Rows(Rows::new("usage", &columns, rows)).with("volume_condition", condition))
}

/// Shows the capabilities of a service or of the plugin, named as in the specification.
pub(super) fn capabilities(answer: &Value) -> Result<Answer, Failure> {
    let rows = list(answer, "/capabilities").iter().map(|capability| {
        let named = |at: &str| capability.pointer(at).and_then(Value::as_str);
        let expansion = named("/volume_expansion/type");
        let name = match expansion.map(|how| format!("VOLUME_EXPANSION_{how}")) {
            Some(name) => name,
            None => {
                let name = named("/rpc/type").or(named("/service/type"));
                name.unwrap_or("UNKNOWN").to_owned()
            }
        };
        vec![Cell::Text(name)]
    });
    Ok(Answer::Rows(Rows::new(
        "capabilities",
        &["capability"],
        rows,
    )))
}

/// Shows whether the driver is ready. A driver that omits `ready` is ready.
pub(super) fn readiness(answer: &Value) -> Result<Answer, Failure> {
    let ready = answer.get("ready").is_none_or(|ready| *ready == true);
    let mut shown = vec![("ready", Cell::Flag(ready))];
    if !ready {
        let hint = "`belayctl status` and the log of the driver have the reason";
        shown.push(("hint", Cell::Text(hint.to_owned())));
    }
    Ok(Answer::Record(shown).verdict(ready))
}

/// Shows whether the driver confirms the requested volume capability.
pub(super) fn confirmation(answer: &Value) -> Result<Answer, Failure> {
    let confirmed = answer.get("confirmed").is_some();
    let shown = Answer::Record(vec![
        ("confirmed", Cell::Flag(confirmed)),
        ("message", cell(Form::Text, &answer["message"])),
    ]);
    Ok(shown.verdict(confirmed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(answer: Answer) -> Vec<Vec<String>> {
        let (Answer::Conditions(Rows { rows, .. }) | Answer::Rows(Rows { rows, .. })) = answer
        else {
            panic!("the answer is no list")
        };
        let rows = rows.into_iter();
        rows.map(|row| row.iter().map(|cell| cell.shown(false)).collect())
            .collect()
    }

    #[test]
    fn each_condition_is_a_row_and_a_healthy_volume_has_none() {
        let sick = json!([
            {"status": "DATA_LOSS", "reason": "Gone", "message": "m"},
            {"status": 9, "reason": "New", "message": "m"},
        ]);
        let entries = json!([{"volume_id": "a", "health_statuses": sick}, {"volume_id": "b"}]);
        let found = rows(health_of_list(&json!({ "entries": entries })).unwrap());
        assert_eq!(
            found,
            [["a", "DATA_LOSS", "Gone", "m"], ["a", "9", "New", "m"]]
        );
    }

    #[test]
    fn an_answer_without_health_is_not_healthy() {
        let error = health_of_one(&json!({})).unwrap_err().to_string();
        assert_eq!(error, "the driver's answer has no volume_health");
        assert!(rows(health_of_one(&json!({"volume_health": {}})).unwrap()).is_empty());
    }

    #[test]
    fn the_affected_use_is_shown() {
        let mount = json!({"mount": {"fs_type": "xfs"},
            "access_mode": {"mode": "SINGLE_NODE_WRITER"}});
        let condition = json!({"status": "STORAGE_DEGRADED", "reason": "Slow", "message": "m"});
        let mut of_mount = condition.clone();
        of_mount["volume_capability"] = mount;
        let answer = json!({"backend_health": [condition, of_mount]});
        let concerns: Vec<_> = rows(storage_health(&answer).unwrap())
            .into_iter()
            .map(|row| row[2].clone())
            .collect();
        assert_eq!(concerns, ["all", "mount xfs SINGLE_NODE_WRITER"]);
    }

    #[test]
    fn bytes_and_inodes_are_distinguished() {
        let of = |unit| json!({"unit": unit, "total": 3, "used": 2, "available": 1});
        let answer = json!({"usage": [of("BYTES"), of("INODES")]});
        assert_eq!(
            rows(usage(&answer).unwrap()),
            [["BYTES", "3B", "2B", "1B"], ["INODES", "3", "2", "1"]]
        );
    }

    #[test]
    fn a_condition_is_shown_if_the_driver_reports_one() {
        assert!(matches!(usage(&json!({})).unwrap(), Answer::Rows(_)));
        let answer = json!({"volume_condition": {}});
        assert!(matches!(usage(&answer).unwrap(), Answer::With(..)));
    }

    #[test]
    fn capabilities_have_the_names_of_the_specification() {
        for (capability, name) in [
            (
                json!({"service": {"type": "CONTROLLER_SERVICE"}}),
                "CONTROLLER_SERVICE",
            ),
            (
                json!({"volume_expansion": {"type": "ONLINE"}}),
                "VOLUME_EXPANSION_ONLINE",
            ),
            (json!({"rpc": {"type": "EXPAND_VOLUME"}}), "EXPAND_VOLUME"),
            (json!({"rpc": {}}), "UNKNOWN"),
        ] {
            let answer = json!({"capabilities": [capability]});
            assert_eq!(rows(capabilities(&answer).unwrap()), [[name]]);
        }
    }

    #[test]
    fn only_a_driver_that_denies_it_is_not_ready() {
        for (answer, ready) in [
            (json!({}), true),
            (json!({"ready": true}), true),
            (json!({"ready": false}), false),
        ] {
            let shown = readiness(&answer).unwrap();
            assert_eq!(matches!(shown, Answer::Record(_)), ready);
        }
    }
}
