//! The data by which a node recognises the disk of a volume: the entries of the publish context,
//! and a driver's templates for the names of its disks. This module does not access devices or
//! sysfs.

/// The maximum length of an identity, in bytes. The designators of a SCSI disk (SPC-6, 7.7.6) have
/// at most 255 bytes; udev's names also contain vendor and model.
const WORD_BYTES_MAX: usize = 320;
/// The maximum number of names in a list.
const NAMES_MAX: usize = 16;
/// Separates the names in a list. udev replaces this character in every name (systemd,
/// `replace_chars`).
const SEPARATOR: char = ',';

/// The identity by which a node recognises the disk of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskIdentity {
    /// The complete serial number. A virtio disk reports only the first 20 bytes of the number.
    Serial(String),
    /// The world-wide name, in the form of udev's `ID_WWN`: `0x` and hexadecimal digits, or `eui.`
    /// and the digits for NVMe.
    Wwn(String),
    /// Names in `/dev/disk/by-id`, which udev creates. A disk matches if it has any of these names.
    Names(Vec<String>),
}

/// A template for one of the names of a driver's disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameTemplate {
    /// The constant start of the name.
    pub prefix: &'static str,
    /// The part of the volume's ID or name that follows the prefix.
    pub part: IdPart,
}

/// The part of a volume's ID or name that the name of its disk contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdPart {
    /// The whole ID or name.
    Whole,
    /// The start of the ID or name, with at most this number of bytes.
    First(usize),
    /// The hexadecimal digits of the ID, without the dashes.
    Digits,
}

impl NameTemplate {
    /// Returns the name of the disk whose volume has this ID or name.
    #[must_use]
    pub fn name(&self, id: &str) -> String {
        let part = match self.part {
            IdPart::Whole => id.to_owned(),
            // IDs in CSI are UTF-8. If the cut would be within a character, the whole ID is used.
            IdPart::First(bytes) => id.get(..bytes.min(id.len())).unwrap_or(id).to_owned(),
            IdPart::Digits => id.replace('-', ""),
        };
        format!("{}{part}", self.prefix)
    }
}

/// Reasons why a text cannot identify a disk. The `Display` output is a lowercase fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// The text is empty.
    #[error("is empty")]
    Empty,
    /// The text is longer than any identity of a disk.
    #[error("is longer than {WORD_BYTES_MAX} bytes")]
    Long,
    /// The text has a character that the identity of a disk cannot have.
    #[error("has a character that no name of a disk has")]
    Character,
    /// The list has more names than a disk can have.
    #[error("lists more than {NAMES_MAX} names")]
    Many,
}

/// Returns the text if it can identify a disk: printable ASCII without spaces and slashes.
pub(crate) fn word(text: &str) -> Result<String, WordError> {
    match text {
        "" => Err(WordError::Empty),
        _ if text.len() > WORD_BYTES_MAX => Err(WordError::Long),
        _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(WordError::Character),
        _ if text.contains(['/', SEPARATOR]) => Err(WordError::Character),
        _ => Ok(text.to_owned()),
    }
}

/// Splits a list of names, and checks each name.
pub(crate) fn names(text: &str) -> Result<Vec<String>, WordError> {
    let names: Vec<_> = text.split(SEPARATOR).map(word).collect::<Result<_, _>>()?;
    match names.len() <= NAMES_MAX {
        true => Ok(names),
        false => Err(WordError::Many),
    }
}

/// Joins names into a list. [`names`] splits this list again.
pub(crate) fn list(names: &[String]) -> String {
    names.join(&SEPARATOR.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_a_disk_is_printable_and_one_name() {
        for (text, expected) in [
            ("vol-1", Ok("vol-1".to_owned())),
            ("", Err(WordError::Empty)),
            ("a b", Err(WordError::Character)),
            ("../a", Err(WordError::Character)),
            ("a,b", Err(WordError::Character)),
            ("ä", Err(WordError::Character)),
            ("a\n", Err(WordError::Character)),
        ] {
            assert_eq!(word(text), expected, "{text:?}");
        }
        assert_eq!(word(&"x".repeat(WORD_BYTES_MAX + 1)), Err(WordError::Long));
    }

    #[test]
    fn a_list_has_each_name_and_no_empty_one() {
        assert_eq!(names("a,b"), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(names("a,,b"), Err(WordError::Empty));
        assert_eq!(names(&"a,".repeat(NAMES_MAX)), Err(WordError::Empty));
        let many = vec!["a"; NAMES_MAX + 1].join(",");
        assert_eq!(names(&many), Err(WordError::Many));
        assert_eq!(list(&names("a,b").unwrap()), "a,b");
    }

    #[test]
    fn a_template_takes_its_part_of_an_id_whatever_its_length() {
        let name = |part, id: &str| {
            let template = NameTemplate {
                prefix: "virtio-",
                part,
            };
            template.name(id)
        };
        let id = "7f8b1c2d-1111-4222-8333-444455556666";
        assert_eq!(name(IdPart::Whole, id), format!("virtio-{id}"));
        assert_eq!(name(IdPart::First(20), id), "virtio-7f8b1c2d-1111-4222-8");
        assert_eq!(name(IdPart::First(20), "short"), "virtio-short");
        assert_eq!(name(IdPart::First(3), "ää"), "virtio-ää");
        assert_eq!(name(IdPart::Digits, "a-b"), "virtio-ab");
    }
}
