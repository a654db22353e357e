//! The number of names of the file of a volume or snapshot of `local`. With more names than Belay
//! has made, one file may be that of several volumes.

use std::path::Path;

/// Explains why the file at `path`, which has `names` names, must not be used; `None` if it has at
/// most `allowed`. The text has the path, both numbers and the remedy.
#[must_use]
pub fn refusal(path: &Path, names: u64, allowed: u64) -> Option<String> {
    if names <= allowed {
        return None;
    }
    let state_dir = path.parent().and_then(Path::parent);
    let (dir, path) = (state_dir.unwrap_or(path).display(), path.display());
    Some(format!(
        "{path}: has {names} names (hard links) and may have {allowed}, as after a deduplicating \
         tool, so it may be the file of other volumes or snapshots too; `find {dir} -samefile \
         {path}` lists the names; remove those that belong to no volume or snapshot, or, while no \
         volume that has the file is attached, make a separate file: `cp --archive --reflink=auto \
         {path} {path}.new && mv {path}.new {path}` (docs/health.md, A file with several names)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_names_than_allowed_are_refused_with_the_file_the_numbers_and_the_remedy() {
        let path = Path::new("/state/volumes/vol-1");
        for (names, allowed) in [(0, 1), (1, 1), (1, 2), (2, 2)] {
            assert_eq!(refusal(path, names, allowed), None, "{names} of {allowed}");
        }
        let why = refusal(path, 3, 2).unwrap();
        for part in [
            "/state/volumes/vol-1: has 3 names (hard links) and may have 2, ",
            "`find /state -samefile /state/volumes/vol-1`",
            "cp --archive --reflink=auto /state/volumes/vol-1 /state/volumes/vol-1.new && mv ",
        ] {
            assert!(why.contains(part), "{part}: {why}");
        }
    }
}
