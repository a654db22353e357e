//! Reads some members of a JSON object (RFC 8259). The other members may contain passwords, so the
//! parser skips these members without copying them, and errors do not quote them.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::error::Category;

/// The reason why a text is not the expected JSON object, and the position of the fault. The
/// message does not quote the text.
#[derive(Debug, thiserror::Error)]
#[error("not valid JSON at line {} column {}: {}", .0.line(), .0.column(), why(.0))]
pub(super) struct BadJson(#[from] serde_json::Error);

/// Describes the fault. Serde's message about a value of the wrong type would quote the value, so
/// this function names the expected type instead.
fn why(error: &serde_json::Error) -> String {
    if error.classify() == Category::Data {
        return "expected an object whose ID and zone are texts or whole numbers".to_owned();
    }
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

/// Returns the values of the members `names` of a JSON object: a string as it is, and a number as
/// its decimal digits. A member that is absent or null has the value `None`. If several members
/// have the same name, returns the value of the last one, as most JSON parsers do.
///
/// # Errors
/// Returns an error if the text is not exactly one object, or if the value of a requested member is
/// neither a string nor a whole number.
pub(super) fn members<const N: usize>(
    json: &[u8],
    names: [&str; N],
) -> Result<[Option<String>; N], BadJson> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let found = reader.deserialize_map(Members(names))?;
    reader.end()?;
    Ok(found)
}

/// Collects the values of the members with these names.
struct Members<'a, const N: usize>([&'a str; N]);

impl<'de, const N: usize> Visitor<'de> for Members<'_, N> {
    type Value = [Option<String>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [const { None }; N];
        while let Some(Name(name)) = map.next_key()? {
            match self.0.iter().position(|wanted| *wanted == name) {
                Some(at) => found[at] = map.next_value::<Option<Word>>()?.map(String::from),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// The name of a member, which is copied only if it contains escapes.
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// The value of a member, which is a string or a whole number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    Text(String),
    Number(u64),
}

impl From<Word> for String {
    fn from(word: Word) -> String {
        match word {
            Word::Text(text) => text,
            Word::Number(number) => number.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 2] = ["uuid", "zone"];

    fn both(json: &str) -> Result<[Option<String>; 2], BadJson> {
        members(json.as_bytes(), NAMES)
    }

    #[test]
    fn members_of_the_object_itself_are_found_and_the_rest_is_skipped() {
        let json = r#" {"meta": {"uuid": "no", "x": [1, -2.5e+3, true, null, {"zone": "no"}, []]},
            "admin_pass": "s\"ecret\\", "uuid" : "7f8b", "empty": {},
            "zone": "a\u00e9\ud83d\ude00\/\n"} "#;
        let expected = [Some("7f8b".to_owned()), Some("aé😀/\n".to_owned())];
        assert_eq!(both(json).unwrap(), expected);
        assert_eq!(both(r#"{"zone":null}"#).unwrap(), [None, None]);
        let number = both(r#"{"uuid":123456789012345678, "zone":"a"}"#).unwrap();
        assert_eq!(number[0].as_deref(), Some("123456789012345678"));
        let last = both(r#"{"uuid":"1","uu\u0069d":"2"}"#).unwrap();
        assert_eq!(last[0].as_deref(), Some("2"));
        let escaped = both(r#"{"uuid":"\"\\\/\b\f\n\r\t\u000a"}"#).unwrap();
        assert_eq!(escaped[0].as_deref(), Some("\"\\/\u{8}\u{c}\n\r\t\n"));
        let spaced = both("\t{\r\n\"uuid\" :\t\"1\"\r}\n").unwrap();
        assert_eq!(spaced[0].as_deref(), Some("1"));
    }

    #[test]
    fn a_refusal_names_the_place_and_what_was_expected() {
        for (json, place, why) in [
            ("[1]", "line 1", "expected an object whose ID"),
            ("{\"uuid\":true}", "line 1", "expected an object whose ID"),
            ("{a", "line 1", "key must be a string"),
            ("{\"a\" 1", "line 1 column 6", "expected `:`"),
            ("{\n\"a\":1;", "line 2 column 6", "expected `,` or `}`"),
            ("{} x", "line 1 column 4", "trailing characters"),
            ("{\"uuid\":\"a", "line 1", "EOF while parsing a string"),
            ("{\"a\":\"\\x\"}", "line 1 column 8", "invalid escape"),
        ] {
            let refused = both(json).unwrap_err().to_string();
            let begin = format!("not valid JSON at {place}");
            assert!(refused.starts_with(&begin), "{json}: {refused}");
            assert!(refused.contains(&format!(": {why}")), "{json}: {refused}");
        }
    }

    #[test]
    fn what_is_no_such_object_is_refused_and_not_repeated() {
        for json in [
            "",
            "[]",
            "\"secret\"",
            "{",
            "{\"uuid\"",
            "{\"uuid\":",
            "{\"uuid\":\"secret",
            "{\"uuid\":\"1\",}",
            "{\"uuid\":\"1\"} secret",
            "{\"uuid\":1.5}",
            "{\"uuid\":1e9}",
            "{\"uuid\":-1}",
            "{\"uuid\":true}",
            "{\"uuid\":[\"secret\"]}",
            "{\"uuid\":{\"secret\":1}}",
            "{\"a\":secret}",
            "{\"a\":inf}",
            "{\"a\":+1}",
            "{\"a\":1.}",
            "{\"a\":\"\\x\"}",
            "{\"uuid\":\"\\ud83d\"}",
            "{\"a\":\"\\u+123\"}",
            "{\"a\":\"\\u00\"}",
            "{\"a\":\"\n\"}",
            "{\"a\" \"b\"}",
            "{secret:1}",
            "<html>secret</html>",
            "{\"uuid\":nothing}",
        ] {
            let error = both(json).unwrap_err().to_string();
            assert!(
                error.starts_with("not valid JSON at line 1 column "),
                "{json}: {error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(members(b"{\"uuid\":\"\xff\"}", NAMES).is_err());
    }

    /// At this depth of nesting, a recursive parser would overflow its stack.
    #[test]
    fn a_deep_object_is_skipped_or_refused() {
        let depth = 1 << 20;
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        drop(both(&format!("{{\"a\":{open}{close}}}")));
        assert!(both(&format!("{{\"a\":{open}")).is_err());
        assert!(both(&format!("{{\"uuid\":{open}{close}}}")).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(json in proptest::collection::vec(any::<u8>(), 0..256)) {
            drop(members(&json, NAMES));
        }

        #[test]
        fn nothing_like_json_panics(json in r#"[{}\[\]",:a1u\\ ]{0,64}"#) {
            drop(both(&format!("{{\"uuid\":{json}")));
        }

        #[test]
        fn a_cut_object_is_refused(value in "\\PC{0,20}", cut in 0_usize..200) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            let json = format!(r#"{{"a":[{{"b":"{value}"}},3],"uuid":"{value}"}}"#);
            prop_assert!(both(&json).is_ok());
            let cut = cut.min(json.len() - 1);
            prop_assert!(members(&json.as_bytes()[..cut], NAMES).is_err());
        }
    }
}
