//! The keys for the driver's format marks on disks. The secret in the mark of each volume is
//! derived from a key.

use belay_contract::mark::{MarkSecret, SECRETS_MAX};
use belay_server::file;
use belay_server::request::VolumeId;
use ring::hmac;
use std::fmt;
use std::path::Path;

/// The minimum length of a key in bytes: the output length of SHA-256, as RFC 2104 recommends.
const KEY_BYTES_MIN: usize = 32;
/// The maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;

/// The keys of a driver for format marks. The first key is current; the other keys were used
/// earlier.
#[derive(Clone, Default)]
pub struct MarkKeys(Vec<hmac::Key>);

impl MarkKeys {
    /// Reads a file with one key per line.
    ///
    /// # Errors
    /// Returns a message with the name of the file, but without its content.
    pub fn read(path: &Path) -> Result<Self, String> {
        let bad = |why: &str| format!("--mark-key-file {}: {why}", path.display());
        let text = file::read_text(path, FILE_BYTES_MAX);
        let text = text.map_err(|error| bad(&error.to_string()))?;
        let lines: Vec<_> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        if lines.is_empty() || lines.len() > SECRETS_MAX {
            let found = lines.len();
            return Err(bad(&format!(
                "has {found} keys; 1 to {SECRETS_MAX} are needed, one a line"
            )));
        }
        if let Some(at) = lines.iter().position(|line| line.len() < KEY_BYTES_MIN) {
            let key = at + 1;
            return Err(bad(&format!(
                "key {key} has less than {KEY_BYTES_MIN} characters; make one with \
                 `head -c 32 /dev/urandom | base64`"
            )));
        }
        let key = |line: &str| hmac::Key::new(hmac::HMAC_SHA256, line.as_bytes());
        Ok(Self(lines.into_iter().map(key).collect()))
    }

    /// Returns the secrets for the volume's format mark on its disk, one for each key.
    #[must_use]
    pub fn secrets(&self, volume: &VolumeId) -> Vec<MarkSecret> {
        let secret = |key| {
            let tag = hmac::sign(key, volume.as_str().as_bytes());
            <[u8; 32]>::try_from(tag.as_ref())
                .ok()
                .map(MarkSecret::from)
        };
        self.0.iter().filter_map(secret).collect()
    }
}

/// Omits the keys, which no log may contain.
impl fmt::Debug for MarkKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn read(text: &str) -> Result<MarkKeys, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        MarkKeys::read(file.path())
    }

    fn volume(id: &str) -> VolumeId {
        VolumeId::new(id).unwrap()
    }

    #[test]
    fn a_secret_is_the_hmac_of_the_volumes_id() {
        let keys = read("0123456789abcdef0123456789abcdef\n").unwrap();
        // printf vol-1 | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
        let expected = "099d4af68046dfe596ce5d52755f8844c3eeec86f202db73422afa9e8af7b4bf";
        let secrets = keys.secrets(&volume("vol-1"));
        let hex: String = secrets[0]
            .bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!((secrets.len(), hex.as_str()), (1, expected));
        assert_ne!(keys.secrets(&volume("vol-2")), secrets);
    }

    #[test]
    fn the_first_key_is_used_and_the_others_still_count() {
        let (old, new) = ("o".repeat(32), "n".repeat(44));
        let before = read(&old).unwrap().secrets(&volume("vol-1"));
        let after = read(&format!("{new}\n\n {old}\n"))
            .unwrap()
            .secrets(&volume("vol-1"));
        assert_eq!(after[1..], before);
        assert_ne!(after[0], before[0]);
        assert_eq!(MarkKeys::default().secrets(&volume("vol-1")), []);
        let all = read(&format!("{old}\n").repeat(SECRETS_MAX)).unwrap();
        assert_eq!(all.secrets(&volume("vol-1")).len(), SECRETS_MAX);
        let longest = format!("{old}{}", "\n".repeat(4096 - old.len()));
        assert_eq!(read(&longest).unwrap().secrets(&volume("vol-1")), before);
    }

    #[test]
    fn a_file_without_good_keys_is_named_and_not_shown() {
        let canary = "canary".to_owned();
        for (text, why) in [
            (String::new(), "has 0 keys"),
            (format!("{}\n", "k".repeat(32)).repeat(5), "has 5 keys"),
            ("k".repeat(31), "key 1 has less than 32"),
            (
                format!("{canary}{}", "\n".repeat(4091)),
                "has 4097 bytes; at most 4 KiB are read",
            ),
            (
                format!("{}\n{canary}", "k".repeat(32)),
                "key 2 has less than 32",
            ),
            (
                canary.repeat(1000),
                "has 6000 bytes; at most 4 KiB are read",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.starts_with("--mark-key-file /"), "{error}");
            assert!(error.contains(why) && !error.contains(&canary), "{error}");
        }
        let error = MarkKeys::read(Path::new("/nowhere")).unwrap_err();
        assert!(
            error.starts_with("--mark-key-file /nowhere: No such file"),
            "{error}"
        );
        let shown = format!("{:?}", read(&"k".repeat(32)).unwrap());
        assert_eq!(shown, "1 keys");
    }
}
