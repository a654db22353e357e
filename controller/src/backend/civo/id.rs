//! What can be an ID of Civo.

/// The form of the IDs of volumes and instances.
pub(super) fn is_uuid(text: &str) -> bool {
    const LENGTHS: [usize; 5] = [8, 4, 4, 4, 12];
    let parts = text.split('-');
    parts.clone().map(str::len).eq(LENGTHS)
        && parts
            .flat_map(str::bytes)
            .all(|byte| byte.is_ascii_hexdigit())
}

/// Whether it may be an ID whose form is not documented.
pub(super) fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_volume_is_a_uuid_and_no_path() {
        let uuid = "7F8b1c2d-1111-4222-8333-444455556666";
        assert!(is_uuid(uuid) && is_word(uuid));
        for name in [
            "k3s-prod-1a2b-node-pool-3c4d",
            "node-1",
            "",
            "7f8b1c2d-1111-4222-8333-44445555666g",
        ] {
            assert!(!is_uuid(name), "{name}");
        }
        for path in ["", "..", "a/b", "a%2fb", "a?b", "../instances/1", "\u{e9}"] {
            assert!(!is_uuid(path) && !is_word(path), "{path}");
        }
    }
}
