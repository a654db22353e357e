//! Writes JSON values as YAML 1.2 in block style, which people read and edit with less noise.

use serde_json::Value;

/// The document, with a newline at its end.
pub(crate) fn to_yaml(value: &Value) -> String {
    let mut text = String::new();
    node(&mut text, value, 0);
    text.trim_start_matches(['\n', ' ']).to_owned() + "\n"
}

/// After a key or a dash: ` scalar`, or a block on the following lines.
fn node(text: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (at, (key, value)) in fields.iter().enumerate() {
                // The first key of a list's entry is on the line of its dash.
                let on_dash = at == 0 && text.ends_with('-');
                text.push_str(&if on_dash {
                    " ".to_owned()
                } else {
                    format!("\n{}", "  ".repeat(depth))
                });
                text.push_str(&scalar(key));
                text.push(':');
                node(text, value, depth + 1);
            }
        }
        Value::Array(entries) if !entries.is_empty() => {
            for entry in entries {
                text.push_str(&format!("\n{}-", "  ".repeat(depth.saturating_sub(1))));
                node(text, entry, depth.max(1));
            }
        }
        Value::String(string) => text.push_str(&format!(" {}", scalar(string))),
        plain => text.push_str(&format!(" {plain}")),
    }
}

/// Plain where no reader can take it for something else, in JSON's quotes elsewhere.
fn scalar(text: &str) -> String {
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let means_else = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&text.to_ascii_lowercase().as_str());
    if is_word && !means_else {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_values_are_indented_and_ambiguous_words_quoted() {
        let value = json!({
            "volumes": [
                { "volume_id": "vol-1", "capacity_bytes": 5, "nodes": ["n1", "no"], "ready": true },
                { "volume_id": "7", "capacity_bytes": 0, "nodes": [], "context": { "a: b": "\n" } },
            ],
            "next_token": "",
        });
        assert_eq!(
            to_yaml(&value),
            "next_token: \"\"\n\
             volumes:\n\
             - capacity_bytes: 5\n  nodes:\n  - n1\n  - \"no\"\n  ready: true\n  volume_id: vol-1\n\
             - capacity_bytes: 0\n  context:\n    \"a: b\": \"\\n\"\n  nodes: []\n  \
             volume_id: \"7\"\n"
        );
        assert_eq!(to_yaml(&json!({})), "{}\n");
        assert_eq!(to_yaml(&json!(["a", 1])), "- a\n- 1\n");
        assert_eq!(to_yaml(&json!([{ "a": 1, "b": 2 }])), "- a: 1\n  b: 2\n");
    }
}
