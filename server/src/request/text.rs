//! Rules for single strings, and types of identifiers and names that satisfy these rules. Each
//! failure names the invalid field. Successful checks do not allocate memory. Slashes are allowed
//! in identifiers, since some drivers use them; code that builds file names from identifiers has
//! its own rules.

use crate::call::Failure;
use std::fmt;

/// Maximum length of a string in bytes, unless its field has a different limit (CSI 1.13, "Size
/// Limits").
pub(super) const STRING_BYTES_MAX: usize = 128;

/// Maximum length of a node's ID, in bytes (CSI 1.13, `NodeGetInfoResponse.node_id`).
const NODE_ID_BYTES_MAX: usize = 256;

/// Checks that the text has 1 to `bytes_max` bytes.
pub(super) fn required(field: &str, text: &str, bytes_max: usize) -> Result<(), Failure> {
    if text.is_empty() {
        return Err(Failure::invalid(field, "is required, but empty"));
    }
    at_most(field, text, bytes_max)
}

/// Checks that the text has at most `bytes_max` bytes.
pub(super) fn at_most(field: &str, text: &str, bytes_max: usize) -> Result<(), Failure> {
    if text.len() <= bytes_max {
        return Ok(());
    }
    let why = format_args!("has {} bytes; at most {bytes_max} are allowed", text.len());
    Err(Failure::invalid(field, why))
}

/// Checks that the text has no control characters: identifiers appear in logs, file names and mount
/// tables.
pub(super) fn without_controls(field: &str, text: &str) -> Result<(), Failure> {
    forbid(field, text, char::is_control)
}

/// Checks the rule for identifiers: 1 to `bytes_max` bytes, without control characters.
pub(super) fn identifying_at_most(field: &str, id: &str, bytes_max: usize) -> Result<(), Failure> {
    required(field, id, bytes_max)?;
    without_controls(field, id)
}

/// Checks the rule for names (CSI 1.13, `CreateVolumeRequest.name`): control characters are
/// forbidden, except for tab, line feed and carriage return.
pub(super) fn name_characters(field: &str, text: &str) -> Result<(), Failure> {
    forbid(field, text, |c| {
        c.is_control() && !matches!(c, '\t' | '\n' | '\r')
    })
}

fn forbid(field: &str, text: &str, forbidden: fn(char) -> bool) -> Result<(), Failure> {
    match text.char_indices().find(|(_, c)| forbidden(*c)) {
        None => Ok(()),
        Some((position, c)) => {
            let number = u32::from(c);
            let why = format_args!("has the control character U+{number:04X} at byte {position}");
            Err(Failure::invalid(field, why))
        }
    }
}

/// Declares a string type whose values satisfy its rule.
macro_rules! identifier {
    ($(#[$doc:meta])+ $type:ident, $field:literal, $bytes_max:expr, $characters:expr) => {
        $(#[$doc])+
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(String);

        impl $type {
            /// Creates a value from the text if the text satisfies the rule.
            ///
            /// # Errors
            /// Returns `Invalid`, naming the field, if the text is empty, too long or has control
            /// characters.
            pub fn new(text: impl Into<String>) -> Result<Self, Failure> {
                Self::at_most($bytes_max, text.into())
            }

            /// Creates a value from the text if the text satisfies the rule with this maximum
            /// length: IDs of another driver may be longer than the specification allows.
            ///
            /// # Errors
            /// Returns `Invalid`, naming the field, if the text is empty, longer than `bytes_max`
            /// or has control characters.
            pub fn at_most(bytes_max: usize, text: String) -> Result<Self, Failure> {
                required($field, &text, bytes_max)?;
                $characters($field, &text)?;
                Ok(Self(text))
            }

            /// Returns the text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

identifier! {
    /// A volume's identifier, chosen by the driver: 1 to 128 bytes without control characters.
    VolumeId, "volume_id", STRING_BYTES_MAX, without_controls
}

identifier! {
    /// A snapshot's identifier, chosen by the driver: 1 to 128 bytes without control characters.
    SnapshotId, "snapshot_id", STRING_BYTES_MAX, without_controls
}

identifier! {
    /// A node's identifier, chosen by the driver: 1 to 256 bytes without control characters.
    NodeId, "node_id", NODE_ID_BYTES_MAX, without_controls
}

identifier! {
    /// A volume's name, chosen by the caller: 1 to 128 bytes, tab and line ends allowed.
    Name, "name", STRING_BYTES_MAX, name_characters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_in_bytes_and_end_at_the_limit() {
        assert!(VolumeId::new("v".repeat(128)).is_ok());
        assert!(VolumeId::new("\u{e9}".repeat(64)).is_ok());
        let refused = VolumeId::new("\u{e9}".repeat(65)).unwrap_err();
        assert_eq!(
            refused.message,
            "volume_id: has 130 bytes; at most 128 are allowed"
        );
        assert!(NodeId::new("n".repeat(256)).is_ok());
        assert!(NodeId::new("n".repeat(257)).is_err());
        assert!(Name::new("p".repeat(129)).is_err());
    }

    #[test]
    fn an_id_of_another_driver_may_be_longer_and_obeys_the_other_rules() {
        let id = |text: &str| VolumeId::at_most(1024, text.to_owned());
        assert!(id(&"v".repeat(1024)).is_ok());
        for (bad, why) in [
            ("v".repeat(1025), "at most 1024"),
            (String::new(), "is required"),
            ("a\nb".to_owned(), "at byte 1"),
        ] {
            assert!(id(&bad).unwrap_err().message.contains(why), "{bad:?}");
        }
    }

    #[test]
    fn an_empty_one_is_refused_by_name() {
        let refused = [
            VolumeId::new("").unwrap_err(),
            NodeId::new("").unwrap_err(),
            Name::new("").unwrap_err(),
        ];
        let fields = ["volume_id", "node_id", "name"];
        for (failure, field) in refused.iter().zip(fields) {
            assert_eq!(failure.message, format!("{field}: is required, but empty"));
        }
    }

    #[test]
    fn control_characters_are_refused_and_slashes_are_not() {
        assert!(VolumeId::new("pool/image@1").is_ok());
        assert!(VolumeId::new("a\u{2028}b \u{1f4be}").is_ok());
        for bad in ['\0', '\n', '\t', '\u{1b}', '\u{7f}', '\u{9f}'] {
            let refused = VolumeId::new(format!("ab{bad}")).unwrap_err();
            assert!(refused.message.contains("at byte 2"), "{refused}");
        }
        for good in ['\n', '\r', '\t', '\u{a0}'] {
            assert!(Name::new(format!("ab{good}")).is_ok(), "{good:?}");
        }
        for bad in [
            '\0', '\u{8}', '\u{b}', '\u{c}', '\u{e}', '\u{1f}', '\u{7f}', '\u{9f}',
        ] {
            assert!(Name::new(format!("ab{bad}")).is_err(), "{bad:?}");
        }
    }
}
