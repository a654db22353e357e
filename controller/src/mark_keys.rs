//! The keys for the driver's format marks on disks. The secret in the mark of each volume is
//! derived from a key.

use belay_contract::mark::{MarkSecret, SECRETS_MAX};
use belay_server::file;
use belay_server::lock::Lock;
use belay_server::request::VolumeId;
use ring::{digest, hmac};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The minimum length of a key in bytes: the output length of SHA-256, as RFC 2104 recommends.
const KEY_BYTES_MIN: usize = 32;
/// The maximum size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 4096;
/// The maximum time that a call waits for the file. The keys that were read before then apply.
const READ_MAX: Duration = Duration::from_secs(5);

/// The keys of a driver for format marks, from a file that may change. The first key is current;
/// the other keys were used earlier.
#[derive(Clone, Default)]
pub struct MarkKeys(Option<Arc<KeyFile>>);

struct KeyFile {
    path: PathBuf,
    is_being_read: AtomicBool,
    known: Lock<Known>,
}

/// The last valid keys.
struct Known {
    keys: Vec<hmac::Key>,
    /// The digest of the file that contained the keys.
    digest: Vec<u8>,
    /// The error of the last read, so that an error is logged only once.
    problem: Option<String>,
}

impl MarkKeys {
    /// Reads a file with one key per line.
    ///
    /// # Errors
    /// Returns a message with the name of the file, but without its content.
    pub fn read(path: &Path) -> Result<Self, String> {
        let known = Lock::new(read(path)?);
        Ok(Self(Some(Arc::new(KeyFile {
            path: path.to_owned(),
            is_being_read: AtomicBool::new(false),
            known,
        }))))
    }

    /// Reads the file again, and returns the secrets for the volume's format mark on its disk, one
    /// for each key. If the file cannot be read or is invalid, the last valid keys apply.
    pub async fn secrets(&self, volume: &VolumeId) -> Vec<MarkSecret> {
        let Some(file) = &self.0 else {
            return Vec::new();
        };
        // At most one thread waits for a disk that does not respond.
        if !file.is_being_read.swap(true, Ordering::AcqRel) {
            let reader = Arc::clone(file);
            let read = tokio::task::spawn_blocking(move || {
                reader.read_again();
                reader.is_being_read.store(false, Ordering::Release);
            });
            // After a timeout or a panic, the last valid keys apply.
            drop(tokio::time::timeout(READ_MAX, read).await);
        }
        file.secrets(volume)
    }
}

impl KeyFile {
    fn read_again(&self) {
        let read = read(&self.path);
        let mut known = self.known.lock();
        match read {
            Ok(new) if new.digest == known.digest => known.problem = None,
            Ok(new) => {
                let (path, count) = (self.path.display(), new.keys.len());
                tracing::info!("--mark-key-file {path}: has changed; its {count} keys apply");
                *known = new;
            }
            Err(problem) if known.problem.as_ref() != Some(&problem) => {
                tracing::warn!("{problem}; the keys that were read before still apply");
                known.problem = Some(problem);
            }
            Err(_) => {}
        }
    }

    fn secrets(&self, volume: &VolumeId) -> Vec<MarkSecret> {
        let secret = |key| {
            let tag = hmac::sign(key, volume.as_str().as_bytes());
            <[u8; 32]>::try_from(tag.as_ref())
                .ok()
                .map(MarkSecret::from)
        };
        self.known.lock().keys.iter().filter_map(secret).collect()
    }
}

/// Reads the keys. Blocks the calling thread.
fn read(path: &Path) -> Result<Known, String> {
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
    let digest = digest::digest(&digest::SHA256, text.as_bytes());
    Ok(Known {
        keys: lines.into_iter().map(key).collect(),
        digest: digest.as_ref().to_owned(),
        problem: None,
    })
}

/// Omits the keys, which no log may contain.
impl fmt::Debug for MarkKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self
            .0
            .as_ref()
            .map_or(0, |file| file.known.lock().keys.len());
        write!(f, "{count} keys")
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

    /// Returns the secrets from the keys that were read last.
    fn known(keys: &MarkKeys, id: &str) -> Vec<MarkSecret> {
        let file = keys.0.as_ref();
        file.map_or_else(Vec::new, |file| file.secrets(&volume(id)))
    }

    fn volume(id: &str) -> VolumeId {
        VolumeId::new(id).unwrap()
    }

    #[test]
    fn a_secret_is_the_hmac_of_the_volumes_id() {
        let keys = read("0123456789abcdef0123456789abcdef\n").unwrap();
        // printf vol-1 | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
        let expected = "099d4af68046dfe596ce5d52755f8844c3eeec86f202db73422afa9e8af7b4bf";
        let secrets = known(&keys, "vol-1");
        let hex: String = secrets[0]
            .bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!((secrets.len(), hex.as_str()), (1, expected));
        assert_ne!(known(&keys, "vol-2"), secrets);
    }

    #[test]
    fn the_first_key_is_used_and_the_others_still_count() {
        let (old, new) = ("o".repeat(32), "n".repeat(44));
        let before = known(&read(&old).unwrap(), "vol-1");
        let after = known(&read(&format!("{new}\n\n {old}\n")).unwrap(), "vol-1");
        assert_eq!(after[1..], before);
        assert_ne!(after[0], before[0]);
        assert_eq!(known(&MarkKeys::default(), "vol-1"), []);
        let all = read(&format!("{old}\n").repeat(SECRETS_MAX)).unwrap();
        assert_eq!(known(&all, "vol-1").len(), SECRETS_MAX);
        let longest = format!("{old}{}", "\n".repeat(4096 - old.len()));
        assert_eq!(known(&read(&longest).unwrap(), "vol-1"), before);
    }

    #[tokio::test]
    async fn a_changed_file_applies_at_the_next_call_and_a_bad_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let (old, new) = ("o".repeat(32), "n".repeat(32));
        std::fs::write(&path, &old).unwrap();
        let keys = MarkKeys::read(&path).unwrap();
        let first = keys.secrets(&volume("vol-1")).await;
        assert_eq!(first.len(), 1);
        std::fs::write(&path, format!("{new}\n{old}\n")).unwrap();
        let both = keys.secrets(&volume("vol-1")).await;
        assert_eq!((both.len(), &both[1..]), (2, &first[..]));
        std::fs::write(&path, "short").unwrap();
        assert_eq!(keys.secrets(&volume("vol-1")).await, both);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(keys.secrets(&volume("vol-1")).await, both);
        std::fs::write(&path, &new).unwrap();
        assert_eq!(keys.secrets(&volume("vol-1")).await, both[..1]);
        assert_eq!(MarkKeys::default().secrets(&volume("vol-1")).await, []);
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
