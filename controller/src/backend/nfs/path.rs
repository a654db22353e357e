//! Paths below a share. Makes no system calls.

use belay_contract::export::NAME_BYTES_MAX;
pub(super) use belay_contract::export::{SOURCE_BYTES_MAX, share, source, too_long};
use belay_contract::nfs_id;
/// The name of the directory for Belay's own files in a share.
pub(super) use belay_contract::nfs_id::OWN;
use std::fmt;

/// The prefix of the path of an archived volume.
const ARCHIVED: &str = "archived-";

/// The path of a directory below a share: at least one name, and no name that is empty, `.` or
/// `..`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Dir(Vec<String>);

impl Dir {
    /// Parses a path, ignoring leading and trailing slashes. Returns `None` if the path is the
    /// share itself.
    ///
    /// # Errors
    /// Returns an explanation if a part of the path is not allowed.
    pub(super) fn read(path: &str) -> Result<Option<Self>, String> {
        Ok(Self::of(nfs_id::directory(path)?))
    }

    /// Returns the directory with this path, or `None` if the path has no names.
    pub(super) fn of(names: Vec<String>) -> Option<Self> {
        (!names.is_empty()).then_some(Self(names))
    }

    /// Returns the directory `name` in the root of the share.
    pub(super) fn single(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }

    /// Returns the parent directories below the share, outermost first.
    pub(super) fn above(&self) -> impl Iterator<Item = Self> + '_ {
        (1..self.0.len()).map(|n| Self(self.0[..n].to_vec()))
    }

    /// Returns the parent directory, or `None` if the parent is the share.
    pub(super) fn parent(&self) -> Option<Self> {
        let above = &self.0[..self.0.len().saturating_sub(1)];
        (!above.is_empty()).then(|| Self(above.to_vec()))
    }

    /// Returns the last name of the path.
    pub(super) fn name(&self) -> &str {
        self.0.last().map_or("", String::as_str)
    }

    /// Returns the names of the path, outermost first.
    pub(super) fn names(&self) -> &[String] {
        &self.0
    }

    /// Returns the path to which csi-driver-nfs renames the directory to archive it: the whole path
    /// with a prefix.
    pub(super) fn archived(&self) -> Self {
        let mut names = self.0.clone();
        if let Some(first) = names.first_mut() {
            first.insert_str(0, ARCHIVED);
        }
        Self(names)
    }

    /// Returns the original path of an archived directory, or `None` if the path does not begin
    /// with the prefix of archives.
    pub(super) fn archive_of(&self) -> Option<Self> {
        let mut names = self.0.clone();
        let first = names.first_mut()?;
        *first = first.strip_prefix(ARCHIVED)?.to_owned();
        Some(Self(names))
    }

    /// Returns an explanation if the name of the directory's archive would be too long.
    pub(super) fn archive_too_long(&self) -> Option<String> {
        let bytes = ARCHIVED.len() + self.0.first()?.len();
        let why = || format!("its name has {bytes} bytes then, of at most {NAME_BYTES_MAX}");
        (bytes > NAME_BYTES_MAX).then(why)
    }

    /// Returns the outermost directory of the path if the name of that directory has the prefix of
    /// archives.
    pub(super) fn archives(&self) -> Option<Self> {
        let first = self.0.first()?;
        first
            .starts_with(ARCHIVED)
            .then(|| Self(vec![first.clone()]))
    }

    #[cfg(test)]
    pub(super) fn unchecked(path: &str) -> Self {
        Self(path.split('/').map(str::to_owned).collect())
    }
}

impl fmt::Display for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_those_above_it_and_an_archive() {
        let dir = Dir::read("/a/b/c/").unwrap().unwrap();
        let above: Vec<_> = dir.above().map(|dir| dir.to_string()).collect();
        assert_eq!(above, ["a", "a/b"]);
        assert_eq!(dir.parent().unwrap().to_string(), "a/b");
        assert_eq!(dir.name(), "c");
        assert_eq!(dir.archived().to_string(), "archived-a/b/c");
        assert_eq!(
            (dir.archived().archive_of(), dir.archive_of()),
            (Some(dir.clone()), None)
        );
        let top = Dir::read("pvc-1").unwrap().unwrap();
        assert_eq!(top.parent(), None);
        assert_eq!(top.above().count(), 0);
        assert_eq!(top.archived().to_string(), "archived-pvc-1");
    }

    #[test]
    fn names_that_only_look_like_paths_are_names() {
        for name in [
            "..a", "a..", "...", ".a", "a\\b", ".belay2", "x/.belay", "a b", "\u{e9}",
        ] {
            assert_eq!(Dir::read(name).unwrap().unwrap().to_string(), name);
        }
        assert_eq!(Dir::read("//").unwrap(), None);
    }

    #[test]
    fn limits_are_those_of_a_name_and_of_the_depth() {
        assert!(Dir::read(&"n".repeat(255)).is_ok());
        assert!(
            Dir::read(&"n".repeat(256))
                .unwrap_err()
                .contains("256 bytes")
        );
        assert!(Dir::read(&"n/".repeat(64)).is_ok());
        assert!(
            Dir::read(&"n/".repeat(65))
                .unwrap_err()
                .contains("more than 64")
        );
    }
}
