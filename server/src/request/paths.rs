//! Paths in requests. Staging and target paths must be plain absolute paths, so that later code
//! need not handle `..`. This module checks only the text of a path, and does not access the
//! filesystem.

use crate::call::Failure;
use std::fmt;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// Maximum length of a path, in bytes: PATH_MAX of limits.h without the terminating NUL.
pub const PATH_BYTES_MAX: usize = 4095;

/// Maximum length of a component of a path, in bytes: NAME_MAX of limits.h.
const COMPONENT_BYTES_MAX: usize = 255;

/// An absolute path other than the root, without `.`, `..`, doubled or trailing slashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AbsPath(PathBuf);

impl AbsPath {
    /// Creates the path from the text of `field`. Drops doubled and trailing slashes.
    ///
    /// # Errors
    /// Returns `Invalid`, naming the field and the defect of the path.
    pub fn new(field: &str, text: String) -> Result<Self, Failure> {
        bounded(field, &text)?;
        let Some(relative) = text.strip_prefix('/') else {
            return Err(Failure::invalid(
                field,
                format_args!("{text:?} is not absolute; write a path that begins with /"),
            ));
        };
        let mut is_plain = !relative.is_empty();
        for component in relative.split('/') {
            match component {
                "" => is_plain = false,
                "." | ".." => {
                    let why = format_args!("{text:?} has a component {component:?}");
                    return Err(Failure::invalid(field, why));
                }
                _ if component.len() > COMPONENT_BYTES_MAX => {
                    let why = format_args!(
                        "has a component of {} bytes; at most {COMPONENT_BYTES_MAX} are allowed",
                        component.len(),
                    );
                    return Err(Failure::invalid(field, why));
                }
                _ => {}
            }
        }
        if is_plain {
            return Ok(Self(PathBuf::from(text)));
        }
        let path: PathBuf = Path::new(&text).components().collect();
        if path.parent().is_none() {
            return Err(Failure::invalid(
                field,
                "is the root directory; use one below it",
            ));
        }
        Ok(Self(path))
    }
}

impl Deref for AbsPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for AbsPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for AbsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Reads a path that is only used to look up a volume. Accepts a relative path, since the
/// specification requires NOT_FOUND for a relative path, not INVALID_ARGUMENT. An absolute path
/// must satisfy the rule of [`AbsPath`].
pub(super) fn looked_up(field: &str, text: String) -> Result<PathBuf, Failure> {
    if text.starts_with('/') {
        return AbsPath::new(field, text).map(|path| path.0);
    }
    bounded(field, &text)?;
    Ok(PathBuf::from(text))
}

fn bounded(field: &str, text: &str) -> Result<(), Failure> {
    super::text::required(field, text, PATH_BYTES_MAX)?;
    match text.find('\0') {
        None => Ok(()),
        Some(at) => Err(Failure::invalid(
            field,
            format_args!("has a NUL byte at {at}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<String, String> {
        AbsPath::new("target_path", text.to_owned())
            .map(|path| path.to_string())
            .map_err(|failure| failure.message)
    }

    #[test]
    fn extra_slashes_are_dropped() {
        for text in ["/a/b", "/a/b/", "//a//b", "/a/b///"] {
            assert_eq!(check(text).as_deref(), Ok("/a/b"), "{text}");
        }
        assert_eq!(check("/..a/b../.hidden").as_deref(), Ok("/..a/b../.hidden"));
    }

    #[test]
    fn a_path_that_is_not_plain_and_absolute_is_refused_with_the_reason() {
        let long = format!("/{}", "x".repeat(256));
        let cases = [
            ("", "target_path: is required, but empty"),
            (
                "a/b",
                "target_path: \"a/b\" is not absolute; write a path that begins with /",
            ),
            ("/", "target_path: is the root directory; use one below it"),
            ("//", "target_path: is the root directory; use one below it"),
            ("/a/../b", "target_path: \"/a/../b\" has a component \"..\""),
            ("/a/.", "target_path: \"/a/.\" has a component \".\""),
            ("/a\0b", "target_path: has a NUL byte at 2"),
            (
                &long,
                "target_path: has a component of 256 bytes; at most 255 are allowed",
            ),
        ];
        for (text, why) in cases {
            assert_eq!(check(text), Err(why.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn the_longest_path_of_the_kernel_passes_and_no_longer_one() {
        let longest = "/abcdefg".repeat(512);
        assert_eq!(longest.len(), PATH_BYTES_MAX + 1);
        assert!(check(&longest[..PATH_BYTES_MAX]).is_ok());
        let refused = check(&longest).unwrap_err();
        assert_eq!(
            refused,
            "target_path: has 4096 bytes; at most 4095 are allowed"
        );
    }

    #[test]
    fn a_path_that_is_only_looked_up_may_be_relative_but_not_have_dots() {
        let look = |text: &str| looked_up("volume_path", text.to_owned());
        assert_eq!(look("some/path").unwrap(), PathBuf::from("some/path"));
        assert_eq!(look("/a/b/").unwrap(), PathBuf::from("/a/b"));
        for text in ["", "/a/../b", "a\0"] {
            assert!(look(text).is_err(), "{text:?}");
        }
    }
}
