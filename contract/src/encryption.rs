//! Requests for encryption, by a parameter of a class or an attribute of a volume. No driver of
//! Belay encrypts: a volume would be stored as it is, and one that another driver has encrypted
//! would look foreign.

/// Whether an entry with that key and value asks for it: by `luks` or `encrypt` in the key, in any
/// case, unless the value turns it off.
#[must_use]
pub fn is_requested(key: &str, value: &str) -> bool {
    let (key, value) = (key.to_ascii_lowercase(), value.trim().to_ascii_lowercase());
    let is_meant = ["luks", "encrypt"].iter().any(|word| key.contains(word));
    is_meant && !["", "false", "no", "0"].contains(&&*value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encryption_is_requested_by_any_of_its_names_unless_it_is_off() {
        for key in [
            "luksEncrypted",
            "encrypted",
            "example.com/luks-encrypted",
            "example.com/Encryption",
            "luksCipher",
        ] {
            assert!(is_requested(key, "true"), "{key}");
            assert!(is_requested(key, "aes-xts-plain64"), "{key}");
            for off in ["false", "False", "no", "0", " "] {
                assert!(!is_requested(key, off), "{key}: {off}");
            }
        }
        assert!(!is_requested("type", "encrypted-standard"));
    }
}
