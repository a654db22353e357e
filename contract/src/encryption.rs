//! Encryption of block volumes with LUKS2: the parameters of a StorageClass, the entry of the
//! volume context, and the passphrase in the secrets of NodeStageVolume.
//!
//! The names are those of ceph-csi. The names of drivers that encrypt in the same way, such as
//! `csi.example.com/luks-encrypted`, have the same meaning.

use belay_server::call::Failure;
use belay_server::request::{Context, Secrets};

/// The parameter of a StorageClass, and the entry of the volume context, that requests encryption.
pub const ENCRYPTED: &str = "encrypted";

/// The size of the LUKS2 header at the start of an encrypted volume, in bytes.
pub const HEADER_BYTES: u64 = 16 << 20;

/// The subsystem in the LUKS2 header of a volume whose format the node has not finished.
pub const UNFINISHED: &str = "belay:unfinished";

/// The names with which other drivers request encryption, after the name of the driver and a slash.
const OTHER_ENCRYPTED: &str = "luks-encrypted";
const OTHER_CIPHER: &str = "luks-cipher";
const OTHER_KEY_SIZE: &str = "luks-key-size";

/// The keys of a Secret that may contain the passphrase: of Belay, ceph-csi and Scaleway; of
/// Hetzner; of Linode, DigitalOcean and cloudscale.
const PASSPHRASES: [&str; 3] = ["encryptionPassphrase", "encryption-passphrase", "luksKey"];
/// The maximum length of a passphrase in bytes, which is the limit of cryptsetup for a passphrase
/// that an operator types.
const PASSPHRASE_BYTES_MAX: usize = 512;

/// Whether the key is a parameter for encryption that [`is_wanted`] reads.
#[must_use]
pub fn is_parameter(key: &str) -> bool {
    let others = [OTHER_ENCRYPTED, OTHER_CIPHER, OTHER_KEY_SIZE];
    key == ENCRYPTED || others.contains(&name(key))
}

/// Whether the parameters of a class request encryption for a new volume.
///
/// # Errors
/// Returns the errors of [`is_requested`], and `Invalid`, naming the entry, for a cipher or key
/// size that Belay does not use.
pub fn is_wanted(field: &str, parameters: &Context) -> Result<bool, Failure> {
    for (key, value) in parameters.iter() {
        match name(key) {
            OTHER_CIPHER => allow(field, (key, value), &["aes-xts-plain64"])?,
            OTHER_KEY_SIZE => allow(field, (key, value), &["256", "512"])?,
            _ => {}
        }
    }
    is_requested(field, parameters)
}

/// Whether a volume context requests encryption. Ignores the cipher and the key size of another
/// driver's volume, because the header of the volume has its own.
///
/// # Errors
/// Returns `Invalid`, naming the entry, for a value other than `true` and `false`.
pub fn is_requested(field: &str, entries: &Context) -> Result<bool, Failure> {
    let mut is_requested = false;
    for (key, value) in entries.iter() {
        if key == ENCRYPTED || name(key) == OTHER_ENCRYPTED {
            allow(field, (key, value), &["true", "false"])?;
            is_requested |= value == "true";
        }
    }
    Ok(is_requested)
}

fn allow(field: &str, (key, value): (&str, &str), allowed: &[&str]) -> Result<(), Failure> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let why = format!("must be {}, not {value:?}", allowed.join(" or "));
    Err(Failure::invalid(&format!("{field}[{key}]"), why))
}

/// Returns the entry of the volume context of an encrypted volume.
#[must_use]
pub fn entry() -> (String, String) {
    (ENCRYPTED.to_owned(), true.to_string())
}

/// Returns the key of the secrets that contains the passphrase of an encrypted volume, and the
/// passphrase. No error contains the passphrase.
///
/// # Errors
/// Returns `Invalid` if the secrets contain no passphrase or several, or an empty one.
pub fn passphrase(secrets: &Secrets) -> Result<(&'static str, &str), Failure> {
    let invalid = |why: String| Err(Failure::invalid("secrets", why));
    let found = PASSPHRASES.map(|key| Some((key, secrets.get(key)?)));
    let mut found = found.into_iter().flatten();
    match (found.next(), found.next()) {
        (Some((key, "")), None) => invalid(format!("{key} is empty")),
        (Some(found), None) => Ok(found),
        (Some((one, _)), Some((other, _))) => {
            invalid(format!("contain both {one} and {other}; keep one of them"))
        }
        (None, _) => invalid(format!(
            "contain none of {}, but the volume is encrypted; name a Secret with the passphrase in \
             the StorageClass (csi.storage.k8s.io/node-stage-secret-name and \
             csi.storage.k8s.io/node-stage-secret-namespace)",
            PASSPHRASES.join(", ")
        )),
    }
}

/// Refuses a passphrase for a new header, which the Secret has as `key`, if an operator could not
/// type it. Drivers that use the bytes of the Secret as they are have created headers with such
/// passphrases, which are opened. No error contains the passphrase.
///
/// # Errors
/// Returns `Invalid` if the passphrase is too long, or ends with a newline.
pub fn refuse_for_new(key: &str, passphrase: &str) -> Result<(), Failure> {
    let invalid = |why: String| Err(Failure::invalid("secrets", why));
    let bytes = passphrase.len();
    if bytes > PASSPHRASE_BYTES_MAX {
        return invalid(format!(
            "{key} has {bytes} bytes; a passphrase for a new volume has at most \
             {PASSPHRASE_BYTES_MAX}"
        ));
    }
    if passphrase.ends_with('\n') {
        return invalid(format!(
            "{key} ends with a newline, which would be a part of the passphrase; create the Secret \
             without it (echo -n, or kubectl create secret --from-literal)"
        ));
    }
    Ok(())
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

    fn requested(entries: &[(&str, &str)]) -> Result<bool, Failure> {
        is_wanted("parameters", &Context::new("parameters", owned(entries))?)
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
            assert_eq!(requested(entries), Ok(is_requested), "{entries:?}");
            assert!(entries.iter().all(|(key, _)| is_parameter(key)));
        }
        assert!(requested(&[]).is_ok_and(|it| !it) && !is_parameter("luksEncrypted"));
        let context = Context::new("volume_context", [entry()]).unwrap();
        assert_eq!(is_requested("volume_context", &context), Ok(true));
    }

    #[test]
    fn another_value_or_cipher_is_refused_by_its_key() {
        for (key, value) in [
            ("encrypted", "yes"),
            ("encrypted", ""),
            ("a/luks-encrypted", "True"),
            ("a/luks-cipher", "aes-cbc-essiv:sha256"),
            ("a/luks-key-size", "128"),
        ] {
            let refused = requested(&[(key, value)]).unwrap_err().message;
            let begin = format!("parameters[{key}]: must be ");
            assert!(refused.starts_with(&begin), "{refused}");
            // The volume of another driver is opened, whatever its cipher is.
            let context = Context::new("volume_context", owned(&[(key, value)])).unwrap();
            let is_refused = is_requested("volume_context", &context).is_err();
            assert_eq!(is_refused, key.ends_with("encrypted"), "{key}");
        }
    }

    #[test]
    fn one_passphrase_is_taken_as_it_is_and_no_error_shows_it() {
        let secrets = |entries: &[(&str, &str)]| Secrets::new(owned(entries).collect()).unwrap();
        let longest = "x".repeat(512);
        let too_long = format!("canary{longest}");
        for key in PASSPHRASES {
            for (value, refused_for_new) in [
                (" canary\nof two lines", None),
                (&longest, None),
                (&too_long, Some("has 518 bytes")),
                ("canary\n", Some("ends with a newline")),
            ] {
                let secrets = secrets(&[(key, value), ("user", "other")]);
                assert_eq!(passphrase(&secrets), Ok((key, value)));
                let refused = refuse_for_new(key, value).err().map(|it| it.message);
                assert_eq!(refused.is_some(), refused_for_new.is_some(), "{refused:?}");
                let refused = refused.unwrap_or_default();
                assert!(refused.contains(refused_for_new.unwrap_or_default()));
                assert!(!refused.contains("canary"), "{refused}");
            }
        }
        for (entries, words) in [
            (&[("user", "canary")][..], "node-stage-secret-name"),
            (&[(PASSPHRASES[0], "")], "is empty"),
            (
                &[(PASSPHRASES[0], "canary"), (PASSPHRASES[2], "canary")],
                "both encryptionPassphrase and luksKey",
            ),
        ] {
            let refused = passphrase(&secrets(entries)).unwrap_err().message;
            assert!(refused.contains(words), "{refused}");
            assert!(!refused.contains("canary"), "{refused}");
        }
    }
}
