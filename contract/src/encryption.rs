//! Encryption of block volumes with LUKS2: the parameters of a StorageClass, the entry of the
//! volume context, and the passphrase in the secrets of NodeStageVolume.
//!
//! The names are the same as in ceph-csi. Names of other drivers, such as
//! `csi.example.com/luks-encrypted`, are accepted too.

use belay_server::call::Failure;
use belay_server::request::{Context, Secrets};

use crate::format;

/// The parameter of a StorageClass, and the entry of the volume context, that requests encryption.
pub const ENCRYPTED: &str = "encrypted";

/// The size of the LUKS2 header at the start of an encrypted volume, in bytes.
pub const HEADER_BYTES: u64 = 16 << 20;

/// The subsystem in the LUKS2 header of a volume whose format the node has not finished.
pub const UNFINISHED: &str = "belay:unfinished";

/// The parameters, and entries of the volume context, for the cost of the key derivation and for
/// discards.
const PBKDF: &str = "encryptionPbkdf";
const DISCARD: &str = "encryptionDiscard";

/// The names with which other drivers request encryption, after the name of the driver and a slash.
const OTHER_ENCRYPTED: &str = "luks-encrypted";
const OTHER_CIPHER: &str = "luks-cipher";
const OTHER_KEY_SIZE: &str = "luks-key-size";

/// The keys of a Secret that may contain the passphrase: of Belay, ceph-csi and Scaleway; of
/// Hetzner; of Linode, DigitalOcean and cloudscale.
const PASSPHRASES: [&str; 3] = ["encryptionPassphrase", "encryption-passphrase", "luksKey"];
/// The key of a Secret that may contain the passphrase that the volumes had before.
const PREVIOUS: &str = "encryptionPassphrasePrevious";
/// The minimum length in bytes of a passphrase that is derived with [`Pbkdf::Pbkdf2`].
const RANDOM_BYTES_MIN: usize = 32;
/// The maximum length of a passphrase in bytes, which is the limit of cryptsetup for a passphrase
/// that an operator types.
const PASSPHRASE_BYTES_MAX: usize = 512;

/// How a volume is encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Encryption {
    /// The key derivation of new key slots.
    pub pbkdf: Pbkdf,
    /// Whether discards reach the disk. They show which blocks of the filesystem are free.
    pub discards: bool,
}

/// The key derivation of a key slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pbkdf {
    /// argon2id, which needs memory and time, so that a passphrase that people choose is hard to
    /// guess.
    #[default]
    Argon2id,
    /// PBKDF2 with few iterations, for a passphrase that is random and long.
    Pbkdf2,
}

impl Pbkdf {
    const ALL: [(&str, Pbkdf); 2] = [("argon2id", Pbkdf::Argon2id), ("pbkdf2", Pbkdf::Pbkdf2)];
}

/// The names of [`Encryption`]'s entries, in a StorageClass and in a volume context.
pub const PARAMETERS: &[&str] = &[ENCRYPTED, PBKDF, DISCARD];

/// Whether the key is another driver's name of a parameter that [`Encryption::wanted`] reads.
#[must_use]
pub fn is_parameter_of_others(key: &str) -> bool {
    [OTHER_ENCRYPTED, OTHER_CIPHER, OTHER_KEY_SIZE].contains(&name(key))
}

/// Whether the key is a parameter that [`Encryption::wanted`] reads, by any name.
#[must_use]
pub fn is_parameter(key: &str) -> bool {
    PARAMETERS.contains(&key) || is_parameter_of_others(key)
}

/// Whether an entry of a volume context requests encryption by the driver in a way that Belay does
/// not know.
#[must_use]
pub fn is_unknown((key, value): (&str, &str)) -> bool {
    format::is_encryption_by_driver(key, value) && !is_parameter_of_others(key)
}

fn is_word(key: &str) -> bool {
    key == ENCRYPTED || name(key) == OTHER_ENCRYPTED
}

impl Encryption {
    /// Returns the encryption that the parameters of a class request for a new volume; `None` for a
    /// volume without encryption.
    ///
    /// # Errors
    /// Returns the errors of [`Encryption::requested`], and `Invalid`, naming the entry, for a
    /// cipher or key size that Belay does not use, and for an option without encryption.
    pub fn wanted(field: &str, parameters: &Context) -> Result<Option<Self>, Failure> {
        for (key, value) in parameters.iter() {
            match name(key) {
                OTHER_CIPHER => allow(field, (key, value), &["aes-xts-plain64"])?,
                OTHER_KEY_SIZE => allow(field, (key, value), &["256", "512"])?,
                _ => {}
            }
        }
        let requested = Self::requested(field, parameters)?;
        let mut options = [PBKDF, DISCARD].into_iter();
        let option = options.find(|option| parameters.get(option).is_some());
        match option.filter(|_| requested.is_none()) {
            None => Ok(requested),
            Some(option) => Err(Failure::invalid(
                &format!("{field}[{option}]"),
                "has no effect without encrypted: \"true\"",
            )),
        }
    }

    /// Returns the encryption that a volume context requests; `None` for a volume without
    /// encryption. Ignores the cipher and the key size of another driver's volume, because the
    /// header of the volume has its own.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the entry, for an unknown value.
    pub fn requested(field: &str, entries: &Context) -> Result<Option<Self>, Failure> {
        let (mut is_requested, mut encryption) = (false, Self::default());
        for (key, value) in entries.iter() {
            if is_word(key) {
                is_requested |= is_true(field, (key, value))?;
            } else if key == DISCARD {
                encryption.discards = is_true(field, (key, value))?;
            } else if key == PBKDF {
                allow(field, (key, value), &Pbkdf::ALL.map(|(word, _)| word))?;
                let of_word = Pbkdf::ALL.into_iter().find(|(word, _)| *word == value);
                encryption.pbkdf = of_word.map_or_else(Pbkdf::default, |(_, pbkdf)| pbkdf);
            }
        }
        Ok(is_requested.then_some(encryption))
    }

    /// Returns the entries of the volume context of a volume with this encryption.
    pub fn entries(self) -> impl Iterator<Item = (String, String)> {
        let pbkdf = Pbkdf::ALL
            .into_iter()
            .filter(move |(_, pbkdf)| *pbkdf == self.pbkdf && *pbkdf != Pbkdf::default());
        let pbkdf = pbkdf.map(|(word, _)| (PBKDF.to_owned(), word.to_owned()));
        let discard = self
            .discards
            .then(|| (DISCARD.to_owned(), true.to_string()));
        let encrypted = (ENCRYPTED.to_owned(), true.to_string());
        std::iter::once(encrypted).chain(pbkdf).chain(discard)
    }
}

fn is_true(field: &str, entry: (&str, &str)) -> Result<bool, Failure> {
    allow(field, entry, &["true", "false"])?;
    Ok(entry.1 == "true")
}

fn allow(field: &str, (key, value): (&str, &str), allowed: &[&str]) -> Result<(), Failure> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let why = format!("must be {}, not {value:?}", allowed.join(" or "));
    Err(Failure::invalid(&format!("{field}[{key}]"), why))
}

/// A passphrase, and its key in the secrets of NodeStageVolume. It has no `Debug` form.
#[derive(Clone, Copy)]
pub struct Passphrase<'a> {
    /// The key in the secrets.
    pub key: &'static str,
    /// The passphrase, whose bytes are the key.
    pub text: &'a str,
}

/// The passphrases of a volume.
#[derive(Clone, Copy)]
pub struct Passphrases<'a> {
    /// The passphrase that opens the volume.
    pub current: Passphrase<'a>,
    /// The passphrase that `current` replaces in the volume's header.
    pub previous: Option<Passphrase<'a>>,
}

impl<'a> Passphrases<'a> {
    /// Returns the passphrases of an encrypted volume. No error contains a passphrase.
    ///
    /// # Errors
    /// Returns `Invalid` if the secrets contain no passphrase or several, or an empty one, or the
    /// same one as the previous one.
    pub fn read(secrets: &'a Secrets) -> Result<Self, Failure> {
        let invalid = |why: String| Err(Failure::invalid("secrets", why));
        let get = |key| secrets.get(key).map(|text| Passphrase { key, text });
        let mut found = PASSPHRASES.into_iter().filter_map(get);
        let previous = get(PREVIOUS);
        let current = match (found.next(), found.next()) {
            (Some(current), None) => current,
            (Some(one), Some(other)) => {
                let (one, other) = (one.key, other.key);
                return invalid(format!("contain both {one} and {other}; keep one of them"));
            }
            (None, _) => {
                return invalid(format!(
                    "contain none of {}, but the volume is encrypted; name a Secret with the \
                     passphrase in the StorageClass (csi.storage.k8s.io/node-stage-secret-name and \
                     csi.storage.k8s.io/node-stage-secret-namespace)",
                    PASSPHRASES.join(", ")
                ));
            }
        };
        let both = || [Some(current), previous].into_iter().flatten();
        if let Some(Passphrase { key, .. }) = both().find(|it| it.text.is_empty()) {
            return invalid(format!("{key} is empty"));
        }
        // PBKDF2 does not distinguish a passphrase from the same one with a null character at its
        // end, so the removal of the one could remove the only slot of the other.
        if let Some(Passphrase { key, .. }) = both().find(|it| it.text.contains('\0')) {
            return invalid(format!("{key} contains a null character"));
        }
        if previous.is_some_and(|previous| previous.text == current.text) {
            let key = current.key;
            return invalid(format!(
                "{key} and {PREVIOUS} are the same; remove {PREVIOUS}"
            ));
        }
        Ok(Passphrases { current, previous })
    }
}

impl Passphrase<'_> {
    /// Refuses the passphrase for a new key slot if an operator could not type it, or if it is too
    /// short for the key derivation. Drivers that use the bytes of the Secret as they are have
    /// created headers with such passphrases, which are opened. No error contains the passphrase.
    ///
    /// # Errors
    /// Returns `Invalid` with the reason.
    pub fn refuse_for_new(&self, pbkdf: Pbkdf) -> Result<(), Failure> {
        let (key, bytes) = (self.key, self.text.len());
        let why = if bytes > PASSPHRASE_BYTES_MAX {
            format!(
                "{key} has {bytes} bytes; a passphrase for a new key slot has at most \
                 {PASSPHRASE_BYTES_MAX}"
            )
        } else if pbkdf == Pbkdf::Pbkdf2 && bytes < RANDOM_BYTES_MIN {
            format!(
                "{key} has {bytes} bytes; {PBKDF}: pbkdf2 needs a random passphrase of at least \
                 {RANDOM_BYTES_MIN}, because it makes guesses cheap; use argon2id"
            )
        } else if self.text.ends_with('\n') {
            format!(
                "{key} ends with a newline, which would be a part of the passphrase; create the \
                 Secret without it (echo -n, or kubectl create secret --from-literal)"
            )
        } else {
            return Ok(());
        };
        Err(Failure::invalid("secrets", why))
    }
}

/// Returns the key without the name of a driver and the slash.
fn name(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(entries: &[(&str, &str)]) -> impl Iterator<Item = (String, String)> {
        let entries = entries.iter();
        entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
    }

    fn wanted(entries: &[(&str, &str)]) -> Result<Option<Encryption>, Failure> {
        Encryption::wanted("parameters", &Context::new("parameters", owned(entries))?)
    }

    #[test]
    fn a_class_requests_encryption_by_belays_word_or_that_of_another_driver() {
        for (entries, is_requested) in [
            (&[][..], false),
            (&[("encrypted", "false")], false),
            (&[("encrypted", "true")], true),
            (&[("csi.example.com/luks-encrypted", "true")], true),
            (
                &[("a/luks-encrypted", "false"), ("encrypted", "true")],
                true,
            ),
            (&[("a/luks-cipher", "aes-xts-plain64")], false),
            (&[("a/luks-key-size", "256")], false),
        ] {
            let is_wanted = wanted(entries).map(|it| it.is_some());
            assert_eq!(is_wanted, Ok(is_requested), "{entries:?}");
            assert!(entries.iter().all(|(key, _)| is_parameter(key)));
        }
        assert!(!is_parameter_of_others("luksEncrypted"));
    }

    #[test]
    fn the_volume_context_has_the_options_of_the_class() {
        for (pbkdf, discards) in [("argon2id", "true"), ("pbkdf2", "false")] {
            let options = [(PBKDF, pbkdf), (DISCARD, discards)];
            let refused = wanted(&options).unwrap_err().message;
            assert!(refused.contains("[encryptionPbkdf]: has no effect without"));
            let all = [(ENCRYPTED, "true"), options[0], options[1]];
            let encryption = wanted(&all).unwrap().unwrap();
            assert_eq!(encryption.discards, discards == "true");
            assert_eq!(encryption.pbkdf == Pbkdf::Pbkdf2, pbkdf == "pbkdf2");
            let context = Context::new("volume_context", encryption.entries()).unwrap();
            let read = Encryption::requested("volume_context", &context);
            assert_eq!(read, Ok(Some(encryption)));
        }
        let entries: Vec<_> = Encryption::default().entries().collect();
        assert_eq!(entries, [(ENCRYPTED.to_owned(), "true".to_owned())]);
    }

    #[test]
    fn another_value_or_cipher_is_refused_by_its_key() {
        for (key, value) in [
            ("encrypted", "yes"),
            ("encrypted", ""),
            ("a/luks-encrypted", "True"),
            ("a/luks-cipher", "aes-cbc-essiv:sha256"),
            ("a/luks-key-size", "128"),
            (PBKDF, "scrypt"),
            (DISCARD, "1"),
        ] {
            let refused = wanted(&[(key, value)]).unwrap_err().message;
            let begin = format!("parameters[{key}]: must be ");
            assert!(refused.starts_with(&begin), "{refused}");
            // The volume of another driver is opened, whatever its cipher is.
            let context = Context::new("volume_context", owned(&[(key, value)])).unwrap();
            let is_refused = Encryption::requested("volume_context", &context).is_err();
            assert_eq!(
                is_refused,
                !key.contains("cipher") && !key.contains("size"),
                "{key}"
            );
        }
    }

    fn secrets(entries: &[(&str, &str)]) -> Secrets {
        Secrets::new(owned(entries).collect()).unwrap()
    }

    #[test]
    fn one_passphrase_is_taken_as_it_is_and_no_error_shows_it() {
        let longest = "x".repeat(512);
        let too_long = format!("canary{longest}");
        for key in PASSPHRASES {
            for (value, argon2id, pbkdf2) in [
                (
                    " canary\nof two lines.",
                    None,
                    Some("has 21 bytes; encryptionPbkdf: "),
                ),
                (&longest, None, None),
                (&too_long, Some("has 518 bytes"), Some("has 518 bytes")),
                ("canary\n", Some("ends with a newline"), Some("has 7 bytes")),
            ] {
                let secrets = secrets(&[(key, value), ("user", "other")]);
                let read = Passphrases::read(&secrets).unwrap();
                assert_eq!((read.current.key, read.current.text), (key, value));
                assert!(read.previous.is_none());
                for (pbkdf, words) in [(Pbkdf::Argon2id, argon2id), (Pbkdf::Pbkdf2, pbkdf2)] {
                    let refused = read.current.refuse_for_new(pbkdf).err();
                    let refused = refused.map(|it| it.message);
                    assert_eq!(refused.is_some(), words.is_some(), "{refused:?}");
                    let refused = refused.unwrap_or_default();
                    assert!(refused.contains(words.unwrap_or_default()), "{refused}");
                    assert!(!refused.contains("canary"), "{refused}");
                }
            }
        }
    }

    #[test]
    fn a_secret_has_one_current_and_perhaps_a_previous_passphrase() {
        let both = secrets(&[(PASSPHRASES[2], "canary"), (PREVIOUS, "older")]);
        let both = Passphrases::read(&both).unwrap();
        let previous = both.previous.map(|it| (it.key, it.text));
        assert_eq!(
            (both.current.text, previous),
            ("canary", Some((PREVIOUS, "older")))
        );
        for (entries, words) in [
            (&[("user", "canary")][..], "node-stage-secret-name"),
            (&[(PREVIOUS, "canary")], "contain none of"),
            (&[(PASSPHRASES[0], "canary\0")], "contains a null character"),
            (&[(PASSPHRASES[0], "")], "encryptionPassphrase is empty"),
            (
                &[(PASSPHRASES[0], "canary"), (PREVIOUS, "")],
                "Previous is empty",
            ),
            (
                &[(PASSPHRASES[0], "canary"), (PREVIOUS, "canary")],
                "are the same",
            ),
            (
                &[(PASSPHRASES[0], "canary"), (PASSPHRASES[2], "canary")],
                "both encryptionPassphrase and luksKey",
            ),
        ] {
            let refused = Passphrases::read(&secrets(entries)).err().unwrap().message;
            assert!(refused.contains(words), "{refused}");
            assert!(!refused.contains("canary"), "{refused}");
        }
    }
}
