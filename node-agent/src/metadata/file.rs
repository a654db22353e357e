//! Reads the ID and the region of this instance from a file on the node. The file is TOML (toml.io,
//! 1.0); only string values before the first table are read. The file may contain secrets, so
//! errors do not quote it.

use std::path::Path;

use belay_contract::drivers::InstanceFile;
use belay_server::file;

/// Maximum size of the file in bytes.
const BYTES_MAX: u64 = 64 << 10;

/// The facts about the node that the file contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The node's ID, never empty; `None` if the file has no ID.
    pub(crate) id: Option<String>,
    /// The node's region, never empty; `None` if the file has no region.
    pub(crate) region: Option<String>,
}

/// Reads the facts in the file at `path`. Returns empty facts if the file does not exist.
///
/// # Errors
/// Returns a message if the file cannot be read or is not TOML.
pub(crate) fn read(path: &Path, keys: &InstanceFile) -> Result<Facts, String> {
    match file::read_text(path, BYTES_MAX) {
        Ok(text) => facts(&text, keys),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Facts::default()),
        Err(error) => Err(error.to_string()),
    }
}

fn facts(text: &str, keys: &InstanceFile) -> Result<Facts, String> {
    let mut facts = Facts::default();
    for (line, at) in text.lines().map(str::trim).zip(1..) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with('[') {
            break;
        }
        let bad = |why: &str| format!("line {at}: {why}");
        let (key, value) = line.split_once('=').ok_or_else(|| bad("not TOML"))?;
        let wanted = match key.trim().trim_matches(['"', '\'']) {
            key if key == keys.id => &mut facts.id,
            key if key == keys.region => &mut facts.region,
            _ => continue,
        };
        let value = string(value.trim()).ok_or_else(|| bad("not a text in quotes"))?;
        *wanted = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
    }
    Ok(facts)
}

/// Returns the text of a quoted string, after which only a comment may follow. Returns `None` for a
/// string with escapes, which IDs and regions never have.
fn string(value: &str) -> Option<&str> {
    let quote = value
        .chars()
        .next()
        .filter(|quote| "\"'".contains(*quote))?;
    let (text, rest) = value[1..].split_once(quote)?;
    let rest = rest.trim();
    let is_plain = !text.contains('\\') && (rest.is_empty() || rest.starts_with('#'));
    is_plain.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belay_contract::drivers::CIVO;

    fn read_text(text: &str) -> Result<Facts, String> {
        facts(text, CIVO.instance_file.unwrap())
    }

    fn found(id: &str, region: &str) -> Facts {
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        Facts {
            id: some(id),
            region: some(region),
        }
    }

    #[test]
    fn the_id_and_the_region_are_read_and_the_rest_is_passed_over() {
        for (text, expected) in [
            (
                "server = \"https://x\"\ntoken = \"a=b#\\\"c\"\nregion = \"LON1\"\n\
                 instance_id = \"7f8b\"\n",
                found("7f8b", "LON1"),
            ),
            (
                "# a\n\ninstance_id='7f8b' # b\nmore = [1]\n",
                found("7f8b", ""),
            ),
            ("\"instance_id\" = \" 7f8b \"\r\n", found("7f8b", "")),
            ("instance_id = \"\"\nregion = \"LON1\"", found("", "LON1")),
            ("[other]\ninstance_id = \"no\"\nnot TOML", found("", "")),
            ("", found("", "")),
        ] {
            assert_eq!(read_text(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_toml_is_refused_by_its_line_and_not_shown() {
        for (text, why) in [
            ("canary", "line 1: not TOML"),
            (
                "region = \"LON1\"\n{\"instance_id\": \"canary\"}",
                "line 2: not TOML",
            ),
            ("instance_id = canary", "line 1: not a text"),
            ("instance_id = \"canary", "line 1: not a text"),
            ("instance_id = \"a\" canary", "line 1: not a text"),
            ("instance_id = \"a\\u0041\"", "line 1: not a text"),
        ] {
            let refused = read_text(text).unwrap_err();
            assert!(refused.starts_with(why), "{text}: {refused}");
            assert!(!refused.contains("canary"), "{refused}");
        }
    }

    #[test]
    fn a_file_that_does_not_exist_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let keys = CIVO.instance_file.unwrap();
        assert_eq!(read(&dir.path().join("none"), keys), Ok(Facts::default()));
        read(dir.path(), keys).unwrap_err();
        let path = dir.path().join("civostatsd");
        std::fs::write(&path, "instance_id = \"7f8b\"\n").unwrap();
        assert_eq!(read(&path, keys), Ok(found("7f8b", "")));
        std::fs::write(&path, "#".repeat(64 << 10)).unwrap();
        assert_eq!(read(&path, keys), Ok(Facts::default()));
        std::fs::write(&path, "#".repeat((64 << 10) + 1)).unwrap();
        assert_eq!(
            read(&path, keys),
            Err("has 65537 bytes; at most 64 KiB are read".to_owned())
        );
    }
}
