//! Tests of the output text in each output format.

use std::collections::BTreeMap;

use super::*;

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

fn volumes(next_token: &str) -> Answer {
    let nodes = |nodes: &[&str]| Cell::List(nodes.iter().map(|&node| node.to_owned()).collect());
    let rows = Rows::new(
        "volumes",
        &["volume_id", "capacity_bytes", "nodes"],
        [
            vec![text("vol-1"), Cell::Bytes(1 << 30), nodes(&["n1", "n2"])],
            vec![text("v"), Cell::Bytes(5), nodes(&[])],
        ],
    );
    Answer::Rows(Rows {
        narrow: 2,
        next_token: next_token.to_owned(),
        ..rows
    })
}

#[test]
fn a_table_lines_up_and_a_wide_one_has_all_columns() {
    assert_eq!(
        volumes("").text(Output::Table),
        "VOLUME_ID  CAPACITY\n\
         vol-1      1GiB\n\
         v          5B\n"
    );
    assert_eq!(
        volumes("").text(Output::Wide),
        "VOLUME_ID  CAPACITY           NODES\n\
         vol-1      1073741824 (1GiB)  n1,n2\n\
         v          5 (5B)             -\n"
    );
}

#[test]
fn names_are_one_per_line_and_nothing_else() {
    assert_eq!(volumes("t-9").text(Output::Name), "vol-1\nv\n");
    let made = Answer::Record(vec![("volume_id", text("vol-2")), ("size", Cell::Bytes(1))]);
    assert_eq!(made.text(Output::Name), "vol-2\n");
    assert_eq!(Answer::Done.text(Output::Name), "");
}

#[test]
fn a_further_page_is_announced_with_its_token() {
    let page = volumes("t-9").text(Output::Table);
    assert!(page.ends_with("more: --starting-token t-9\n"));
}

#[test]
fn json_has_bare_numbers_and_real_lists() {
    assert_eq!(
        volumes("t-9").to_json(),
        json!({
            "volumes": [
                { "volume_id": "vol-1", "capacity_bytes": 1 << 30, "nodes": ["n1", "n2"] },
                { "volume_id": "v", "capacity_bytes": 5, "nodes": [] },
            ],
            "next_token": "t-9",
        })
    );
}

#[test]
fn a_record_is_shown_field_by_field() {
    let zone = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    let record = Answer::Record(vec![
        ("node_id", text("n1")),
        ("ready", Cell::Flag(true)),
        ("topology", Cell::Pairs(zone)),
    ]);
    assert_eq!(
        record.text(Output::Table),
        "node_id   n1\nready     yes\ntopology  zone=a\n"
    );
    assert_eq!(
        record.to_json(),
        json!({ "node_id": "n1", "ready": true, "topology": { "zone": "a" } })
    );
}

#[test]
fn a_condition_is_a_table_and_exits_with_2_and_none_is_healthy() {
    let conditions =
        |rows| Answer::Conditions(Rows::new("health_statuses", &["status", "reason"], rows));
    let healthy = conditions(Vec::new());
    let unhealthy = conditions(vec![vec![text("DEGRADED"), text("Slow")]]);
    assert_eq!(healthy.text(Output::Table), "healthy\n");
    let expected = "STATUS    REASON\nDEGRADED  Slow\n";
    assert_eq!(unhealthy.text(Output::Table), expected);
    assert_eq!(healthy.exit_code(), ExitCode::SUCCESS);
    assert_eq!(unhealthy.exit_code(), ExitCode::from(2));
    assert_eq!(
        healthy.to_json(),
        json!({ "healthy": true, "health_statuses": [] })
    );
    let one = json!([{ "status": "DEGRADED", "reason": "Slow" }]);
    assert_eq!(
        unhealthy.to_json(),
        json!({ "healthy": false, "health_statuses": one })
    );
}

#[test]
fn an_answer_that_says_no_is_printed_like_one_that_says_yes_and_exits_with_2() {
    let answer = |yes| Answer::Record(vec![("ready", Cell::Flag(yes))]).verdict(yes);
    assert_eq!(answer(false).text(Output::Table), "ready  no\n");
    assert_eq!(answer(false).exit_code(), ExitCode::from(2));
    assert_eq!(answer(true).exit_code(), ExitCode::SUCCESS);
}

#[test]
fn one_more_value_is_below_the_rows_or_in_the_record() {
    let condition = || {
        Some(Cell::Condition {
            abnormal: true,
            message: "read-only".to_owned(),
        })
    };
    let rows = volumes("").with("volume_condition", condition());
    let shown = rows.text(Output::Table);
    assert!(shown.ends_with("\nvolume_condition: abnormal: read-only\n"));
    let shown = rows.to_json();
    assert_eq!(shown["volumes"][1]["volume_id"], "v");
    assert_eq!(
        shown["volume_condition"],
        json!({ "abnormal": true, "message": "read-only" })
    );
    let record = Answer::Record(vec![("id", Cell::Number(1))]);
    assert_eq!(
        record
            .with("volume_condition", condition())
            .text(Output::Table),
        "id                1\nvolume_condition  abnormal: read-only\n"
    );
    assert_eq!(volumes("").with("volume_condition", None), volumes(""));
}

#[test]
fn an_empty_answer_is_ok_or_an_empty_object() {
    assert_eq!(Answer::Done.text(Output::Table), "OK\n");
    assert_eq!(Answer::Done.to_json(), json!({}));
}

#[test]
fn characters_count_as_columns_not_as_bytes() {
    let lines = [
        vec!["µs".to_owned(), "x".to_owned()],
        vec!["ms".to_owned(), "y".to_owned()],
    ];
    assert_eq!(align(&lines), "µs  x\nms  y\n");
}
