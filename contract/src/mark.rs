//! The secret in the format mark of a disk. The node agent writes a mark to a disk while it formats
//! the disk, and recognises its own mark by the secret. Users of the volume can write any block,
//! but do not know the secret.

use std::fmt;

/// The size of a secret, in bytes: the output of HMAC-SHA256 (RFC 2104, FIPS 180-4).
const BYTES: usize = 32;
/// Maximum number of secrets of a volume: one for the current key and one for each earlier key.
pub const SECRETS_MAX: usize = 4;
/// Separates the secrets in a list.
const SEPARATOR: char = '.';

/// The secret of a volume, derived from one key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MarkSecret([u8; BYTES]);

impl MarkSecret {
    /// Returns the bytes of the secret, as in the mark on the disk.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; BYTES] {
        &self.0
    }

    /// Parses a secret from 64 hexadecimal digits. Returns `None` if the text is malformed.
    fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 2 * BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let digits = text.get(..2 * BYTES).filter(|_| is_hex)?;
        let mut bytes = [0; BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl From<[u8; BYTES]> for MarkSecret {
    fn from(bytes: [u8; BYTES]) -> Self {
        Self(bytes)
    }
}

/// Omits the secret, which no log may contain.
impl fmt::Debug for MarkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkSecret")
    }
}

/// Parses a list of secrets. Returns `None` if a secret is malformed, or if there are too many
/// secrets.
pub(crate) fn parse(text: &str) -> Option<Vec<MarkSecret>> {
    let secrets: Vec<_> = text
        .split(SEPARATOR)
        .map(MarkSecret::parse)
        .collect::<Option<_>>()?;
    (secrets.len() <= SECRETS_MAX).then_some(secrets)
}

/// Joins secrets into a list. [`parse`] splits this list again.
pub(crate) fn list(secrets: &[MarkSecret]) -> String {
    let digits = |secret: &MarkSecret| -> String {
        secret.0.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let texts: Vec<_> = secrets.iter().map(digits).collect();
    texts.join(&SEPARATOR.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_it_was_written_and_nothing_else_is() {
        let secrets = [MarkSecret([0; BYTES]), MarkSecret([0xa5; BYTES])];
        assert_eq!(parse(&list(&secrets)), Some(secrets.to_vec()));
        assert_eq!(parse(&list(&[secrets[0]; SECRETS_MAX + 1])), None);
        let one = list(&secrets[..1]);
        for text in [
            "",
            "0",
            &one[1..],
            &format!("{one}0"),
            &format!("{one}."),
            &one.replacen('0', "g", 1),
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", [MarkSecret([0xa5; BYTES])]), "[MarkSecret]");
    }
}
