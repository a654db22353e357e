//! Requests for encryption, by a parameter of a class or an attribute of a volume. No driver of
//! Belay encrypts: a volume would be stored as it is, and one that another driver has encrypted
//! would look foreign.

/// The values that turn it off.
const OFF: [&str; 9] = ["", "0", "f", "false", "n", "no", "none", "off", "disabled"];

/// Whether an entry with that key and value asks for it: by `luks` or `encrypt` in the key, in any
/// case, unless the value turns it off.
#[must_use]
pub fn is_requested(key: &str, value: &str) -> bool {
    has("encrypt", key, value) || is_by_driver(key, value)
}

/// Whether it is the driver that encrypts, not the storage: the disk has the header of LUKS.
#[must_use]
pub fn is_by_driver(key: &str, value: &str) -> bool {
    has("luks", key, value)
}

fn has(word: &str, key: &str, value: &str) -> bool {
    let value = value.trim().to_ascii_lowercase();
    key.to_ascii_lowercase().contains(word) && !OFF.contains(&&*value)
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
            assert_eq!(is_by_driver(key, "true"), key.contains("luks"), "{key}");
            for off in ["false", "False", "no", "0", " ", "None", "off"] {
                assert!(!is_by_driver(key, off), "{key}: {off}");
                assert!(!is_requested(key, off), "{key}: {off}");
            }
        }
        assert!(!is_requested("type", "encrypted-standard"));
    }
}
