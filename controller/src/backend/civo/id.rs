//! What can be an ID of Civo whose form is not documented. Volumes and instances have UUIDs.

/// Whether it may be an ID whose form is not documented.
pub(super) fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_no_path() {
        assert!(is_word("7F8b1c2d-1111-4222-8333-444455556666"));
        for path in ["", "..", "a/b", "a%2fb", "a?b", "../instances/1", "\u{e9}"] {
            assert!(!is_word(path), "{path}");
        }
    }
}
