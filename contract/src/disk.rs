//! How the disk of a volume is recognised on a node: the words of the publish context, and the
//! names that a driver's disks have by its templates. Knows no device and no sysfs.

/// Longest word, in bytes: the designators of a SCSI disk (SPC-6, 7.7.6) have 255 at most, and a
/// name of udev's adds vendor and model.
const WORD_BYTES_MAX: usize = 320;
/// Most names in a list.
const NAMES_MAX: usize = 16;
/// Between two names. udev replaces it in every name (systemd, `replace_chars`).
const SEPARATOR: char = ',';

/// What a volume's disk is recognised by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskIdentity {
    /// Its serial number in full, of which a virtio disk shows the first 20 bytes.
    Serial(String),
    /// Its world-wide name as udev has it in `ID_WWN`: `0x` and hexadecimal digits, or `eui.` and
    /// the digits for NVMe.
    Wwn(String),
    /// Any of these names, as udev makes them in `/dev/disk/by-id`.
    Names(Vec<String>),
}

/// One name that the disks of a driver have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameTemplate {
    /// What it begins with.
    pub prefix: &'static str,
    /// What follows.
    pub part: IdPart,
}

/// What of a volume's ID or name is in the name of its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdPart {
    /// All of it.
    Whole,
    /// At most so many bytes from its start.
    First(usize),
    /// Its hexadecimal digits: all but the dashes.
    Digits,
}

impl NameTemplate {
    /// The name of the disk of the volume with that ID or name.
    #[must_use]
    pub fn name(&self, id: &str) -> String {
        let part = match self.part {
            IdPart::Whole => id.to_owned(),
            // CSI ids are UTF-8; one that would be cut within a character has no such name.
            IdPart::First(bytes) => id.get(..bytes.min(id.len())).unwrap_or(id).to_owned(),
            IdPart::Digits => id.replace('-', ""),
        };
        format!("{}{part}", self.prefix)
    }
}

/// Why a word cannot be that of a disk; a lowercase fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// It is empty.
    #[error("is empty")]
    Empty,
    /// It is longer than any disk's.
    #[error("is longer than {WORD_BYTES_MAX} bytes")]
    Long,
    /// It has a character that no disk's has.
    #[error("has a character that no name of a disk has")]
    Character,
    /// It lists more names than a disk has.
    #[error("lists more than {NAMES_MAX} names")]
    Many,
}

/// The word, if it can be a disk's: printable ASCII without spaces and slashes.
pub(crate) fn word(text: &str) -> Result<String, WordError> {
    match text {
        "" => Err(WordError::Empty),
        _ if text.len() > WORD_BYTES_MAX => Err(WordError::Long),
        _ if !text.bytes().all(|byte| byte.is_ascii_graphic()) => Err(WordError::Character),
        _ if text.contains(['/', SEPARATOR]) => Err(WordError::Character),
        _ => Ok(text.to_owned()),
    }
}

/// The names of a list.
pub(crate) fn names(text: &str) -> Result<Vec<String>, WordError> {
    let names: Vec<_> = text.split(SEPARATOR).map(word).collect::<Result<_, _>>()?;
    match names.len() <= NAMES_MAX {
        true => Ok(names),
        false => Err(WordError::Many),
    }
}

/// The list of names.
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
