//! The description of a volume that this driver creates from a backup. Cinder replaces the metadata
//! of such a volume by those that the backup's volume had, and leaves the description as it is.

/// Marks in a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct Restored {
    /// Which attempt has created the volume.
    pub(in super::super) attempt: String,
    /// The ID of the backup.
    pub(in super::super) backup: String,
    /// The claim in the metadata of the backup's volume, or its ID.
    pub(in super::super) carried: String,
}

const BEGIN: &str = "Created by Belay from backup ";
const ATTEMPT: &str = ", attempt ";
const CARRIED: &str = ", of volume ";

impl Restored {
    pub(in super::super) fn description(&self) -> String {
        let Self {
            attempt,
            backup,
            carried,
        } = self;
        format!("{BEGIN}{backup}{ATTEMPT}{attempt}{CARRIED}{carried}")
    }

    pub(super) fn read(description: &str) -> Option<Self> {
        let (backup, rest) = description.strip_prefix(BEGIN)?.split_once(ATTEMPT)?;
        let (attempt, carried) = rest.split_once(CARRIED)?;
        let [attempt, backup, carried] = [attempt, backup, carried].map(str::to_owned);
        Some(Self {
            attempt,
            backup,
            carried,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_as_it_was_written_and_no_other_is() {
        let restored = Restored {
            attempt: "00ff-7".to_owned(),
            backup: "b-1".to_owned(),
            carried: "v-1".to_owned(),
        };
        let text = restored.description();
        assert_eq!(Restored::read(&text), Some(restored));
        for other in ["", "Created by Belay", &text[1..], &text[..text.len() - 14]] {
            assert_eq!(Restored::read(other), None, "{other:?}");
        }
    }
}
